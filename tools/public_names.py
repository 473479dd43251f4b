"""Writes the stubs `__init__.pyi`, which tell type checkers the names resolved on first use.

python -m tools.public_names            writes them; `make names` does this
python -m tools.public_names --check    only says whether they are what they should be; a test does this
"""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import isclass
from pathlib import Path
from types import ModuleType

import sordino
from sordino.registry import Declaration

ROOT = Path(__file__).parents[1]
HEAD = "# Written by `make names`: change the declarations, not this file.\n"


def render_stubs() -> dict[Path, str]:
    """Returns the content of every stub, by its path."""
    packages = [import_module(f"sordino.{name}") for name in sordino._DECLARING]
    found = {_stub_path(package): HEAD + _package_stub(package) for package in packages}
    return {_stub_path(sordino): HEAD + _top_stub(packages), **found}


def _stub_path(package: ModuleType) -> Path:
    return Path(str(package.__file__)).with_suffix(".pyi")


def _package_stub(package: ModuleType) -> str:
    """Returns the stub of a package of building blocks."""
    public_values = {name: vars(package)[name] for name in package.__all__}
    classes = {name: value for name, value in public_values.items() if isclass(value)}
    lines = {f"from {value.__module__} import {name} as {name}" for name, value in classes.items()}
    lines |= {f"from {Declaration.__module__} import Declaration as Declaration"}
    return "\n".join([*sorted(lines), "", "DECLARATIONS: tuple[Declaration, ...]", ""])


def _top_stub(packages: list[ModuleType]) -> str:
    """Returns the stub of `sordino` itself."""
    nouns = {noun for package in packages for one in package.DECLARATIONS for noun in one.classes}
    lines = [f"from {noun.__module__} import {noun.__name__} as {noun.__name__}" for noun in nouns]
    lines += [
        f"from sordino.{home} import {name} as {name}" for home, names in sordino._NAMES.items() for name in names
    ]
    lines += [f"from sordino import {name} as {name}" for name in sordino._MODULES]
    lines += ["from sordino.version import __version__ as __version__"]
    return "\n".join([*sorted(lines), ""])


def main(arguments: list[str]) -> int:
    """Writes or checks the stubs; returns 1 if `--check` finds one that is out of date."""
    stale = {path: text for path, text in render_stubs().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        if "--check" not in arguments:
            path.write_text(text)
        print(path.relative_to(ROOT))
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
