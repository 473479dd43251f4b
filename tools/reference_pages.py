"""Writes docs/reference and its menu in mkdocs.yml.

There is a page for every subject and one for every sampler, clipping rule and query.

python -m tools.reference_pages            writes them; `make names` does this
python -m tools.reference_pages --check    only says whether they are what they should be; a test does this

Which names are public is said by the packages themselves: `sordino.__all__`, that of each package, or what a module
defines without an underscore. What is on the pages comes from docstrings; nothing is described here.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from importlib import import_module
from inspect import getdoc, isclass, isfunction
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import sordino
from sordino.registry import Declaration, Example

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
NAV = ROOT / "mkdocs.yml"
_BEGIN, _END = "  - API reference:  # written by `make names`\n", "  # end of what is written\n"
NOUNS = {
    "samplers": ("sampling", "Samplers", "Who is in a lot, and what that is worth."),
    "clipping": ("clipping", "Clipping rules", "How much each record counts, and how far one can move the sum."),
    "queries": ("queries", "Queries", "What is asked of a lot."),
}
SUBJECTS = {
    "training": ("Training", "What a training loop of your own is made of.", ("sordino",)),
    "integrations": (
        "Integrations",
        "Private training inside the loops of other libraries.",
        tuple(
            f"sordino.integrations{part}"
            for part in ("", ".transformers", ".lightning", ".accelerate", ".skorch", ".sklearn")
        ),
    ),
    "losses": ("Losses", "One loss per record, for models that take a dict.", ("sordino.losses",)),
    "statistics": (
        "Statistics",
        "Means, counts, PCA and ranges of the data, released with noise and entered in the same ledger.",
        ("sordino.statistics",),
    ),
    "accounting": ("Accounting", "From events to ε. Needs no torch.", ("sordino.accounting",)),
    "events": ("Events", "What was done to the data. Needs no torch.", ("sordino.events",)),
    "audit": (
        "Audits",
        "Tests of a mechanism and measurements of a run, to compare with what is claimed of it.",
        ("sordino.auditing",),
    ),
    "report": ("Reports", "The report of a run.", ("sordino.app.report",)),
    "runs": ("Recipes and runs", "Whole training runs, described by their settings.", ("sordino.app.runs",)),
    "gradients": ("Gradients", "How the gradients of single records are computed.", ("sordino.per_sample",)),
    "models": ("Models", "Networks without batch norm.", ("sordino.nn",)),
    "after": (
        "Optimizers and schedules",
        "They act on released gradients only and cost no privacy.",
        ("sordino.optim", "sordino.schedules"),
    ),
    "research": ("Diagnostics", "For research on public data.", ("sordino.diagnostics", "sordino.ntk")),
    "parts": (
        "Protocols",
        "The interfaces of samplers, clipping rules and queries, for those who write one.",
        ("sordino.sampling", "sordino.clipping", "sordino.queries"),
    ),
}
_NOT = {"DECLARATIONS", "__version__"}
_FIRST = ("Private", "Draws", "Lot", "Gaussian", "Laplace", "calibrate", "dry_run", "Claim", "Guarantee", "NoGuarantee")
"""In the order in which a loop meets them; the others of `sordino` follow by name."""
_BARE = {"sordino.Gaussian", "sordino.Laplace", "sordino.Draws", "sordino.Replay"}
"""Names whose methods are called by the library alone."""
_INSIDE = "'!^(init|rule|advance|draws|draws_from|expected|size_is_public|groups|unproven)$'"
"""Methods of nouns that are called by the library alone: those of the protocols."""


@dataclass(frozen=True)
class Name:
    """A public name: where users find it, and where it is defined."""

    public: str
    home: str

    @property
    def last(self) -> str:
        """The name as it is written in code."""
        return self.public.rpartition(".")[2]

    def value(self) -> Any:
        """Returns the object that the name stands for."""
        module, _, name = self.public.rpartition(".")
        return getattr(import_module(module), name)


def declared_classes(package: str) -> list[tuple[type[Any], Declaration]]:
    """Returns the building blocks that the files of a package declare."""
    found: tuple[Declaration, ...] = import_module(f"sordino.{package}").DECLARATIONS
    return [(noun, one) for one in found for noun in one.classes]


def public_names(module: str) -> list[Name]:
    """Returns the public names of a module, except building blocks, which have pages of their own."""
    loaded = import_module(module)
    declared = {noun for package, *_ in NOUNS.values() for noun, _ in declared_classes(package)}
    # A package lists its names itself; of a plain module, all public classes and functions count.
    listed = list(getattr(loaded, "__all__", ())) or [
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_")
        and (isclass(value) or isfunction(value))
        and value.__module__ == loaded.__name__
        and name != "Schedule"
    ]
    if module == "sordino":
        listed = [*_FIRST, *sorted(set(sordino._HOMES) - set(_FIRST))]
    kept = [name for name in listed if name not in _NOT and not _is_declared(getattr(loaded, name), declared)]
    return [Name(f"{module}.{name}", _home_of(loaded, name)) for name in kept]


def _is_declared(value: Any, declared: set[type[Any]]) -> bool:
    return isclass(value) and value in declared


def _home_of(module: ModuleType, name: str) -> str:
    """Returns the module that defines a name: the class's own, else what the package imports it from."""
    value = getattr(module, name)
    if isclass(value) or isfunction(value):
        return f"{value.__module__}.{value.__name__}"
    if module is sordino:
        return f"sordino.{sordino._HOMES[name]}.{name}"
    for node in ast.parse(Path(str(module.__file__)).read_text()).body:
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return f"{node.module}.{name}"
    return f"{module.__name__}.{name}"


