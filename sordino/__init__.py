"""sordino: differentially private training; ε is printed with what it rests on, or not at all.

Every name is resolved on first use: `import sordino.events` and the accountants must not pull torch in. Clipping rules,
samplers and queries are not listed here: they declare themselves in their own files (`registry.py`). Type checkers read
`__init__.pyi`, which `make names` writes from the same facts.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sordino import former_names
from sordino.version import __version__ as __version__

former_names.install()

_NAMES = {
    "ledger.claims": ("Claim", "Guarantee", "NoGuarantee"),
    "runtime_checks.lot_checks": ("Diverged",),
    "queries.calibrate_query": ("calibrate",),
    "queries.dry_run": ("dry_run",),
    "ledger.ledger": ("Ledger",),
    "ledger.voiding": ("ClaimVoided", "ClaimVoidedWarning"),
    "matrix_factorization.strategies": ("Banded", "Buffered", "InverseBanded"),
    "matrix_factorization.workloads": ("Workload",),
    "release.correlated_noise": ("Correlated",),
    "release.noise": ("Gaussian", "Laplace"),
    "release.sealed": ("Sealed",),
    "finetuning.finetune_texts": ("FineTuned", "finetune"),
    "integrations.log": ("Log",),
    "lots.lot": ("Draws", "Lot"),
    "lots.data_owners": ("Sites",),
    "lots.privacy_units": ("Unit", "Views"),
    "lots.shards": ("Shards",),
    "penalty": ("L2",),
    "private": ("Private",),
    "distributed.checkpoint_entry": ("InCheckpoint",),
    "refusal": ("Refusal",),
    "replay": ("Replay",),
    "app.runs.fit": ("fit",),
    "app.runs.trained_model": ("load",),
    "statistics": ("ask", "dry_ask"),
}
"""The module of each public name that does not declare itself."""
_DECLARING = ("clipping", "queries", "sampling")
"""Packages whose files declare classes, all of which are public names."""
_MODULES = (
    "accounting",
    "auditing",
    "diagnostics",
    "events",
    "per_sample",
    "losses",
    "nn",
    "ntk",
    "optim",
    "schedules",
    "statistics",
    *_DECLARING,
)

_HOMES = {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Returns a public name of the package, and says what to install where torch is missing."""
    try:
        return _resolve_name(name)
    # Only torch is optional here; any other missing module is a broken installation and says so itself.
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"sordino.{name} needs torch, which is not installed: pip install torch; sordino.accounting and "
            "sordino.events do without it",
            name="torch",
        ) from error


def _resolve_name(name: str) -> Any:
    """Returns what `sordino.name` stands for, an object or a module of the package; raises AttributeError for a name
    that it does not have.
    """
    # The order is from cheap to dear: names with a known home, packages, former names, and only then the search.
    if name in _HOMES:
        return getattr(import_module(f"sordino.{_HOMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"sordino.{name}")
    if former_names.current_name(f"sordino.{name}") is not None:
        return import_module(f"sordino.{name}")  # by a name of 0.2: it works, and warns
    # Clipping rules, samplers and queries declare themselves; finding them imports torch, so this comes late.
    if name[:1].isupper() and name in (
        found := _declared_classes()
    ):  # submodules, which Python looks for here too, are lower case
        return found[name]
    if name == "__all__":
        return sorted([*_HOMES, *_MODULES, *_declared_classes(), "__version__"])
    raise AttributeError(f"module 'sordino' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__getattr__("__all__"))


def _declared_classes() -> dict[str, Any]:
    """Returns by name the classes that subpackages declare, so that the package `sordino` itself has them as public
    names.
    """
    from sordino.registry import classes_by_name

    packages = [import_module(f"sordino.{name}") for name in _DECLARING]
    return classes_by_name(declaration for package in packages for declaration in package.DECLARATIONS)
