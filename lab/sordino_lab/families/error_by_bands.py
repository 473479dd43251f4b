"""Correlated noise: the error of the parameters against the number of bands, a figure of later papers.

The model is made of the sum of all released gradients. The figure draws the root mean square error that noise leaves in
this sum, over all steps, at a sensitivity of 1: what it costs in accuracy at a given price, before anything is trained.
"""

from __future__ import annotations

from sordino.app.report.panels import Panel, Series
from sordino.matrix_factorization.strategies import Banded, InverseBanded, Strategy, error_in
from sordino.matrix_factorization.workloads import Workload
from sordino_lab.experiment import Compared, Figure, Outcome
from sordino_lab.training_curves import mark_published
from sordino_lab.workbench import Workbench

STEPS = 1000
SEPARATION = 100
"""Steps from one use of a record to the next where there are ten epochs."""
ONE_EPOCH: tuple[tuple[str, Strategy, int, float], ...] = (
    ("identity", Banded(1), 1, 22.37),
    ("square root, 16 bands", Banded(16), 16, 7.137),
    ("square root, 64 bands", Banded(64), 64, 4.336),
    ("square root, whole", Banded(STEPS), STEPS, 3.102),
    ("inverse-banded, 16 bands", InverseBanded(16), 16, 5.045),
    ("inverse-banded, 64 bands", InverseBanded(64), 64, 3.426),
)
"""Words, strategy, bands, and the published RMSE of one epoch of 1,000 steps."""
WHOLE_SENSITIVITY = {1: 1.806932, 10: 9.154043}
"""Published sensitivity of the whole square root at 1,000 steps, by epochs."""


def draw_error_against_bands(bench: Workbench) -> Outcome:
    """Draws the error of correlated noise against the number of bands, for one epoch and for ten, beside what was
    published.
    """
    bands = bench.pick((1, 16, 1000), *[(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)] * 3)
    fitted = [b for b in bands if b <= bench.pick(1, 128, 128, 128)]
    workload = Workload(STEPS)

    def errors(strategies: list[Strategy], separation: int | None) -> list[float]:
        """Returns the RMSE of each strategy, where a record comes back after so many steps."""
        return [error_in(one, workload, separation).root_mean_square for one in strategies]

    # The same three families at both separations; bands are fitted for one use of a record.
    square_roots: list[Strategy] = [Banded(b) for b in bands]
    inverses: list[Strategy] = [InverseBanded(b) for b in bands]
    optimised: list[Strategy] = [Banded.for_workload(b, workload) for b in fitted]

    def lines(separation: int | None) -> list[Series]:
        """Returns the curves of the error against the number of bands: square root, inverse-banded, and bands fitted to
        the sum.
        """
        within = [b for b in fitted if separation is None or b <= separation]
        return [
            Series("square root, b bands", bands, errors(square_roots, separation), method="banded"),
            Series(
                "inverse-banded, b bands",
                bands,
                errors(inverses, separation),
                method="inverse-banded",
                variant=1,
            ),
            Series(
                "b bands, fitted to the sum",
                within,
                errors(optimised[: len(within)], separation),
                method="fitted-bands",
                variant=2,
            ),
        ]

    one_epoch, ten_epochs = lines(None), lines(SEPARATION)
    # The published values as marks. That of ten epochs follows from the published sensitivities: the rows of the
    # decoder are those of one epoch.
    marks = mark_published("published", [(b, value) for _, _, b, value in ONE_EPOCH], "printed")
    whole_of_ten = ONE_EPOCH[3][3] * WHOLE_SENSITIVITY[10] / WHOLE_SENSITIVITY[1]
    mark_of_ten = mark_published("from the published sensitivity", [(STEPS, whole_of_ten)], "printed")
    compared = [
        Compared(f"RMSE, {words}", error_in(strategy, workload).root_mean_square, value, _PLACES[words])
        for words, strategy, _, value in ONE_EPOCH
    ]
    best = min(range(len(bands)), key=lambda i: ten_epochs[0].y[i])
    return Outcome(
        [
            Panel(
                "one epoch of 1,000 steps",
                "bands b; 1 is independent noise",
                "RMSE",
                [*one_epoch, marks],
                xlog=True,
                ylog=True,
            ),
            Panel(
                "ten epochs of 100 steps",
                "bands b; 1 is independent noise",
                "RMSE",
                [*ten_epochs, mark_of_ten],
                xlog=True,
                ylog=True,
            ),
        ],
        compared,
        notes=[
            "The error is that of the sum of all gradients up to a step, root mean square over the steps, with noise of "
            "deviation 1 over a sensitivity of 1. Without amplification by sampling.",
            f"With ten epochs more bands raise the sensitivity too: the square root is best with {bands[best]} bands, "
            f"where its error is {ten_epochs[0].y[best]:.1f} and that of independent noise {ten_epochs[0].y[0]:.1f}.",
        ],
        numbers={
            "bands": list(bands),
            "one epoch, square root": [round(value, 4) for value in one_epoch[0].y],
            "one epoch, inverse": [round(value, 4) for value in one_epoch[1].y],
            "one epoch, fitted": [round(value, 4) for value in one_epoch[2].y],
            "ten epochs, square root": [round(value, 4) for value in ten_epochs[0].y],
            "ten epochs, inverse": [round(value, 4) for value in ten_epochs[1].y],
        },
    )


_PLACES = {
    words: f"from the coefficients of arXiv:{'2505.12128' if words.startswith('inverse') else '2405.13763'}"
    for words, *_ in ONE_EPOCH
}

FIGURES = {"correlated-error": Figure(draw_error_against_bands)}
