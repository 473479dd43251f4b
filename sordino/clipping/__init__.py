"""Clipping rules, which decide how much each record counts; one rule per file.

The classes come from the files that declare them (`sordino/registry.py`); type checkers read `__init__.pyi`, which
`make names` writes from the same declarations.
"""

from sordino.clipping.clipping_rule import Rule, Weigher
from sordino.clipping.noise_shares import Isotropic, Multipliers
from sordino.registry import classes_by_name, find_declarations

__all__ = ["DECLARATIONS", "Isotropic", "Multipliers", "Rule", "Weigher"]

DECLARATIONS = find_declarations(__name__, __path__)
__all__ += classes_by_name(DECLARATIONS)
globals().update(classes_by_name(DECLARATIONS))
