"""What share of a step will be noise, from public numbers alone, and what to change where a run would walk at random.

A step of DP-SGD is g + z: g is the mean of the clipped gradients, at most C long, and z is noise of length

    ‖z‖ ≈ s √d,    s = σC/L    (σ the noise multiplier, L the expected lot, d the number of trained coordinates)

Over T steps what is learnt adds up like T ‖g‖ as long as the steps agree, and noise like √T s√d. So

    signal to noise of the run  =  √T ‖g‖ / (s √d)

‖g‖ is not public. Records disagree, so it is far below C: `TYPICAL_SIGNAL` says what to expect. During the run
`SignalToNoise` measures it, from released gradients.

Privacy: every number here is public before the first draw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from sordino import validate
from sordino.clipping.clipping_rule import Stateless
from sordino.optim.noise_scale import noise_scale
from sordino.queries.epsilon_target import EpsilonTarget
from sordino.queries.with_loss import WithLoss
from sordino.sampling.poisson import Poisson

TYPICAL_SIGNAL = 0.05
"""The length of the mean clipped gradient over the bound, as it is early in fine-tuning: a rule of thumb."""
ENOUGH = 2.0
"""The signal to noise of a whole run from which on noise is a small part of its way."""


@dataclass(frozen=True)
class StepNoise:
    """The noise of a run's steps, known before the first one.

    Args:
        deviation: s = σC/L, the standard deviation of the noise on each coordinate of `.grad`.
        coordinates: d, how many numbers are trained.
        bound: C, the length that each record's gradient is clipped to.
        lot: L, the expected number of records in a lot.
        steps: T, how many steps the run has.

    Privacy:
        Made of public numbers.

    Examples:
        >>> noise = StepNoise(deviation=0.72 / 512, coordinates=74_498, bound=1.0, lot=512, steps=54)
        >>> f"{noise.length:.2f} {noise.share:.0%} {noise.signal_to_noise:.2f} {noise.walks_at_random}"
        '0.38 98% 0.96 True'

    """

    deviation: float
    coordinates: int
    bound: float
    lot: float
    steps: int

    def __post_init__(self) -> None:
        """Refuses numbers that no run has."""
        for name in ("deviation", "bound", "lot"):
            validate.positive(name, getattr(self, name))
        for name in ("coordinates", "steps"):
            validate.count(name, getattr(self, name))

    @classmethod
    def of_query(cls, query: Any, *, expected_batch: float, coordinates: int, steps: int) -> StepNoise | None:
        """Returns the noise of a run's steps; None where the query's noise has no one public scale, or is 0.

        Args:
            query: what is asked of every lot.
            expected_batch: the public divisor.
            coordinates: how many numbers are trained.
            steps: how many lots are drawn.

        """
        inner: Any = query.query if isinstance(query, WithLoss) else query
        # A rule with a state may change its bound, and its noise with it.
        if not isinstance(getattr(inner, "clipping", None), Stateless):
            return None
        try:
            deviation = noise_scale(inner, expected_batch)
            multiplier = float(inner.noise.multiplier)
        except (TypeError, AttributeError):
            return None
        # Without noise, or with nothing to train, a ratio to the noise would divide by 0.
        if not deviation or not multiplier or not coordinates:
            return None
        # s = σC/L, solved for C.
        bound = deviation * expected_batch / multiplier
        return cls(deviation, coordinates, bound, float(expected_batch), steps)

    @property
    def length(self) -> float:
        """The length of a step's noise, s √d."""
        return self.deviation * math.sqrt(self.coordinates)

    @property
    def share(self) -> float:
        """The share of a step that will be noise, of its squared length, if the signal is a typical one."""
        signal = TYPICAL_SIGNAL * self.bound
        return self.length**2 / (self.length**2 + signal**2)

    @property
    def signal_to_noise(self) -> float:
        """How far a typical signal carries the run over all steps, over how far noise does: √T ‖g‖ / (s √d)."""
        return math.sqrt(self.steps) * TYPICAL_SIGNAL * self.bound / self.length

    @property
    def walks_at_random(self) -> bool:
        """Whether noise will carry the run further than a typical signal does."""
        return self.signal_to_noise < 1

    def describe(self) -> str:
        """Returns two sentences: what share of a step will be noise, and what that means for the run."""
        first = (
            f"Noise: about {self.share:.0%} of a step will be noise (length {self.length:.2g}; the mean of the clipped "
            f"gradients is at most {self.bound:g}, usually about {TYPICAL_SIGNAL * self.bound:g})."
        )
        ratio = f"signal to noise over {self.steps} steps is about {self.signal_to_noise:.2g}"
        if self.walks_at_random:
            return f"{first}\nThis run will walk at random: {ratio}."
        if self.signal_to_noise < ENOUGH:
            return f"{first}\nMuch of this run's way will be noise: {ratio}."
        return f"{first} That is enough to learn: {ratio}."

    def list_changes(
        self, *, records: int | None = None, epsilon: float | None = None, delta: float | None = None
    ) -> list[str]:
        """Returns what to change so that less of a step is noise, with the figure that each change gives.

        Args:
            records: how many there are; and
            epsilon: what the run may cost; and
            delta: the δ of the claim, to calibrate larger lots to. Without them only fewer coordinates are advised.

        """
        # Fewer coordinates: the figure goes with 1/√d.
        enough = max(1, int(self.coordinates * (self.signal_to_noise / ENOUGH) ** 2))
        # A count above today's is no advice: the typical signal would do, and this run has less.
        fewer = f", {_round_down(enough):,} or fewer give {ENOUGH:g}" if enough < self.coordinates else ""
        changes = [
            f"train fewer numbers: {self.coordinates:,} now{fewer}. "
            "Train the last layers only, or a head on frozen features first; of adapters freeze lora_A (LoRA-FA) or lower r"
        ]
        # Larger lots at the same number of steps: the noise is calibrated again, and divided by more records.
        if records is not None and epsilon is not None and delta is not None:
            for share in (0.25, 0.5):
                lot = share * records
                if lot <= 1.5 * self.lot:
                    continue
                larger = self._with_lot(share, records, epsilon, delta)
                epochs = share * self.steps
                changes.append(
                    f"draw larger lots: {lot:,.0f} records, {self.steps} steps, {epochs:.3g} epochs give "
                    f"{larger.signal_to_noise:.2g}, at the same epsilon"
                )
        return changes

    def advise(
        self,
        *,
        records: int | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        last: str | None = None,
    ) -> str:
        """Returns the description of a step's noise and, where noise is much of the run's way, what to change, as
        lines.

        Args:
            records: how many there are.
            epsilon: what the run may cost.
            delta: the δ of the claim.
            last: one more change, named last.

        """
        if self.signal_to_noise >= ENOUGH:
            return self.describe()
        changes = self.list_changes(records=records, epsilon=epsilon, delta=delta) + ([last] if last else [])
        return "\n".join([self.describe(), "To change that:", *(f"  - {change}" for change in changes)])

    def _with_lot(self, rate: float, records: int, epsilon: float, delta: float) -> StepNoise:
        """Returns the step noise of a run with lots of rate × records, as many steps and the same ε."""
        query = EpsilonTarget(epsilon, delta, self.bound).calibrate_query(Poisson(rate), records, self.steps)
        lot = rate * records
        return replace(self, deviation=query.noise.multiplier * self.bound / lot, lot=lot)


def _round_down(count: int) -> int:
    """Returns a count for the advice on a step's noise, which is a rule of thumb, with all digits after the first two
    0.

    >>> _round_down(17_142)
    17000
    """
    unit: int = 10 ** max(0, len(str(count)) - 2)
    return max(1, count // unit * unit)
