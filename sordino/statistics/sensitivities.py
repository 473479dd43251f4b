"""Global and local sensitivity of example queries: how far one record moves an answer.

    global   the most over all data sets of n records in [low, high]         what noise must be in proportion to
    local    the most for the data at hand                                    may be much less, and tells about them

Privacy: noise in proportion to the local sensitivity has no guarantee: how much there is depends on the records. For
the median of data all at one place the local sensitivity is 0 and the answer would be told exactly; one record more,
and it is not. The queries here are for teaching; `Mean`, `Count` and `ClippedSum` release with the global one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sordino import validate


@dataclass(frozen=True)
class ExampleQuery:
    """A number asked of a column of numbers; it never falls when a record is raised.

    Args:
        of: the number asked of the column.
        widest: the most that it can move for n numbers between two bounds.

    Examples:
        >>> ExampleQuery(sum, lambda n, low, high: high - low).of([1.0, 2.0])
        3.0

    """

    of: Callable[[Sequence[float]], float]
    widest: Callable[[int, float, float], float]
    """From n, low and high to the global sensitivity, in closed form."""


EXAMPLE_QUERIES: Mapping[str, ExampleQuery] = {
    "count": ExampleQuery(lambda x: float(len(x)), lambda n, low, high: 1.0),
    "sum": ExampleQuery(lambda x: float(np.sum(x)), lambda n, low, high: max(abs(low), abs(high))),
    # Without x_i the mean moves by (x_i − mean of the others) / n.
    "mean": ExampleQuery(lambda x: float(np.mean(x)), lambda n, low, high: (high - low) / n),
    # All but one at one end, and that one goes.
    "maximum": ExampleQuery(lambda x: float(np.max(x)), lambda n, low, high: high - low),
    "minimum": ExampleQuery(lambda x: float(np.min(x)), lambda n, low, high: high - low),
    # Half at either end: one more or less puts it from the middle to an end.
    "median": ExampleQuery(lambda x: float(np.median(x)), lambda n, low, high: (high - low) / 2),
}
"""The example queries by name."""

LEAST = 2
"""The least number of records, so that some are left without one."""


def global_sensitivity(query: str, n: int, low: float, high: float) -> float:
    """Returns the global sensitivity of an example query: how far one record added or removed can move the answer, over
    all data sets of n records in [low, high].

    >>> global_sensitivity("mean", 10, 0.0, 100.0), global_sensitivity("median", 10, 0.0, 100.0)
    (10.0, 50.0)
    """
    example, (low, high) = _find_example_query(query), _check_range(low, high)
    return example.widest(validate.count("n", n, least=LEAST), low, high)


def local_sensitivity(query: str, data: Sequence[float], low: float, high: float) -> float:
    """Returns the local sensitivity of an example query: how far one record added or removed moves the answer on these
    data, by trying. It is not private itself.

    >>> local_sensitivity("median", [23.0, 31.0, 38.0, 44.0, 71.0], 0.0, 100.0)
    3.5
    """
    # By trying all neighbours; this is for teaching and looks at the data without noise.
    example, (low, high) = _find_example_query(query), _check_range(low, high)
    given = [validate.number("data", value) for value in validate.sequence("data", data, "numbers")]
    if len(given) < LEAST or not all(low <= value <= high for value in given):
        raise ValueError(f"{len(given)} records: need at least {LEAST}, all within [{low:g}, {high:g}]")
    # Removing: every record once.
    without = [[*given[:k], *given[k + 1 :]] for k in range(len(given))]
    # The answer never falls as a record rises, so of all that could be added one at an end moves it most.
    neighbours = [*without, [*given, low], [*given, high]]
    return max(abs(example.of(given) - example.of(other)) for other in neighbours)


def _find_example_query(query: str) -> ExampleQuery:
    if not isinstance(query, str) or query not in EXAMPLE_QUERIES:
        raise ValueError(f"query={query!r}: there is {', '.join(EXAMPLE_QUERIES)}")
    return EXAMPLE_QUERIES[query]


def _check_range(low: float, high: float) -> tuple[float, float]:
    """Returns the range of the records that a sensitivity is computed for; raises ValueError unless low < high."""
    low, high = validate.number("low", low), validate.number("high", high)
    if not low < high:
        raise ValueError(f"low={low:g}, high={high:g}: need low < high")
    return low, high
