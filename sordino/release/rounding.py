"""Rounding slack: how much further than its bound one record can move a rounded sum.

`release` raises the scale of its noise by this slack.

A chunk of n records is added up in float32, in an order that the processor's libraries choose. An addition is off by at
most u = 2⁻²⁴ of the partial sum, which is at most n·C long, so if a record's term goes through D additions

    error of a sum ≤ u · D · n · C

and one record more may change every rounding of its chunk: the errors with and without it both count. Other chunks are not
touched by it, because records are cut into chunks by their number (`loading.chunks`) and chunks are added up in float64;
noise goes on before the sum is rounded to float32, and what follows noise is free.

    slack(n) = 2 u · (DEPTH / 2) · (n + OWN),   n at least USUAL_ROWS, so that smaller chunks change nothing but memory

DEPTH: products run over at most 256 rows before they are added to the rest (product.c; 320 where torch's libraries compute
them, each in an order of its own: `add_rows`, `add_outer`; bf16_product.c adds up 256 positions of one record, then 512 of
as many as have them). Half of it is what a term goes through on average in the worst order. The largest error found on
rows made for it (equal, growing, alternating, one large and many small) is a quarter of this, the largest difference by a
record a twentieth (tests/honesty_numerics/test_sums.py).
OWN covers the rounding of a record's own norm and terms, which `formulas.part.raised` keeps within 64 times its length.
"""

from __future__ import annotations

import torch

from sordino.refusal import Refusal

DEPTH = 256
"""Additions of float32 that a term may go through."""
OWN_ROUNDING_ROWS = 16
"""Records' worth of rounding in a record's own norm and terms."""
USUAL_ROWS = 304
"""Records added up at once where nobody asked for more: half a percent more noise."""
MOST_ROWS = 1 << 14
"""Records added up in float32 at once: a quarter more noise. Beyond, the model of the errors has not been tried."""


def rounding_slack(rows: int, dtype: torch.dtype = torch.float32) -> float:
    """Returns the relative slack that rounding needs in sums of at most `rows` records at once in this type.

    >>> f"{rounding_slack(256):.2%}"
    '0.42%'
    """
    # Longer sums would need more than a quarter of the bound; they must be cut into smaller batches.
    if rows > MOST_ROWS:
        raise Refusal(
            f"{rows} records were added up at once.\n"
            f"In float32 a sum of more than {MOST_ROWS} is rounded by more than a quarter of the bound.\n"
            f"Give draws(physical_batch=…) at most {MOST_ROWS}; 304 or fewer cost 0.5 % more noise."
        )
    # Each of the additions rounds by at most half a unit in the last place, of float32 at least.
    unit = torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 2
    return float(unit * DEPTH * (rows + OWN_ROUNDING_ROWS))
