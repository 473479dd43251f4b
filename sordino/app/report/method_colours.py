"""One colour for each method, the same in all figures.

Settings of one method share its colour and differ in dashes and marks.
"""

from __future__ import annotations

from sordino.app.report.svg_figures import SERIES, SOFT

_ORDER: tuple[str, ...] = (
    "dpsgd decoupled pld exact analytic gaussian local-flat banded local-sensitivity lots",
    "sorted classical laplace strong basic local-layerwise inverse-banded global-sensitivity single-record "
    "lecture-noise red-element",
    "projected minimum moments advanced momentum global-flat fitted-bands full-batch constant-rate query-sum fewer-lots",
    "l2-inside threshold noisy-lookahead private-sorted adam transfer global-layerwise rdp laplace-itself "
    "query-mean sampled-gaussian green-element",
    "class-diverse quantile-sorted adagrad microbatches similar-length pca projected-sgd query-median",
    "median ignored printed jl attack own",
    "sgd plain driftless none theory",
    "logarithmic adamw optimistic-lookahead captured truth",
)
"""Rows by colour; two methods of a row never meet in one panel. `own` is a variant of the user's."""
REFERENCES = ("none", "theory")
"""Not methods but what they are compared with, such as a formula or guessing: always grey, told apart by dashes."""

COLOURS: dict[str, str] = {name: SERIES[number] for number, row in enumerate(_ORDER) for name in row.split()}


def colour_of(method: str) -> str:
    """Returns the colour of a method in all figures, or grey for a curve that belongs to none.

    >>> colour_of("dpsgd") == colour_of("decoupled"), colour_of("dpsgd") == colour_of("sorted")
    (True, False)
    """
    if method and method not in COLOURS:
        raise ValueError(f"method={method!r}: no colour; there is {', '.join(sorted(COLOURS))}")
    return COLOURS.get(method, SOFT)
