"""What the noise of all steps does to a model: the workload, and the error that a strategy leaves in it.

The parameters after step t are a linear function of the gradients that were released, θ_t = θ_0 − Σ_s A[t, s] g_s. Plain
SGD has prefix sums, A[t, s] = η for s ≤ t; momentum, weight decay and a learning-rate schedule have other matrices. The
noise in θ_t is row t of A C⁻¹ Z, so

    max error = sens · max_t ‖(A C⁻¹)[t, :]‖        RMSE = sens · √(‖A C⁻¹‖²_F / n)

for noise of σ = 1 in every coordinate, where the multiplier that a given ε needs is in proportion to the sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino import validate
from sordino.matrix_factorization.toeplitz import Series, square_root_coefficients


@dataclass(frozen=True)
class Workload:
    """What the optimizer makes of the released gradients: SGD with momentum, decoupled weight decay and a schedule.

        v_t = m v_{t−1} + g_t        θ_t = (1 − η_t λ) θ_{t−1} − η_t v_t

    Args:
        steps: how many steps the phase has.
        momentum: m.
        weight_decay: λ.
        learning_rates: η_t for every step; 1 at every step by default, because only ratios matter.

    Examples:
        >>> Workload(3).matrix().tolist()
        [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]

    """

    steps: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    learning_rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Validates the numbers of the optimizer."""
        object.__setattr__(self, "steps", validate.count("steps", self.steps))
        object.__setattr__(self, "momentum", validate.non_negative("momentum", self.momentum))
        object.__setattr__(self, "weight_decay", validate.non_negative("weight_decay", self.weight_decay))
        # One learning rate per step, or none for a constant one.
        rates = tuple(
            validate.non_negative("learning_rates", rate)
            for rate in validate.sequence("learning_rates", self.learning_rates, "numbers")
        )
        if rates and len(rates) != self.steps:
            raise ValueError(f"learning_rates has {len(rates)} values: needs one for each of the {self.steps} steps")
        object.__setattr__(self, "learning_rates", rates)

    @property
    def is_prefix_sum(self) -> bool:
        """Whether every row just adds up all gradients so far, for which sums over rows have a short form."""
        return not (self.momentum or self.weight_decay or self.learning_rates)

    def matrix(self) -> NDArray[np.float64]:
        """Returns the matrix A of the workload, lower triangular: row t says how much each gradient counts in the
        parameters after step t.
        """
        rates = self.learning_rates or (1.0,) * self.steps
        made = np.zeros((self.steps, self.steps))
        # Follow the contribution of every gradient through the optimizer's two states.
        velocity, position = np.zeros(self.steps), np.zeros(self.steps)
        for t, rate in enumerate(rates):
            velocity *= self.momentum
            velocity[t] += 1.0
            position = (1.0 - rate * self.weight_decay) * position + rate * velocity
            made[t] = position
        return made


@dataclass(frozen=True)
class Error:
    """The error of a strategy on a workload, for noise of σ = 1 on every coordinate and a clipping bound of 1."""

    sensitivity: float
    largest: float
    """Largest standard deviation of a coordinate after any step, times the sensitivity."""
    root_mean_square: float
    """Root mean square over the steps, times the sensitivity."""


def error_of(decoder: Series, workload: Workload, sensitivity: float) -> Error:
    """Returns the error of a strategy whose inverse C⁻¹ has these Toeplitz coefficients."""
    squared = squared_row_norms(decoder, workload)
    return Error(sensitivity, sensitivity * math.sqrt(squared.max()), sensitivity * math.sqrt(squared.mean()))


def squared_row_norms(decoder: Series, workload: Workload) -> Series:
    """Returns ‖(A C⁻¹)[t, :]‖² of a workload A for every step t: the variance of the noise in the parameters after step
    t.
    """
    steps = workload.steps
    held = np.zeros(steps)
    held[: min(steps, len(decoder))] = decoder[:steps]
    if workload.is_prefix_sum:
        # A C⁻¹ is Toeplitz with the coefficients of the running sums of C⁻¹'s.
        return np.cumsum(np.cumsum(held) ** 2)
    from scipy.signal import lfilter  # late, because it brings all of scipy.stats with it

    # (A C⁻¹)[t, s] = Σ_u A[t, u] C⁻¹[u, s]: convolution with the reversed rows.
    rows = lfilter(held, [1.0], workload.matrix()[:, ::-1], axis=1)
    return np.asarray((rows**2).sum(axis=1))


