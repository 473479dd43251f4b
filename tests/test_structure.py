"""The shape of the project: layers that import in one direction, no cycles between packages, every module on the page."""

import ast
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools import module_listing

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "sordino").rglob("*.py"), *(ROOT / "lab" / "sordino_lab").rglob("*.py")])
BELOW_RELEASE = {
    "accelerations",
    "accounting",
    "distributed",
    "events",
    "former_names",
    "kernels",
    "matrix_factorization",
    "refusal",
    "release",
    "rng",
    "validate",
}
"""What `sordino/release` may import: nothing that knows of models, batches or training."""

EVENTS_OF_THEIR_NAME = {
    "BallsInBins",
    "Correlated",
    "CyclicPoisson",
    "FixedOrder",
    "FixedSize",
    "Gaussian",
    "Laplace",
    "Poisson",
    "Shuffle",
    "TruncatedPoisson",
}
"""Samplers and noises whose event has the same name: `sd.Poisson(0.01)` draws, and `events.Poisson(0.01, …)` says so."""


def module_name(path: Path) -> str:
    """Returns the dotted name of a source file; a package is named by its folder."""
    base = ROOT if path.is_relative_to(ROOT / "sordino") else ROOT / "lab"
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


def imported_modules(tree: ast.AST, *, for_types: bool = False) -> Iterator[str]:
    """Yields every module of ours that a file imports, also in a function; what only a type checker reads if asked."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING" and not for_types:
            for statement in child.orelse:
                yield from imported_modules(statement)
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names if alias.name in MODULES)
        elif isinstance(child, ast.ImportFrom) and child.module is not None:
            for alias in child.names:
                name = f"{child.module}.{alias.name}"
                if name in MODULES:
                    yield name
                elif child.module in MODULES:
                    yield child.module
        yield from imported_modules(child, for_types=for_types)


def package_of(module: str) -> str:
    """Returns the folder below `sordino` that a module is in; folders of the application have one level more."""
    parts = module.split(".")
    return ".".join(parts[:3] if parts[:2] == ["sordino", "app"] else parts[:2])


def imports_between(
    group_of: Callable[[str], str], folder: Path = ROOT, *, for_types: bool = False
) -> dict[str, dict[str, set[str]]]:
    """Returns for each group of modules in a folder the other groups it imports, and the files that do so.

    `__init__.py` files re-export and do not count.
    """
    found: dict[str, dict[str, set[str]]] = {}
    for path in SOURCES:
        if path.name == "__init__.py" or not path.is_relative_to(folder):
            continue
        group = group_of(module_name(path))
        for module in imported_modules(ast.parse(path.read_text()), for_types=for_types):
            other = group_of(module)
            if other != group:
                found.setdefault(group, {}).setdefault(other, set()).add(path.relative_to(ROOT).as_posix())
    return found


def package_imports() -> dict[str, dict[str, set[str]]]:
    """Returns for each package the others it imports, and the files that do so."""
    return imports_between(package_of)


def cycles(graph: dict[str, dict[str, set[str]]]) -> list[str]:
    """Returns every import from which a way leads back, with the files that make it."""

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = set(graph.get(waiting.pop(), {})) - seen
            seen |= new
            waiting += new
        return seen

    beyond = {package: reachable(package) for package in graph}
    return [
        f"{package} imports {other}, which leads back to it: {', '.join(sorted(files))}"
        for package, others in graph.items()
        for other, files in others.items()
        if package in beyond.get(other, ())
    ]


def test_no_two_packages_import_each_other():
    assert cycles(package_imports()) == []


@pytest.mark.parametrize("room", ["accounting", "per_sample"])
def test_no_two_subpackages_of_a_room_import_each_other(room):
    """Nor for types alone: a reader who follows the imports downwards never comes back to where they began."""

    def subpackage_of(module: str) -> str:
        return ".".join(module.split(".")[:3])

    assert cycles(imports_between(subpackage_of, ROOT / "sordino" / room, for_types=True)) == []


def test_no_two_modules_of_the_engine_import_each_other():
    assert cycles(imports_between(str, ROOT / "sordino" / "per_sample", for_types=True)) == []


def test_a_cycle_would_be_found():
    graph = {"a": {"b": {"a/x.py"}}, "b": {"c": {"b/y.py"}}, "c": {"a": {"c/z.py"}}}
    assert len(cycles(graph)) == 3


def imports_inside(room: str, part_of: Callable[[str], str]) -> dict[str, dict[str, set[str]]]:
    """Returns for each part of a package the other parts it imports, and the files that do so."""
    found: dict[str, dict[str, set[str]]] = {}
    for name, path in MODULES.items():
        if path.name == "__init__.py" or not name.startswith(f"{room}."):
            continue
        for module in imported_modules(ast.parse(path.read_text())):
            if module.startswith(f"{room}.") and part_of(module) != part_of(name):
                found.setdefault(part_of(name), {}).setdefault(part_of(module), set()).add(path.name)
    return found


@pytest.mark.parametrize("room", ["sordino.events", "sordino.privacy_loss", "sordino.accounting"])
def test_no_cycle_inside_a_package(room):
    """Neither between its modules nor between its folders; a module that is in no folder is a part by itself."""
    assert cycles(imports_inside(room, lambda module: module)) == []
    depth = room.count(".") + 2
    assert cycles(imports_inside(room, lambda module: ".".join(module.split(".")[:depth]))) == []


def test_events_lie_between_privacy_losses_and_accountants():
    imports = {room: set(others) for room, others in package_imports().items()}
    assert imports["sordino.privacy_loss"] <= {"sordino.validate"}
    assert imports["sordino.matrix_factorization"] <= {"sordino.validate"}
    assert imports["sordino.events"] <= {"sordino.matrix_factorization", "sordino.privacy_loss", "sordino.validate"}
    assert imports["sordino.accounting"] <= {
        "sordino.events",
        "sordino.file_lock",
        "sordino.former_names",  # imports nothing of sordino
        "sordino.privacy_loss",
        "sordino.validate",
    }


def test_imports_in_functions_count_and_those_for_type_checkers_do_not():
    source = (
        "if TYPE_CHECKING:\n    from sordino.private import Private\ndef f():\n    from sordino.events import codec\n"
    )
    assert list(imported_modules(ast.parse(source))) == ["sordino.events.codec"]
    assert list(imported_modules(ast.parse(source), for_types=True)) == ["sordino.private", "sordino.events.codec"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_layers_import_in_one_direction(path):
    """The library never imports the application, and neither imports the lab."""
    name = module_name(path)
    if name in ("sordino", "sordino.__main__"):  # resolve public names on first use; start the command line
        return
    modules = set(imported_modules(ast.parse(path.read_text())))
    if not name.startswith("sordino_lab"):
        assert not [module for module in modules if module.startswith("sordino_lab")]
    if not name.startswith(("sordino_lab", "sordino.app")):
        assert not [module for module in modules if module.startswith("sordino.app")]


def test_release_imports_nothing_that_knows_of_training():
    for package, others in package_imports().items():
        if package == "sordino.release":
            assert {other.split(".")[1] for other in others} <= BELOW_RELEASE


def test_module_names_are_unique():
    """Files of the command line are named by their command."""
    by_command = ROOT / "sordino" / "app" / "cli"
    named = [path for path in SOURCES if path.parent != by_command and path.stem not in ("__init__", "__main__")]
    names = Counter(path.stem for path in named)
    assert [name for name, count in names.items() if count > 1] == []


def test_class_names_are_unique():
    classes = Counter(
        node.name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name != "Command"
    )
    assert {name for name, count in classes.items() if count > 1} <= EVENTS_OF_THEIR_NAME


def test_every_module_is_on_the_page():
    assert module_listing.PAGE.read_text() == module_listing.render_page(), "run `make names`"


AUDITS = sorted(
    path
    for folder in ("auditing", "attacks", "app/audits", "app/attacks")
    for path in (ROOT / "sordino" / folder).rglob("*.py")
)
NAMED_TUPLE = {"_replace", "_asdict", "_fields"}
"""Public methods of named tuples, whatever they are called."""


def foreign_private_attributes(source: str) -> list[str]:
    """Returns every access to a private attribute of another object than `self` or `cls`."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in NAMED_TUPLE
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]


@pytest.mark.parametrize("path", AUDITS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_audits_use_what_is_public(path):
    """What audits need of a run they get from `Private.open_for_audit` and other public methods."""
    assert foreign_private_attributes(path.read_text()) == []


def test_a_private_attribute_of_another_object_would_be_found():
    source = "private._model\nself._own\nself.run._state\nrecord._replace(x=1)\nthing.__class__"
    assert foreign_private_attributes(source) == ["private._model", "self.run._state"]


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="needs a clone and git")
def test_only_the_project_s_own_files_are_committed():
    """An environment or a cache that was added by mistake would bring other people's code into the project."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {path.split("/")[0] for path in listed.splitlines() if "/" in path}
    assert folders <= {".ci", ".github", "bench", "docs", "examples", "lab", "sordino", "tests", "tools"}
