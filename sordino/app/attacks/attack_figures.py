"""Figures of attacks: ROC curves under the ceilings of the claims, and inverted classes in rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from sordino.app.attacks.membership_inference import Membership
from sordino.app.report import svg_figures
from sordino.app.report.svg_figures import DASHES, SERIES, SOFT

_SMALLEST_RATE = 1e-3
_FEWEST_FALSE_POSITIVES = 2
"""False positives below which a rate is not drawn."""


def draw_roc_curves(memberships: Sequence[Membership], path: Path) -> None:
    """Draws the figure of membership attacks: the ROC curve of each run's strongest attack by area, on log axes, and
    what its claim allows.
    """
    # Rates that rest on one or two false positives are not drawn.
    smallest_rate = max(
        _SMALLEST_RATE,
        _FEWEST_FALSE_POSITIVES / min(len(roc.others) for one in memberships for roc in one.rocs.values()),
    )
    grid = np.geomspace(smallest_rate, 1, 200)
    with svg_figures.open_figure() as (made, (axes,)):
        for look, membership in enumerate(memberships):
            # The strongest attack of each run in full, its ceiling in dashes of the same colour.
            name = max(membership.rocs, key=lambda name: membership.rocs[name].area)
            false_positive_rates, true_positive_rates = membership.rocs[name].curve()
            claim = "no guarantee" if membership.epsilon is None else f"ε = {membership.epsilon:.2g}"
            axes.step(
                false_positive_rates,
                true_positive_rates,
                where="post",
                color=SERIES[look],
                label=f"{claim}: {name}",
                linewidth=1.8,
            )
            if membership.ceiling is not None:
                power = membership.ceiling.power(grid)
                axes.plot(
                    grid, power, color=SERIES[look], linestyle=DASHES[1], linewidth=1.3, label=f"{claim}: ceiling"
                )
        # Both axes are logarithmic, because what matters happens at few false positives.
        axes.plot(grid, grid, color=SOFT, linewidth=1.2, linestyle=":", label="guessing")
        axes.set(xscale="log", yscale="log", xlim=(smallest_rate, 1), ylim=(smallest_rate, 1.05))
        axes.set(xlabel="false-positive rate", ylabel="true-positive rate")
        axes.legend(loc="lower right", fontsize=8)
        svg_figures.write_png(made, path)


def draw_inverted_classes(rows: Sequence[tuple[str, Tensor]], path: Path) -> None:
    """Draws the figure of model inversion attacks: a row for each run, with a picture for each class."""
    with svg_figures.open_figure(len(rows)) as (made, listed):
        made.set_size_inches(6.4, 0.9 * len(rows))
        made.subplots_adjust(0.01, 0.01, 0.99, 0.86, hspace=0.35)
        for axes, (name, images) in zip(listed, rows, strict=True):
            # All classes of a run side by side, with a white line between them.
            strip = np.concatenate([np.pad(image.numpy(), 1, constant_values=1.0) for image in images], axis=1)
            axes.imshow(strip, cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="equal")
            axes.grid(visible=False)
            axes.set(xticks=[], yticks=[])
            axes.set_title(name, fontsize=9, loc="left")
            for spine in axes.spines.values():
                spine.set_visible(False)
        svg_figures.write_png(made, path)
