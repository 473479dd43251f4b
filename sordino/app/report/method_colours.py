"""One colour for each method, the same in all figures.

Settings of one method share its colour and differ in dashes and marks.
"""

from __future__ import annotations

from sordino.app.report.svg_figures import SERIES, SOFT

_ORDER: tuple[tuple[str, ...], ...] = (
    ("dpsgd", "decoupled", "pld", "exact", "analytic", "gaussian", "local-flat", "banded"),
    ("sorted", "classical", "laplace", "strong", "basic", "local-layerwise", "inverse-banded"),
    ("projected", "minimum", "moments", "advanced", "rdp", "momentum", "global-flat", "fitted-bands"),
    ("l2-inside", "threshold", "noisy-lookahead", "private-sorted", "adam", "transfer", "global-layerwise"),
    ("class-diverse", "quantile-sorted", "adagrad", "microbatches", "similar-length"),
    ("median", "ignored", "printed", "jl", "attack", "own"),
    ("sgd", "plain", "none", "theory"),
    ("logarithmic", "adamw", "optimistic-lookahead", "captured", "pca", "truth"),
)
"""Rows by colour; two of a row never meet in one panel. `own` is a variant of the user's."""

COLOURS: dict[str, str] = {name: SERIES[number] for number, row in enumerate(_ORDER) for name in row}


def colour_of(method: str) -> str:
    """Returns the colour of a method in all figures, or grey for a curve that belongs to none.

    >>> colour_of("dpsgd") == colour_of("decoupled"), colour_of("dpsgd") == colour_of("sorted")
    (True, False)
    """
    if method and method not in COLOURS:
        raise ValueError(f"method={method!r}: no colour; there is {', '.join(sorted(COLOURS))}")
    return COLOURS.get(method, SOFT)
