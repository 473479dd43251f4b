"""What kernels are made of: a Python file for every C file, all ctypes there, nothing above them imported."""

import ast
from pathlib import Path

import pytest

import sordino
from sordino.kernels import build

ROOT = Path(sordino.__file__).parent
KERNELS = ROOT / "kernels"


def imported(path: Path) -> set[str]:
    """The modules a file names in its imports, at any depth of it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return names


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.py")), ids=lambda path: path.name)
def test_kernels_import_nothing_of_the_package_but_kernels(path):
    own = {name for name in imported(path) if name.split(".")[0] == "sordino"} - {"sordino"}
    assert all(name.startswith("sordino.kernels") for name in own)


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.c")), ids=lambda path: path.name)
def test_every_c_file_is_one_library_with_one_binding(path):
    assert [library.name for library in build.LIBRARIES if path.name == library.sources[0]] == [path.stem]
    # noise.py is the library's noise. The threads are bound in abi.py, which every other binding imports.
    shared = {"threads.c": "abi.py"}
    names = [shared.get(path.name, f"{path.stem}.py"), f"{path.stem}_kernel.py"]
    bindings = [path.with_name(name) for name in names if path.with_name(name).exists()]
    assert len(bindings) == 1


def test_a_library_is_stale_when_anything_it_includes_changes():
    """The hash covers every file that is included, and no other."""
    for library in build.LIBRARIES:
        seen, more = set(), [library.sources[0]]
        while more:
            name = more.pop()
            if name not in seen:
                seen.add(name)
                lines = (KERNELS / name).read_text().splitlines()
                # A header of noise is included by its name or, once for each level, as FUNCTIONS_OF_LEVEL.
                included = ('#include "', '#define FUNCTIONS_OF_LEVEL "')
                more += [line.split('"')[1] for line in lines if line.startswith(included)]
        assert set(library.sources) == seen, library.name


def test_ctypes_is_used_in_kernels_alone():
    users = {path.relative_to(ROOT).parts[0] for path in ROOT.rglob("*.py") if "ctypes" in imported(path)}
    assert users == {"kernels"}
