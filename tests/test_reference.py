"""The API reference: every public name is on a page, with an example, and says what it costs where it costs something."""

import ast
import inspect
import re
import sys
import types
from importlib import import_module
from pathlib import Path

import pytest

import sordino as sd
from tools import reference_pages

ROOT = Path(__file__).parents[1]
TARGETS = {
    target
    for page in (ROOT / "docs" / "reference").rglob("*.md")
    for target in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)
}
NOUNS = [
    noun for package, *_ in reference_pages.NOUNS.values() for noun, _ in reference_pages.declared_classes(package)
]
NAMES = {name.public: name.value() for name in reference_pages.all_public_names()}
SHOWN = {name: value for name, value in NAMES.items() if inspect.isclass(value) or inspect.isfunction(value)}
ROADS = "sordino.integrations."
EXTRAS = pytest.importorskip("lightning", reason="the roads' libraries are in the extras")


def test_the_pages_are_what_make_names_writes():
    assert reference_pages.main(["--check"]) == 0, "run `make names`"


def names_of_the_stub():
    """By another way than the tool's: the names that type checkers see."""
    tree = ast.parse((ROOT / "sordino" / "__init__.pyi").read_text())
    imported = [(node.module, alias.asname) for node in tree.body for alias in node.names]
    return {name: f"{module}.{name}" for module, name in imported if not name.startswith("__")}


@pytest.mark.parametrize("name", sorted(names_of_the_stub()))
def test_every_name_of_the_stub_is_on_a_page(name):
    value = getattr(sd, name)
    if isinstance(value, types.ModuleType):
        listed = getattr(value, "__all__", None)
        assert listed is None or all(on_a_page(getattr(value, each), value.__name__, each) for each in listed)
    else:
        assert on_a_page(value, names_of_the_stub()[name].rpartition(".")[0], name)


def on_a_page(value, module, name):
    if name == "DECLARATIONS":
        return True
    if value in NOUNS:
        return value.__module__ in TARGETS
    if inspect.isclass(value) or inspect.isfunction(value):
        return f"{value.__module__}.{value.__name__}" in TARGETS
    return any(target.startswith("sordino.") and target.endswith(f".{name}") for target in TARGETS)  # a constant


def is_protocol(value):
    return getattr(value, "_is_protocol", False)


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_a_public_name_says_what_it_is_and_shows_an_example(name):
    text = inspect.getdoc(SHOWN[name])
    assert text
    if is_protocol(SHOWN[name]) or name in INTERNAL:
        return
    if name.startswith(ROADS) and "Privacy" not in name:
        assert re.search(r"^ {4,8}\S.*\(", text, re.MULTILINE)  # their own library is imported for the tutorials' tests
    else:
        assert ">>> " in text, "an example in the docstring, which the tests run"


INTERNAL = {
    "sordino.per_sample.Chunked",
    "sordino.app.runs.Prepared",
    "sordino.app.runs.Problem",
    "sordino.app.runs.build",
    "sordino.app.runs.prepare",
    "sordino.app.runs.project",
    "sordino.app.runs.standardise",
    "sordino.sampling.Records",
}
"""What a run is put together from, and no user calls."""


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.__name__)
def test_a_noun_shows_an_example_and_its_privacy(noun):
    text = inspect.getdoc(noun)
    assert ">>> " in text
    assert "Privacy:" in text or "Privacy" in (sys.modules[noun.__module__].__doc__ or "")
    arguments = [name for name in inspect.signature(noun).parameters if name != "self"]
    assert not arguments or "Args:" in text or any(f"`{name}`" in text for name in arguments)


SPENDS = {
    "sordino": (
        "Private",
        "ask",
        "fit",
        "Ledger",
        "Gaussian",
        "Laplace",
        "Guarantee",
        "Log",
        "Unit",
        "Views",
        "L2",
        "calibrate",
        "dry_run",
        "dry_ask",
        "Sealed",
        "Draws",
        "Lot",
        "Replay",
    ),
    "sordino.statistics": ("Mean", "Count", "ClippedSum", "Gram", "PCA", "Normaliser", "Ranges"),
    "sordino.accounting": ("Budget",),
    "sordino.diagnostics": ("length_quantiles", "dominant_class", "substep_cosine"),
    "sordino.auditing": ("selftest",),
    "sordino.integrations": ("Privacy",),
    "sordino.integrations.transformers": ("Trainer",),
    "sordino.integrations.lightning": ("PrivateModule",),
    "sordino.integrations.sklearn": ("DPClassifier", "DPRegressor"),
    "sordino.integrations.skorch": ("NeuralNetClassifier", "NeuralNetRegressor"),
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in SPENDS.items() for name in names])
def test_what_spends_or_releases_says_so(module, name):
    value = getattr(import_module(module), name)
    words = (inspect.getdoc(value) or "") + (sys.modules[value.__module__].__doc__ or "")
    assert "Privacy:" in words


@pytest.mark.parametrize("method", ["draws", "backward", "claim", "post_processing", "public"])
def test_the_methods_of_a_loop_say_what_they_take_and_what_they_cost(method):
    text = inspect.getdoc(getattr(sd.Private, method))
    assert "Args:" in text
    assert "Privacy:" in text


def test_help_of_private_teaches_a_loop():
    text = inspect.getdoc(sd.Private)
    for word in ("loss_fn", "sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))", "private.backward(lot)", "optimizer.step()"):
        assert word in text


def test_there_is_one_import_path():
    assert sd.calibrate.__module__ == "sordino.queries.calibrate_query"
    for name in sd.__all__:
        assert getattr(sd, name) is not None


def test_an_example_without_a_heading_is_shown_under_one():
    pytest.importorskip("griffe", reason="griffe is in the extra [docs]")
    from tools.doctests import with_examples_heading

    assert with_examples_heading("Twice x.\n\n>>> 2 * 2\n4") == "Twice x.\n\nExamples:\n    >>> 2 * 2\n    4"
    assert with_examples_heading("Args:\n    x: it.") == "Args:\n    x: it."
