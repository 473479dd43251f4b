"""The waist: which sample counts how much. One weigher per file.

The classes come from the files that declare them (`sordino/declared.py`); type checkers read `__init__.pyi`, which
`make names` writes from the same declarations.
"""

from sordino.declared import declarations, nouns
from sordino.weigh.shares import Isotropic, Multipliers
from sordino.weigh.weigher import Rule, Weigher

__all__ = ["DECLARATIONS", "Isotropic", "Multipliers", "Rule", "Weigher"]

DECLARATIONS = declarations(__name__, __path__)
__all__ += nouns(DECLARATIONS)
globals().update(nouns(DECLARATIONS))
