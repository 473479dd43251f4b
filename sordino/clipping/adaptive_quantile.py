"""Clipping with a bound that follows a quantile of the norms, privately.

Andrew et al. 2021, arXiv:1905.03871.

    b̃ = ½ + (Σ_i (1{r_i ≤ C} − ½) + N(0, s²)) / L,     C ← C · exp(−η (b̃ − γ))

Privacy: centred at ½, one record moves the count by ½, so the count is a Gaussian release with multiplier 2s, on the
same draw as the gradient; both are charged, composed before they are amplified. L is the public expected batch, never
the realised one, and the clip itself is `Flat` at the bound of the step, or another clipping rule with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from sordino import validate
from sordino.clipping.clipping_rule import ClippingRule, Rule, State
from sordino.clipping.flat import Flat
from sordino.events import Event
from sordino.former_names import former_field
from sordino.per_sample.protocol import Norms
from sordino.registry import Declaration, Method
from sordino.release.noise import Gaussian
from sordino.release.release import release
from sordino.release.sealed import Sealed, map_sealed
from sordino.release.sensitivity import Sensitivity
from sordino.rng.streams import Rng

HALF = 0.5
_RANGE = 1e12
"""The bound stays within this factor of where it began, so that it is always a number."""


@former_field("weigher", "clipping")
@dataclass(frozen=True)
class AdaptiveQuantile:
    """Starts at `bound` and follows the `quantile` of the norms.

    `count_noise` is the standard deviation s of the noise on the count; a twentieth of the expected batch is usual and
    costs about 0.1 % of the noise. `learning_rate` is the η of the bound. `clipping` makes a stateless clipping rule
    from the number that is followed: partial(Global, 1.0) has a fixed bound of 1 and a threshold that follows.

    Args:
        bound: where it begins.
        quantile: which quantile of the lengths is followed, between 0 and 1.
        count_noise: standard deviation of the noise on the count of lengths within the bound.
        learning_rate: how fast the bound follows.
        clipping: makes a clipping rule from the bound.

    Privacy:
        Each step releases a noisy count beside the gradient, and is charged for both on one draw.

    Examples:
        >>> import sordino as sd
        >>> query = sd.NoisySum(sd.AdaptiveQuantile(1.0, quantile=0.5, count_noise=10.0), sd.Gaussian(1.1))
        >>> sd.dry_run(query, sd.Poisson(0.01), dataset_size=1000, steps=1)
        Poisson(rate=0.01, event=Together(events=(Gaussian(multiplier=1.1), Gaussian(multiplier=20.0))))

    """

    bound: float
    quantile: float
    count_noise: float
    learning_rate: float = 0.2
    clipping: Callable[[float], ClippingRule] = Flat

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", validate.positive("bound", self.bound))
        object.__setattr__(self, "quantile", validate.fraction("quantile", self.quantile))
        object.__setattr__(self, "count_noise", validate.non_negative("count_noise", self.count_noise))
        object.__setattr__(self, "learning_rate", validate.non_negative("learning_rate", self.learning_rate))

    def init(self) -> State:
        """Returns the starting bound."""
        return self.bound

    def rule(self, state: State, lot: Callable[[], Norms]) -> Rule:
        """Returns the inner clipping rule at the current bound, an adaptive quantile; the tally counts who is within
        it, centred at ½.
        """

        # Whoever is within the bound counts +½, all others −½, so that one record moves the count by ½ and not by 1.
        def count_within(norms: Norms) -> Tensor:
            inside: Tensor = norms.total() <= state
            return inside.to(norms.squared.dtype).sub(HALF).unsqueeze(1)  # (B, 1)

        # The state is the current bound. It was computed from released values only, so it is public.
        inner = self.clipping(state)
        inner_rule = inner.rule(inner.init(), lot)
        return Rule(inner_rule.weights, inner_rule.sensitivity, tally=count_within)

    def advance(
        self, state: State, tally: Sealed[Tensor] | None, expected_batch: float, rng: Rng
    ) -> tuple[Sequence[Event], State]:
        """Releases the noisy share of records within the bound and moves the bound by it towards the quantile."""
        assert tally is not None, "the rule has a tally"
        # Centred at ½, one record moves the count by ½ in L2.
        count = map_sealed(tally, lambda value: {"count": value})
        released = release(count, Sensitivity(l2=HALF), Gaussian(self.count_noise / HALF), rng)
        share = HALF + float(released.value["count"]) / expected_batch  # public from here on
        return (released.event,), move_bound(state, self.bound, self.learning_rate * (share - self.quantile))


def move_bound(now: float, start: float, step: float) -> float:
    """Returns an adaptive bound moved towards its quantile, now · exp(−step), kept within a wide range around where it
    started.
    """
    # In logarithms, where a large step cannot overflow before it is cut.
    limit, first = math.log(_RANGE), math.log(start)
    return math.exp(min(max(math.log(now) - step, first - limit), first + limit))


DECLARED = Declaration(
    (AdaptiveQuantile,),
    methods=(
        Method(
            "adaptive-quantile",
            "the bound follows a quantile of the norms, privately (Andrew et al. 2021)",
            clipping=lambda run, own: AdaptiveQuantile(
                run.bound, own["quantile"], own["count_noise"], learning_rate=own["learning_rate"]
            ),
            parameters=lambda run: {"quantile": 0.5, "count_noise": run.expected_lot / 20, "learning_rate": 0.2},
            example="sd.AdaptiveQuantile(bound=1.0, quantile=0.5, count_noise=2.5)",
        ),
    ),
)
