"""Queries, which say what is asked of a lot; one query per file.

The classes come from the files that declare them (`sordino/registry.py`); type checkers read `__init__.pyi`, which
`make names` writes from the same declarations.
"""

from sordino.queries.noisy_sum import Query
from sordino.registry import declarations, nouns

__all__ = ["DECLARATIONS", "Query"]

DECLARATIONS = declarations(__name__, __path__)
__all__ += nouns(DECLARATIONS)
globals().update(nouns(DECLARATIONS))
