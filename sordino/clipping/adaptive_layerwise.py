"""Layerwise clipping whose bounds each follow a quantile of their group's norms, privately.

This is the rule of Andrew et al. 2021 (arXiv:1905.03871), applied to every group.

    b̃_k = ½ + (Σ_i (1{r_ik ≤ C_k} − ½) + N(0, s²)) / L,     C_k ← C_k · exp(−η (b̃_k − γ))

Privacy: one record moves each of the K centred counts by ½, hence all of them together by ½√K in L2: under noise s on
each they are one Gaussian release of multiplier 2s/√K, on the same draw as the gradient and charged with it. The clip
is `Layerwise` at the bounds of the step, or another clipping rule with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sordino import validate
from sordino.clipping.adaptive_quantile import HALF, move_bound
from sordino.clipping.clipping_rule import ClippingRule, Rule, State
from sordino.clipping.layerwise import Layerwise, equal_bounds
from sordino.clipping.noise_shares import Share
from sordino.events import Event
from sordino.former_names import former_field
from sordino.per_sample.protocol import Norms
from sordino.registry import Declaration, Method
from sordino.release.noise import Gaussian
from sordino.release.release import release
from sordino.release.sealed import Sealed, map_sealed
from sordino.release.sensitivity import Sensitivity
from sordino.rng.streams import Rng


@former_field("weigher", "clipping")
@dataclass(frozen=True, init=False)
class AdaptiveLayerwise:
    """Starts at `bounds` (as in `Layerwise`) and lets each follow the `quantile` of its group's norms.

    `count_noise` is the standard deviation s of the noise on every count. `clipping` makes a stateless clipping rule
    from the numbers that are followed, given as `bounds` are: partial(GlobalLayerwise, C) has fixed bounds C and
    thresholds that follow.

    Args:
        bounds: where they begin, as `Layerwise` takes them.
        quantile: which quantile of the lengths of each group is followed.
        count_noise: standard deviation of the noise on every count.
        learning_rate: how fast the bounds follow.
        share: how the noise is divided among the groups.
        clipping: makes a clipping rule from the bounds.

    Privacy:
        Each step releases a noisy count for every group beside the gradient, and is charged for all on one draw.

    Examples:
        >>> import sordino as sd
        >>> sd.AdaptiveLayerwise({"0.": 1.0, "2.": 1.0}, quantile=0.5, count_noise=10.0).init()
        [1.0, 1.0]

    """

    start: Layerwise
    quantile: float
    count_noise: float
    learning_rate: float
    clipping: Callable[[Any], ClippingRule] | None

    def __init__(
        self,
        bounds: Sequence[float] | Mapping[str, float],
        quantile: float,
        count_noise: float,
        learning_rate: float = 0.2,
        share: Share | None = None,
        clipping: Callable[[Any], ClippingRule] | None = None,
    ) -> None:
        # The fields are frozen, so they are set around the dataclass. Layerwise checks the bounds.
        object.__setattr__(self, "start", Layerwise(bounds, share))
        object.__setattr__(self, "quantile", validate.fraction("quantile", quantile))
        object.__setattr__(self, "count_noise", validate.non_negative("count_noise", count_noise))
        object.__setattr__(self, "learning_rate", validate.non_negative("learning_rate", learning_rate))
        object.__setattr__(self, "clipping", clipping)
        # An infinite bound would never be reached and could not follow a quantile.
        if not all(map(math.isfinite, self.start.values)):
            raise ValueError(f"bounds={bounds!r}: must be finite, to be followed")

    def init(self) -> State:
        """Returns the starting bounds as a list."""
        return self.start.values

    def rule(self, state: State, lot: Callable[[], Norms]) -> Rule:
        """Returns layerwise clipping at the current adaptive bounds; the tally counts who is within each, centred at ½."""
        current = self._layerwise_at(state)

        # Who is within its group's bound counts +½, all others −½: one record moves every count by at most ½.
        def count_within(norms: Norms) -> Tensor:
            _, squared = current.group_norms(norms)  # (B, K)
            limit = squared.new_tensor(state)
            return (squared.sqrt() <= limit).to(squared.dtype).sub(HALF)

        # The inner rule is made at the current bounds, which are public.
        inner = current if self.clipping is None else self.clipping(self._as_given_bounds(state))
        inner_rule = inner.rule(inner.init(), lot)
        return Rule(inner_rule.weights, inner_rule.sensitivity, tally=count_within)

    def advance(
        self, state: State, tally: Sealed[Tensor] | None, expected_batch: float, rng: Rng
    ) -> tuple[Sequence[Event], State]:
        """Releases the noisy shares of records within each group's bound and moves the adaptive layerwise bounds by
        them.
        """
        assert tally is not None, "the rule has a tally"
        # One record moves each of the K centred counts by ½, so all of them together by ½√K in L2.
        length = HALF * math.sqrt(len(state))
        counts = map_sealed(tally, lambda value: {"counts": value})
        released = release(counts, Sensitivity(l2=length), Gaussian(self.count_noise / length), rng)
        # Divided by the expected batch, because how many records the lot really had is private.
        shares = (HALF + released.value["counts"] / expected_batch).tolist()  # public from here on
        rate = self.learning_rate
        # C_k ← C_k · exp(−η (b̃_k − γ)), from released numbers alone.
        new = [
            move_bound(now, first, rate * (share - self.quantile))
            for now, first, share in zip(state, self.start.values, shares, strict=True)
        ]
        return (released.event,), new

    def _as_given_bounds(self, state: State) -> dict[str, float] | list[float]:
        """Returns the bounds of the step in the form in which `bounds` were given."""
        names = [bound[0] for bound in self.start.bounds if isinstance(bound, tuple)]
        return dict(zip(names, state, strict=True)) if names else list(state)

    def _layerwise_at(self, state: State) -> Layerwise:
        return Layerwise(self._as_given_bounds(state), self.start.share)


DECLARED = Declaration(
    (AdaptiveLayerwise,),
    methods=(
        Method(
            "adaptive-layerwise",
            "every tensor's bound follows a quantile of its norms, privately (Andrew et al. 2021)",
            clipping=lambda run, own: AdaptiveLayerwise(
                equal_bounds(run), own["quantile"], own["count_noise"], own["learning_rate"]
            ),
            parameters=lambda run: {
                "quantile": 0.5,
                "count_noise": run.expected_lot / 20 * math.sqrt(run.tensors),
                "learning_rate": 0.2,
            },
            example='sd.AdaptiveLayerwise({"0.": 0.8, "2.": 0.6}, quantile=0.5, count_noise=5.0)',
        ),
    ),
)
