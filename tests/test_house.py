"""The shape of the package: packages that depend in one direction, a door that knows nothing above it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BELOW_THE_DOOR = {"accounting", "events", "kernels", "random", "ranks", "refusal", "validate"}
"""What the door may import."""


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module of sordino that a file imports, at the top or in a function; not what only a type checker reads."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            for statement in child.orelse:
                yield from imported(statement)
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module == "sordino":
            yield from (f"sordino.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module is not None:
            yield child.module
        yield from imported(child)


def rooms() -> dict[str, dict[str, set[str]]]:
    """Each package or single module of sordino, the others it imports, and the files that do so."""
    found: dict[str, dict[str, set[str]]] = {}
    for path in sorted((ROOT / "sordino").rglob("*.py")):
        room, *_ = path.relative_to(ROOT / "sordino").with_suffix("").parts
        others = found.setdefault(room, {})
        for module in imported(ast.parse(path.read_text())):
            first, *rest = module.split(".")
            if first == "sordino" and rest and rest[0] != room:
                others.setdefault(rest[0], set()).add(str(path.relative_to(ROOT)))
    del found["__init__"]  # it imports by name, on first use
    return found


def cycles(graph: dict[str, dict[str, set[str]]]) -> list[str]:
    """Every import from which a way leads back, with the files that make it."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = set(graph.get(waiting.pop(), {})) - seen
            seen |= new
            waiting += new
        return seen

    beyond = {room: reached(room) for room in graph}
    return [
        f"{room} imports {other}, which leads back to it: {', '.join(sorted(files))}"
        for room, others in graph.items()
        for other, files in others.items()
        if room in beyond.get(other, ())
    ]


def test_no_two_packages_import_each_other():
    assert not cycles(rooms())


def test_a_cycle_would_be_noticed():
    graph: dict[str, dict[str, set[str]]] = {
        "a": {"b": {"a.py"}},
        "b": {"c": {"b.py"}},
        "c": {"a": {"c.py"}},
        "d": {"a": {"d.py"}},
    }
    assert [line.split(" ", 1)[0] for line in cycles(graph)] == ["a", "b", "c"]


def test_imports_in_functions_count_and_those_for_type_checkers_do_not():
    tree = ast.parse(
        "from sordino import weigh\n"
        "if TYPE_CHECKING:\n    from sordino.runs import job\n"
        "def f():\n    import sordino.report\n    from sordino.nn.mlp import mlp\n"
    )
    assert list(imported(tree)) == ["sordino.weigh", "sordino.report", "sordino.nn.mlp"]


def test_the_door_imports_nothing_above_it():
    above = {room: files for room, files in rooms()["door"].items() if room not in BELOW_THE_DOOR}
    assert not above


PAGE = (ROOT / "docs" / "architecture.md").read_text()


def listed(tree: str) -> set[str]:
    """The modules that an indented tree names, as paths: `room/` opens a package, `file.py` is a module of it."""
    packages: list[tuple[int, str]] = []
    found = set()
    for line in tree.splitlines():
        entry = re.match(r"( +)(\w+/|\w+\.py)(\s|$)", line)
        if entry is None:
            continue
        depth, name = len(entry[1]), entry[2]
        packages = [(outer, package) for outer, package in packages if outer < depth]
        if name.endswith("/"):
            packages.append((depth, name))
        else:
            found.add("".join(package for _, package in packages) + name)
    return found


def test_the_architecture_page_names_every_module_under_its_package():
    tree = PAGE[PAGE.index("## Tree") : PAGE.index("## Protocols")]
    modules = {path for path in (ROOT / "sordino").rglob("*.py") if path.name != "__init__.py"}
    # A noun that is added has its line in docs/claims.md, which tests/test_declared.py asks for, and needs no second one.
    nouns = {path for path in modules if "\nDECLARED = " in path.read_text()}
    named = {ROOT / name for name in listed(tree) if name.startswith("sordino/")}
    assert sorted(modules - nouns - named) == []  # not on the page
    assert sorted(named - modules) == []  # on the page and not there


def test_a_tree_is_read_by_its_indentation():
    tree = "    a/\n      b/      x\n        c.py  y\n      d.py    a text.py\n    e/\n      f.py"
    assert listed(tree) == {"a/b/c.py", "a/d.py", "e/f.py"}
