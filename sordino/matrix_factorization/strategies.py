"""Strategies of correlated noise: which matrix C the noise of a run is factored by.

Step t of a phase releases g_t + σ (C⁻¹ Z)_t, which is C G + σ Z read through C⁻¹. All strategies here are lower
triangular Toeplitz matrices with c_0 = 1 whose coefficients are non-negative and do not rise, so that the worst pattern of
participation is known (`participation.py`).

    Banded(b)          C has b bands; needs the last b − 1 noise vectors, or makes them again
    InverseBanded(b)   C⁻¹ has b bands (BISR, Kalinin, McMahan, Upadhyay & Lampert 2025, arXiv:2505.12128); keeps nothing
    Buffered(θ, ω)     c_k = Σ ω_i θ_i^(k−1) (BLT, McMahan et al. 2024, arXiv:2404.16706); one vector per buffer

Only banded matrices gain from random draws: a record must not come back within b steps, which `CyclicPoisson` with at
least b groups guarantees. The others are for a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from sordino import validate
from sordino.matrix_factorization.participation import is_non_increasing, toeplitz_sensitivity
from sordino.matrix_factorization.toeplitz import (
    Series,
    inverse_square_root_coefficients,
    invert_series,
    square_root_coefficients,
)
from sordino.matrix_factorization.workloads import Error, Workload, error_of, optimise_bands


@runtime_checkable
class Strategy(Protocol):
    """A factorisation of the noise of a phase."""

    kind: ClassVar[str]

    @property
    def vectors(self) -> int:
        """How many vectors are combined to the noise of one step."""
        ...

    def encoder(self, steps: int) -> Series:
        """Returns the first column of C for a phase of so many steps; zeros at its end may be left out."""
        ...

    def decoder(self, steps: int) -> Series:
        """Returns the first column of C⁻¹ for a phase of so many steps; zeros at its end may be left out."""
        ...

    def bands_in(self, steps: int) -> int:
        """Returns the number of non-zero diagonals of C in a phase of so many steps."""
        ...

    def describe(self) -> tuple[Any, ...]:
        """Returns the strategy as numbers and text, from which `strategy_from` makes an equal one."""
        ...


def sensitivity_of(
    strategy: Strategy, steps: int, separation: int | None = None, participations: int | None = None
) -> float:
    """Returns the sensitivity of a strategy C of correlated noise: how far one record moves C G in a phase where it
    comes back after at least `separation` steps.

    Args:
        strategy: which C.
        steps: how many steps the phase has.
        separation: the fewest steps from one use of a record to the next; by default it is used once.
        participations: the most uses of a record; as many as fit by default.

    Examples:
        >>> round(sensitivity_of(Banded(1000), steps=1000), 6)
        1.806932

    """
    return toeplitz_sensitivity(strategy.encoder(steps), steps, separation or steps, participations)


def error_in(
    strategy: Strategy, workload: Workload, separation: int | None = None, participations: int | None = None
) -> Error:
    """Returns the error that the correlated noise of a strategy leaves in the parameters, at a sensitivity of 1.

    Examples:
        >>> round(error_in(InverseBanded(16), Workload(1000)).root_mean_square, 3)
        5.045

    """
    steps = workload.steps
    sensitivity = sensitivity_of(strategy, steps, separation, participations)
    return error_of(strategy.decoder(steps), workload, sensitivity)


@dataclass(frozen=True)
class Banded:
    """C with `bands` diagonals: by default those of the square root of the prefix sums.

    Args:
        bands: diagonals of C. One is plain, uncorrelated noise.
        coefficients: of C, beginning with 1, if they are others; see `Banded.for_workload`.

    Privacy:
        A record that comes back after at least `bands` steps meets columns of C that share no row.

    Examples:
        >>> Banded(3).encoder(5).tolist()
        [1.0, 0.5, 0.375]

    """

    bands: int
    coefficients: tuple[float, ...] = ()
    kind: ClassVar[str] = "banded"

    def __post_init__(self) -> None:
        """Validates the number of bands and the coefficients."""
        object.__setattr__(self, "bands", validate.count("bands", self.bands))
        given = tuple(
            validate.number("coefficients", value)
            for value in validate.sequence("coefficients", self.coefficients, "numbers")
        )
        # Coefficients are optional: without them they follow from the number of bands.
        if given:
            if len(given) != self.bands:
                raise ValueError(f"coefficients has {len(given)} values: needs one for each of the {self.bands} bands")
            check_coefficients(given)
        object.__setattr__(self, "coefficients", given)

    @classmethod
    def for_workload(cls, bands: int, workload: Workload) -> Banded:
        """Returns the coefficients with the smallest RMSE on a workload: momentum, weight decay, learning rates."""
        found = optimise_bands(bands, workload)
        return cls(len(found), found)

    @property
    def vectors(self) -> int:
        """As many as bands."""
        return self.bands

    def encoder(self, steps: int) -> Series:
        """Returns the coefficients of the banded strategy's matrix C."""
        if self.coefficients:
            return np.asarray(self.coefficients[:steps])
        return square_root_coefficients(min(self.bands, steps))

    def decoder(self, steps: int) -> Series:
        """Returns the coefficients of C⁻¹, which has as many bands as there are steps."""
        return invert_series(self.encoder(steps), steps)

    def bands_in(self, steps: int) -> int:
        """Returns the number of bands."""
        return min(self.bands, steps)

    def describe(self) -> tuple[Any, ...]:
        """Returns the kind, the number of bands, and the coefficients if they were given."""
        return (self.kind, self.bands, *([self.coefficients] if self.coefficients else []))


