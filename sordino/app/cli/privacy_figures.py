"""Figures of a run's privacy: δ(ε), and what the best attack can do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sordino.accounting import PLD, Tradeoff
from sordino.events import Event
from sordino.ledger.claims import describe_event, round_up

_DOTS_PER_INCH = 160
_DELTA_REACH = 1e-3
"""The δ axis goes this much further down than the δ asked for."""


@contextmanager
def _open_figure(path: Path, event: Event) -> Iterator[Any]:
    """Yields axes in the common style of privacy figures and writes the figure to a file afterwards."""
    import matplotlib as mpl

    # The backend is chosen before pyplot is loaded: the usual one would look for a screen, which a server lacks.
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    # Text stays text in the SVG, so that it can be searched and read aloud; the style ends with the block.
    look: Any = {"svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False, "font.size": 9}
    with plt.rc_context(look):
        figure, axes = plt.subplots(figsize=(5.4, 3.8), layout="constrained")
        yield axes
        # The caller has drawn by now; title and grid are the same in all figures.
        axes.set_title(describe_event(event), fontsize=9, loc="left")
        axes.grid(alpha=0.25)
        figure.savefig(path, dpi=_DOTS_PER_INCH)
        # Pyplot keeps every figure that is not closed, with its memory.
        plt.close(figure)


def draw_privacy_profile(event: Event, delta: float, path: Path) -> None:
    """Draws the privacy figure of δ(ε), with ε at the δ asked for."""
    import numpy as np

    # A figure needs three digits, which takes a fraction of the time.
    method = PLD(tolerance=3e-4)
    epsilon, largest_epsilon = method.epsilon(event, delta), method.epsilon(event, delta * _DELTA_REACH)
    grid = np.linspace(0, largest_epsilon if math.isfinite(largest_epsilon) else 10.0, 120)
    with _open_figure(path, event) as axes:
        axes.semilogy(grid, np.maximum(method.profile(event)(grid), 1e-300), color="#1f6f8b", linewidth=2)
        axes.set(xlabel="ε", ylabel="δ (upper bound)", ylim=(delta * _DELTA_REACH, 1), xlim=(0, None))
        if math.isfinite(epsilon):
            axes.plot([epsilon], [delta], "o", color="#c8553d")
            axes.annotate(
                f"ε = {round_up(epsilon)} at δ = {delta:g}",
                (epsilon, delta),
                xytext=(8, 8),
                textcoords="offset points",
            )


def draw_tradeoff(event: Event, curve: Tradeoff, path: Path) -> None:
    """Draws the privacy figure of the pairs of errors that no attack can stay below."""
    import numpy as np

    grid = np.linspace(0, 1, 401)
    with _open_figure(path, event) as axes:
        # Below the curve no attack can be.
        axes.fill_between(grid, curve(grid), alpha=0.12, color="#1f6f8b", linewidth=0)
        axes.plot(grid, curve(grid), color="#1f6f8b", linewidth=2, label="the best attack on this run")
        axes.plot(grid, 1 - grid, color="grey", linewidth=1, linestyle=":", label="guessing")
        axes.set(xlabel="false-positive rate", ylabel="false-negative rate", xlim=(0, 1), ylim=(0, 1))
        axes.set_aspect("equal")
        axes.legend(frameon=False)