def all_public_names() -> list[Name]:
    """Returns every public name except building blocks, once, where it is first met."""
    names_by_home: dict[str, Name] = {}
    for _, _, modules in SUBJECTS.values():
        for module in modules:
            for name in public_names(module):
                names_by_home.setdefault(name.home, name)
    return list(names_by_home.values())


def first_line(value: Any, home: str = "") -> str:
    """Returns the first paragraph of a docstring for a table; for a constant, the string under it."""
    text = getdoc(value) if isclass(value) or isfunction(value) else _docstring_of_constant(home)
    return (text or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _docstring_of_constant(home: str) -> str:
    """Returns the string after the line that defines a constant."""
    module, _, name = home.rpartition(".")
    body = ast.parse(Path(str(import_module(module).__file__)).read_text()).body
    for line, after in pairwise(body):
        targets = (
            line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
        )
        if name in {ast.unparse(target) for target in targets} and isinstance(after, ast.Expr):
            return str(ast.literal_eval(after.value))
    return ""


def subject_page(title: str, about: str, names: list[Name]) -> str:
    """Returns a page with a table of its names, then each name."""
    lines = [f"# {title}", "", about, "", "| name | |", "|---|---|"]
    lines += [f"| [`{name.last}`][{name.home}] | {first_line(name.value(), name.home)} |" for name in names]
    for name in names:
        lines += ["", f"::: {name.home}", "    options:", "      heading_level: 2"]
        if name.public in _BARE:
            lines.append("      members: false")
    return "\n".join([*lines, ""])


def noun_page(noun: type[Any], declared: Declaration) -> str:
    """Returns the page of a building block: description, proof, names on the command line, a script."""
    name = noun.__name__
    lines = [f"# {name}", "", f"::: {noun.__module__}", "    options:", "      show_root_heading: false"]
    lines += ["      show_root_toc_entry: false", f"      members: [{name}]", "      heading_level: 2"]
    lines += [f"      filters: ['!^_', {_INSIDE}]", ""]
    proof = _rows_of_claims(name)
    if proof:
        lines += ["## What is claimed", "", *proof, ""]
    words = [f"`--method {method.name}`: {method.about}" for method in declared.methods]
    words += [f"`--sampler {one.name}`: {one.about}" for one in declared.samplers]
    if words:
        lines += ["## On the command line", "", *(f"- {word}" for word in words), ""]
    scripts = [one for one in declared.list_examples() if re.search(rf"\b{name}\b", one.query + one.sampler)]
    if scripts:
        lines += ["## In a script", "", "```py", script(scripts[0]).rstrip(), "```", ""]
    return "\n".join(lines)


def _rows_of_claims(name: str) -> list[str]:
    """Returns the rows of docs/claims.md about a name, with the head of their table."""
    text = (ROOT / "docs" / "claims.md").read_text().split("\n")
    rows: list[str] = []
    for number, line in enumerate(text):
        if line.startswith("| `") and re.search(rf"\b{name}\b", line.split("|")[1]):
            head = number
            while not text[head].startswith("|---"):
                head -= 1
            rows += ([] if text[head] in rows else ["", text[head - 1], text[head]]) + [line]
    return rows[1:]


def script(example: Example) -> str:
    """Returns the program of examples/variants.py, which the tests run."""
    flat = (ROOT / "examples" / "flat.py").read_text()
    text = re.sub(r'\A""".*?"""\n+', "", flat, flags=re.DOTALL)
    for name, code in (("query", example.query), ("sampler", example.sampler)):
        text = re.sub(rf"^{name} = .*$", lambda _, name=name, code=code: f"{name} = {code}", text, flags=re.MULTILINE)
    return text


def render_pages() -> dict[Path, str]:
    """Returns all pages and mkdocs.yml, by path."""
    page_texts: dict[Path, str] = {}
    once = {name.home: name for name in all_public_names()}
    nav = [_BEGIN]
    for file, (title, about, modules) in SUBJECTS.items():
        names = [name for module in modules for name in public_names(module) if once[name.home] == name]
        page_texts[FOLDER / f"{file}.md"] = subject_page(title, about, names)
        nav.append(f"      - {title}: reference/{file}.md\n")
        if file == "training":
            nav += _add_declared_pages(page_texts)
    text = NAV.read_text()
    start, end = text.index(_BEGIN), text.index(_END)
    return {**page_texts, NAV: text[:start] + "".join(nav) + text[end:]}


def _add_declared_pages(found: dict[Path, str]) -> list[str]:
    """Adds a page for each building block and one for each kind; returns their lines in the menu."""
    nav = []
    for folder, (package, title, about) in NOUNS.items():
        nav += [f"      - {title}:\n", f"          - All: reference/{folder}/index.md\n"]
        lines = [f"# {title}", "", about, "", "| name | |", "|---|---|"]
        for noun, declared in declared_classes(package):
            file = f"{noun.__name__.lower()}.md"
            found[FOLDER / folder / file] = noun_page(noun, declared)
            lines.append(f"| [`{noun.__name__}`]({file}) | {first_line(noun)} |")
            nav.append(f"          - {noun.__name__}: reference/{folder}/{file}\n")
        found[FOLDER / folder / "index.md"] = "\n".join([*lines, ""])
    return nav


def main(arguments: list[str]) -> int:
    """Writes or checks the pages; returns 1 if `--check` finds one that is out of date."""
    wanted = render_pages()
    stale = {path for path, text in wanted.items() if not path.exists() or path.read_text() != text}
    outdated_files = {path for path in FOLDER.rglob("*.md") if path not in wanted}
    for path in sorted(stale | outdated_files):
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path]) if path in wanted else path.unlink()
        print(path.relative_to(ROOT))
    return int(bool(stale | outdated_files) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
