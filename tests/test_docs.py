"""The code blocks of the documentation run, and print what the page says they print."""

import contextlib
import doctest
import io
import re
import textwrap
import warnings
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def programs():
    """Every python or diff block, with the text block after it if there is one."""
    for page in PAGES:
        blocks = BLOCK.findall(page.read_text())
        for number, (language, code) in enumerate(blocks):
            if language not in ("python", "diff"):
                continue
            after = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
            expected = after[1] if after[0] == "text" else None
            yield pytest.param(side(code, "+") if language == "diff" else code, expected, id=f"{page.stem}-{number}")


def side(diff: str, sign: str) -> str:
    """One side of a diff as a program."""
    kept = [line[2:] for line in diff.splitlines() if line[:1] in (sign, " ", "")]
    return textwrap.dedent("\n".join(kept))


def printed(code: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        if re.search(r"import (lightning|transformers|skorch|sklearn)|integrations\.", code):
            warnings.simplefilter("ignore")  # of those libraries, about themselves
        exec(compile(code, "<documentation>", "exec"), {"__name__": "__main__"})
    return out.getvalue()


@pytest.mark.parametrize(("code", "expected"), list(programs()))
def test_a_block_runs_and_prints_what_the_page_says(code, expected):
    out = printed(code)
    if expected is not None:
        assert without_coins(out) == without_coins(expected)


def without_coins(text: str) -> str:
    """Returns the text without what the run's secret coins decide: how many lots were tested, and what the tests saw.

    A page may break a long line of a claim; the rest of it is then indented like the values of a claim.
    """
    text = re.sub(r"\n {15}(?=\S)", " ", text)
    text = re.sub(r"\na record taken alone has another gradient than in its batch[^\n]*(\n  [^\n]*)*", "", text)
    text = re.sub(r"less than \d+ % of lots", "less than some % of lots", text)
    return re.sub(r"[\d,]+ of ([\d,]+ lots replayed)", r"some of \1", text)


def test_the_readme_begins_with_a_diff_of_a_plain_loop_and_both_sides_run():
    language, code = BLOCK.findall((ROOT / "README.md").read_text())[0]
    assert language == "diff"
    assert printed(side(code, "-")) == ""
    assert "differential privacy" in printed(side(code, "+"))


def test_pages_show_the_measured_tables():
    from bench import tables

    for page in tables.PAGES:
        text = page.read_text()
        assert "<!-- table: " in text
        assert tables.page_with_tables(page) == text, "run `python -m bench.tables`"


def test_the_chart_of_speed_shows_the_measured_times():
    from bench import speed_chart

    assert speed_chart.CHART.read_text() == speed_chart.chart(), "run `python -m bench.speed_chart`"


def test_the_readme_is_short_and_its_lines_fit():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 140
    assert [line for line in lines if len(line) > 120] == []


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f": {page}\n" not in menu] == []


def test_the_version_is_the_same_everywhere():
    from sordino.version import __version__

    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'__version__ = "{__version__}"' in (ROOT / "lab" / "sordino_lab" / "__init__.py").read_text()
    released = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)  # after "Unreleased"
    assert released[0] == __version__


def test_files_that_the_pages_name_exist():
    """A page names a file by the end of its path, such as `clipping/flat.py`; a bare name may be a file of the reader's."""
    folders = ("sordino", "lab", "tests", "bench", "tools", "examples", "docs")
    files = [f"/{path.relative_to(ROOT).as_posix()}" for folder in folders for path in (ROOT / folder).rglob("*.*")]
    for page in PAGES:
        named = set(re.findall(r"`([\w.-]+/[\w./-]+\.(?:py|c|h))`", page.read_text()))
        missing = [name for name in named if not any(file.endswith(f"/{name}") for file in files)]
        assert not missing, f"{page.relative_to(ROOT)} names {missing}"


def test_the_opacus_side_of_the_diff_runs_too():
    pytest.importorskip("opacus", reason="opacus is in the extra [bench], not in [dev]")
    _, code = BLOCK.findall((ROOT / "docs" / "from_opacus.md").read_text())[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Opacus, about itself
        assert 2.9 < float(printed(side(code, "-"))) <= 3.01  # its PRV is an estimate, with an error of 0.01


MODULES = [path.relative_to(ROOT).with_suffix("") for path in sorted((ROOT / "sordino").rglob("*.py"))]


@pytest.mark.parametrize("module", [".".join(path.parts) for path in MODULES if path.name != "__init__"])
def test_the_examples_of_docstrings(module):
    assert doctest.testmod(import_module(module)).failed == 0


def test_links_between_pages_lead_somewhere():
    for page in [*PAGES, ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
