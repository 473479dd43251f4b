"""Samplers, which decide who is in a lot and say what the draw is worth; one sampler per file.

The classes come from the files that declare them (`sordino/registry.py`); type checkers read `__init__.pyi`, which
`make names` writes from the same declarations.
"""

from sordino.registry import classes_by_name, find_declarations
from sordino.sampling.record_access import Records
from sordino.sampling.sampler import Draw, Informed, Sampler

__all__ = ["DECLARATIONS", "Draw", "Informed", "Records", "Sampler"]

DECLARATIONS = find_declarations(__name__, __path__)
__all__ += classes_by_name(DECLARATIONS)
globals().update(classes_by_name(DECLARATIONS))
