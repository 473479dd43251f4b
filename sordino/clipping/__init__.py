"""Clipping rules, which decide how much each record counts; one rule per file.

The classes come from the files that declare them (`sordino/registry.py`); type checkers read `__init__.pyi`, which
`make names` writes from the same declarations.
"""

from sordino.clipping.clipping_rule import Rule, Weigher
from sordino.clipping.noise_shares import Isotropic, Multipliers
from sordino.registry import declarations, nouns

__all__ = ["DECLARATIONS", "Isotropic", "Multipliers", "Rule", "Weigher"]

DECLARATIONS = declarations(__name__, __path__)
__all__ += nouns(DECLARATIONS)
globals().update(nouns(DECLARATIONS))