@dataclass(frozen=True)
class InverseBanded:
    """C⁻¹ with `bands` diagonals: those of the inverse square root of the prefix sums.

    The noise of a step is a combination of the last `bands` independent noise vectors, which are made again from the key,
    so that nothing is kept.

    Args:
        bands: diagonals of C⁻¹. One is plain, uncorrelated noise.

    Privacy:
        C itself is full, so it needs a fixed order; draws by coins are refused.

    Examples:
        >>> InverseBanded(4).decoder(5).tolist()
        [1.0, -0.5, -0.125, -0.0625]

    """

    bands: int
    kind: ClassVar[str] = "inverse-banded"

    def __post_init__(self) -> None:
        object.__setattr__(self, "bands", validate.count("bands", self.bands))

    @property
    def vectors(self) -> int:
        """As many as bands."""
        return self.bands

    def encoder(self, steps: int) -> Series:
        """Returns upper bounds on the coefficients of C for the strategy whose inverse is banded; each is above its
        coefficient by less than 1e-10 of it.

        With C⁻¹ = 1 − Σ α_k x^k, α_k > 0, they obey c_t = Σ_{k=1}^{b−1} α_k c_{t−k}. They do not rise: the first b are
        those of the full square root, which fall, and from there on the differences c_{t+1} − c_t obey the same
        recursion with positive weights. Each step of the recursion rounds at most b + 1 times.
        """
        solved = invert_series(self.decoder(steps), steps)
        raised = solved * (1 + (self.bands_in(steps) > 1) * (min(self.bands, steps) + 1) * np.arange(steps) * 2.0**-52)
        return np.minimum.accumulate(raised)

    def decoder(self, steps: int) -> Series:
        """Returns the coefficients of C⁻¹."""
        return inverse_square_root_coefficients(min(self.bands, steps))

    def bands_in(self, steps: int) -> int:
        """Returns the number of steps: C is full, unless there is only one band."""
        return 1 if self.bands == 1 else steps

    def describe(self) -> tuple[Any, ...]:
        """Returns the kind and the number of bands."""
        return (self.kind, self.bands)