def optimise_bands(bands: int, workload: Workload) -> tuple[float, ...]:
    """Returns the `bands` coefficients with the smallest RMSE on a workload at unit sensitivity, beginning with 1.

    They minimise ‖c‖² ‖A C⁻¹‖²_F, the squared error of a fixed order or of cyclic Poisson draws with at least as many
    groups as bands, over non-negative, non-increasing coefficients. Written as c_k = Σ_{j ≥ k} e_j with e ≥ 0, the
    constraint is a bound on each e_j. The gradient follows from ∂C⁻¹/∂c_k = −C⁻¹ S_k C⁻¹ for the shift S_k by k steps.
    """
    from scipy.optimize import minimize  # late, because only this needs it

    bands = min(validate.count("bands", bands), workload.steps)
    squared_error = _of_prefix_sums(workload.steps) if workload.is_prefix_sum else _of_matrix(workload.matrix())
    # Coefficients as sums of non-negative steps e from the end: they can then never rise.
    reversed_sum = np.tri(bands).T  # c = reversed_sum @ e

    def objective(e: Series) -> tuple[float, Series]:
        """Returns the objective log(‖c‖² ‖A C⁻¹‖²_F) of the bands that are best for a workload, and its gradient in e."""
        c = reversed_sum @ e
        if c[0] <= 0:
            return math.inf, np.zeros(bands)
        norm, (error, slope) = float(c @ c), squared_error(c)
        # The logarithm makes the objective independent of the scale of c and of the number of steps.
        return math.log(norm) + math.log(error), reversed_sum.T @ (2 * c / norm + slope / error)

    # Begin at the square root's coefficients, which are near the optimum for prefix sums.
    root = square_root_coefficients(bands)
    start = np.append(root[:-1] - root[1:], root[-1])
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * bands)
    c = reversed_sum @ np.maximum(found.x, 0.0)
    # An optimiser that failed must not make things worse.
    best = c if objective(found.x)[0] <= objective(start)[0] else root
    return tuple(float(value) for value in np.minimum.accumulate(best / best[0]))


def _of_matrix(workload: NDArray[np.float64]) -> Callable[[Series], tuple[float, Series]]:
    """Returns the function from c to a workload's squared error ‖A C⁻¹‖²_F and its gradient, for any workload A."""
    from scipy.signal import lfilter  # late, because it brings all of scipy.stats with it

    reversed_rows, steps = workload[:, ::-1], len(workload)

    def squared_error(c: Series) -> tuple[float, Series]:
        """Returns the squared error ‖A C⁻¹‖²_F that coefficients c leave in any workload A, and its gradient in c."""
        decoded = lfilter([1.0], c, reversed_rows, axis=1)  # B = A C⁻¹
        twice = lfilter([1.0], c, decoded, axis=1)  # H = A C⁻²
        # ∂‖B‖²/∂c_k = −2 Σ B[t, s] H[t, s + k], and a shift by k in reversed rows goes the other way.
        slope = [-2.0 * float((decoded[:, k:] * twice[:, : steps - k]).sum()) for k in range(len(c))]
        return float((decoded**2).sum()), np.array(slope)

    return squared_error


def _of_prefix_sums(steps: int) -> Callable[[Series], tuple[float, Series]]:
    """Returns the function from c to a workload's squared error ‖A C⁻¹‖²_F and its gradient, for prefix sums, where A
    C⁻¹ is Toeplitz.
    """
    from scipy.signal import lfilter  # late, because it brings all of scipy.stats with it

    ones, rows = np.ones(steps), np.arange(steps, 0.0, -1.0)  # coefficient j of a Toeplitz matrix is in n − j rows

    def squared_error(c: Series) -> tuple[float, Series]:
        """Returns the squared error ‖A C⁻¹‖²_F that coefficients c leave in the workload of prefix sums, and its
        gradient in c.
        """
        # For prefix sums all matrices are Toeplitz, so a column stands for each of them.
        decoded = lfilter([1.0], c, ones)
        twice = lfilter([1.0], c, decoded)
        weighted = rows * decoded
        slope = [-2.0 * float(weighted[k:] @ twice[: steps - k]) for k in range(len(c))]
        return float(weighted @ decoded), np.array(slope)

    return squared_error
