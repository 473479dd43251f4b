"""Clipping rules, which decide how much each record counts; one rule per file.

The classes come from the files that declare them (`sordino/registry.py`); type checkers read `__init__.pyi`, which
`make names` writes from the same declarations.
"""

from typing import Any

from sordino.clipping.clipping_rule import ClippingRule, Rule
from sordino.clipping.noise_shares import Isotropic, Multipliers
from sordino.former_names import find_former_name
from sordino.registry import classes_by_name, find_declarations

__all__ = ["DECLARATIONS", "ClippingRule", "Isotropic", "Multipliers", "Rule"]

DECLARATIONS = find_declarations(__name__, __path__)
__all__ += classes_by_name(DECLARATIONS)
globals().update(classes_by_name(DECLARATIONS))


def __getattr__(name: str) -> Any:
    """Returns what had the given name in 0.2: the protocol of clipping rules was called `Weigher`."""
    return find_former_name(__name__, {"Weigher": "ClippingRule"}, name)