@dataclass(frozen=True)
class Buffered:
    """C with coefficients c_0 = 1 and c_k = Σ_i ω_i θ_i^(k−1): noise from a few buffers, for a run of any length.

    Args:
        decays: θ_i, between 0 and 1: how much of a buffer stays from one step to the next.
        weights: ω_i, positive: how much of a buffer is taken back. Their sum is at most 1.

    Privacy:
        C is full, so it needs a fixed order; draws by coins are refused.

    Examples:
        >>> Buffered((0.5,), (0.25,)).encoder(4).tolist()
        [1.0, 0.25, 0.125, 0.0625]

    """

    decays: tuple[float, ...]
    weights: tuple[float, ...]
    kind: ClassVar[str] = "buffered"

    def __post_init__(self) -> None:
        """Validates decays and weights, so that coefficients do not rise."""
        decays = tuple(
            validate.number("decays", value) for value in validate.sequence("decays", self.decays, "numbers")
        )
        weights = tuple(
            validate.number("weights", value) for value in validate.sequence("weights", self.weights, "numbers")
        )
        # Each buffer has a decay and a weight.
        if not decays or len(decays) != len(weights):
            raise ValueError(f"{len(decays)} decays and {len(weights)} weights: need as many, and at least one")
        if not all(0 < value < 1 for value in decays) or not all(value > 0 for value in weights):
            raise ValueError(f"decays={decays}, weights={weights}: decays must lie in (0, 1), weights above 0")
        # The first coefficient is 1 and the next is Σ weights, so a sum of at most 1 keeps coefficients from rising.
        if math.fsum(weights) > 1:
            raise ValueError(f"weights={weights}: must add up to at most 1, so that coefficients do not rise")
        object.__setattr__(self, "decays", decays)
        object.__setattr__(self, "weights", weights)

    @classmethod
    def for_steps(cls, buffers: int, steps: int) -> Buffered:
        """Returns the buffered strategy whose coefficients are nearest to the square root's over `steps` steps.

        The decays are spread so that their memories last from one step to all of them; the weights are the best
        non-negative ones.
        """
        from scipy.optimize import nnls  # late, because only this needs it

        buffers, steps = validate.count("buffers", buffers), validate.count("steps", steps, least=2)
        # Memories from short to as long as the run, in equal ratios.
        memories = np.geomspace(1.5, max(2.0, float(steps)), buffers)
        decays = 1 - 1 / memories
        powers = decays[None, :] ** np.arange(steps - 1)[:, None]
        wanted = square_root_coefficients(steps)[1:]
        # Near coefficients matter as much as far ones, relative to their size.
        weights, _ = nnls(powers / wanted[:, None], np.ones(steps - 1))
        # Weights that add up to more than a half would make the second coefficient larger than the square root's.
        weights *= min(1.0, 0.5 / weights.sum())
        kept = weights > 0
        return cls(tuple(map(float, decays[kept])), tuple(map(float, weights[kept])))

    @property
    def vectors(self) -> int:
        """One for each buffer, and the new one."""
        return len(self.decays) + 1

    def encoder(self, steps: int) -> Series:
        """Returns the coefficients of C."""
        powers = np.asarray(self.decays)[None, :] ** np.arange(max(0, steps - 1))[:, None]
        return np.concatenate(([1.0], np.minimum.accumulate(powers @ np.asarray(self.weights))))[:steps]

    def decoder(self, steps: int) -> Series:
        """Returns the coefficients of C⁻¹."""
        return invert_series(self.encoder(steps), steps)

    def bands_in(self, steps: int) -> int:
        """Returns the number of steps: C is full."""
        return steps

    def describe(self) -> tuple[Any, ...]:
        """Returns the kind, the decays and the weights."""
        return (self.kind, self.decays, self.weights)


STRATEGIES: tuple[type[Any], ...] = (Banded, InverseBanded, Buffered)


def strategy_from(description: Sequence[Any]) -> Strategy:
    """Returns the strategy of correlated noise that `describe` described.

    Raises:
        ValueError: if there is no strategy of that kind, or if its numbers are not those of one.

    """
    # Only kinds that are known here are built, whatever a file says.
    kinds = {each.kind: each for each in STRATEGIES}
    kind, *numbers = description if description else [""]
    if kind not in kinds:
        raise ValueError(f"strategy {kind!r}: must be one of {', '.join(sorted(kinds))}")
    try:
        made: Strategy = kinds[kind](*(tuple(n) if isinstance(n, list | tuple) else n for n in numbers))
    except TypeError as wrong:
        raise ValueError(f"strategy {kind!r} with {len(numbers)} numbers: {wrong}") from wrong
    return made


def check_coefficients(coefficients: Sequence[float]) -> None:
    """Raises ValueError for coefficients of a strategy's matrix that do not begin with 1, rise, or are negative.

    For them the worst pattern of participation is not known, and the noise could be too small.
    """
    if coefficients[0] != 1:
        raise ValueError(f"coefficients begin with {coefficients[0]}: must begin with 1")
    if not is_non_increasing(np.asarray(coefficients)):
        raise ValueError(
            "the coefficients rise, or one of them is negative.\nThe worst pattern of participation is known only for "
            "coefficients that are non-negative and do not rise: give such, or use Banded.for_workload."
        )
