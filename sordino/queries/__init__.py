"""Queries, which say what is asked of a lot; one query per file.

The classes come from the files that declare them (`sordino/registry.py`); type checkers read `__init__.pyi`, which
`make names` writes from the same declarations.
"""

from sordino.queries.noisy_sum import Query
from sordino.registry import classes_by_name, find_declarations

__all__ = ["DECLARATIONS", "Query"]

DECLARATIONS = find_declarations(__name__, __path__)
__all__ += classes_by_name(DECLARATIONS)
globals().update(classes_by_name(DECLARATIONS))
