"""DP-SGD (Abadi et al. 2016, arXiv:1607.00133) as one query: clip, sum, add noise once.

    g̃ = Σ_{i ∈ lot} φ(‖g_i‖) g_i + N(0, (σC)² I)

What a user exchanges is an object: the clipping rule (how much a record counts), the noise, the sampler of the draws.

Privacy: the clipping rule bounds what one record moves the sum by; the release adds noise in proportion and brings the
event. The draw's sampler amplifies it. Dividing by the public expected batch and every optimizer after it are
post-processing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from sordino import validate
from sordino.clipping.clipping_rule import ClippingRule, RowwiseWatch, Rule, State, sum_clipped
from sordino.clipping.layerwise import Layerwise
from sordino.clipping.noise_shares import Multipliers
from sordino.events import compose
from sordino.former_names import former_field
from sordino.per_sample.protocol import Chunked, Norms, PerSample
from sordino.registry import Declaration, Example
from sordino.release.exact_sums import OnGrid
from sordino.release.noise import Gaussian, Noise
from sordino.release.release import Release, release
from sordino.release.rounding import rounding_slack
from sordino.release.sealed import Sealed
from sordino.release.sensitivity import EXACT, Estimate, Sensitivity, Unproven
from sordino.release.vectors import Grads, TwoPartSum, WideSum
from sordino.rng.streams import Rng

NO_NORMS = Norms(torch.zeros(0, 0), ())
"""The norms of no records in no parameters, which a clipping rule is given before there is a lot."""


@dataclass
class _LotNorms:
    """Hands the lot's norms to a clipping rule and remembers that it looked."""

    norms: Callable[[], Norms]
    has_looked: bool = False

    def __call__(self) -> Norms:
        self.has_looked = True
        return self.norms()

    def judge_promise(self, sensitivity: Sensitivity | Unproven) -> Sensitivity | Unproven:
        """Returns the sensitivity that a clipping rule promises for the noisy sum, or an unproven one if the rule was
        chosen after looking at the lot's norms.
        """
        # A bound that was chosen by the lot's norms depends on every record in it.
        if self.has_looked and isinstance(sensitivity, Sensitivity):
            return Unproven(
                "the clipping rule looked at the norms of the lot before it chose its weights", sensitivity.l2
            )
        return sensitivity


class LotSum(NamedTuple):
    """The weighted sum of a lot before its noise, and what is known of it. The sum is private."""

    total: Grads | TwoPartSum | WideSum | OnGrid
    tally: Sealed[Tensor] | None  # what the rule counted, from which the clipping rule learns
    sensitivity: Sensitivity | Unproven  # how far one record moves the sum


def clip_and_sum(
    clipping: ClippingRule,
    state: State,
    grads: PerSample,
    *,
    rule: Rule | None = None,
    measure: Callable[[PerSample], PerSample] | None = None,
) -> LotSum:
    """Returns the clipped sum of a lot for a noisy sum, not sealed yet, the tally, and how far one record moves the
    sum.

    Args:
        clipping: the clipping rule.
        state: its state at this step.
        grads: the per-sample gradients of the lot.
        rule: the rule of this step, where a query has changed it; by default that of `clipping`.
        measure: gives the parts of the lot other norms, which are exact, such as L1 norms.

    """
    # Fix the rule before any record is weighted. A user's own rule is watched while it is applied.
    lot_norms = _LotNorms(grads.norms)
    rule, watch = clipping.rule(state, lot_norms) if rule is None else rule, RowwiseWatch()
    weights, tally = watch(rule.weights), None if rule.tally is None else watch(rule.tally)
    if watch.is_watching:
        rule = replace(rule, weights=weights, tally=tally)
    # Clip and add up, batch by batch.
    lot = grads if isinstance(grads, Chunked) else None
    parts: Iterable[PerSample] = (grads,) if lot is None else lot.iterate_local_parts()
    if measure is not None:
        parts = map(measure, parts)
    estimate = EXACT if lot is None or measure is not None else lot.estimate
    if lot is None:
        clipped, is_broken = sum_clipped(parts, rule), watch.is_broken
    else:
        clipped = sum_clipped(parts, rule, estimate, lot.sizes, lot.most, lot.ranked)
        is_broken = watch.is_broken_anywhere(lot.ranked)
    # A rule that looked at the lot, or that depends on other rows, has no proof.
    sensitivity = lot_norms.judge_promise(rule.sensitivity)
    if is_broken and isinstance(sensitivity, Sensitivity):
        sensitivity = Unproven(RowwiseWatch.STATISTIC, sensitivity.l2)
    if isinstance(sensitivity, Sensitivity):
        sensitivity = _add_rounding(sensitivity, estimate, clipped.rows, clipped.dtype)
    return LotSum(clipped.total, None if clipped.tally is None else Sealed(clipped.tally), sensitivity)


def release_sum(
    clipping: ClippingRule,
    state: State,
    clipped: LotSum,
    noise: Noise,
    expected_batch: float,
    rng: Rng,
    *,
    divide_by: float = 1.0,
) -> tuple[Release, State]:
    """Releases a clipped sum with noise, as the noisy sum of DP-SGD, and lets the clipping rule learn from its tally.

    `NoisySum`, `L1Sum` and `Microbatches` all end here.

    Args:
        clipping: the clipping rule that made the sum.
        state: its state at this step.
        clipped: the sum, which is consumed.
        noise: what is added, in proportion to the sensitivity.
        expected_batch: the public number that the rule's counts are compared with.
        rng: the stream of the noise.
        divide_by: a public number that the sum is divided by in the same pass.

    Returns:
        The release with the events of the noise and of what was learnt, and the rule's next state.

    """
    # The sum leaves with noise before the rule looks at its tally, which is a release of its own with its own event.
    released = release(Sealed(clipped.total), clipped.sensitivity, noise, rng, divide_by=divide_by)
    spent, state = clipping.advance(state, clipped.tally, expected_batch, rng)
    return Release(released.value, compose([released.event, *spent]), released.divided_by), state


def _add_rounding(promise: Sensitivity, estimate: Estimate, rows: int, dtype: torch.dtype) -> Sensitivity:
    """Returns the promised sensitivity of a noisy sum with how the norms were obtained and what rounding adds to it."""
    if promise.units is not None:  # anybody's function, which may not be hashable
        return replace(promise, estimate=estimate, rounding=rounding_slack(rows, dtype))
    return _add_rounding_cached(promise, estimate, rows, dtype)


@lru_cache(maxsize=64)
def _add_rounding_cached(promise: Sensitivity, estimate: Estimate, rows: int, dtype: torch.dtype) -> Sensitivity:
    """Returns the promise with estimate and rounding; cached, because it is equal at nearly every lot."""
    return replace(promise, estimate=estimate, rounding=rounding_slack(rows, dtype))


class Query(Protocol):
    """A query: what is asked of one lot. `NoisySum` is the usual one."""

    def init(self) -> State:
        """Returns the state before the first lot."""
        ...

    def __call__(self, grads: PerSample, state: State, expected_batch: float, rng: Rng) -> tuple[Release, State]:
        """Returns a noisy sum of the lot's gradients with its event, and the next state.

        A query whose release divides the sum by the expected batch saves a pass over it; the release says so.
        """
        ...


@former_field("weigher", "clipping")
@dataclass(frozen=True)
class NoisySum:
    """Releases the weighted sum of the gradients plus noise: DP-SGD.

    Args:
        clipping: how much each record counts, and how far one can move the sum.
        noise: what is added, in proportion to that.

    Privacy:
        One release per lot, of the noise's event; the sampler amplifies it.

    Examples:
        >>> from sordino import Flat, Gaussian
        >>> NoisySum(Flat(1.0), Gaussian(1.1))
        NoisySum(clipping=Flat(bound=1.0), noise=Gaussian(multiplier=1.1))

    """

    clipping: ClippingRule
    noise: Noise

    def __post_init__(self) -> None:
        """Refuses what is no clipping rule or no noise, and a noise whose norm the rule does not bound."""
        validate.clipping_rule("clipping", self.clipping)
        validate.noise("noise", self.noise)
        # Refuse now what could only fail later: a noise whose norm the clipping rule does not bound.
        sensitivity = self.clipping.rule(self.clipping.init(), lambda: NO_NORMS).sensitivity
        if isinstance(sensitivity, Sensitivity):
            self.noise.bound_for(sensitivity)

    @classmethod
    def per_layer(cls, layers: Mapping[str, tuple[float, float]]) -> NoisySum:
        """Returns a noisy sum by layerwise clipping in which every group of parameters has its own bound C_k and
        multiplier σ_k.

        Group k gets noise σ_k C_k. The multiplier of the whole is what that amounts to, 1/σ² = Σ 1/σ_k²: each group is
        one more release about the same records.

        >>> NoisySum.per_layer({"conv": (1.0, 2.0), "fc": (0.5, 2.0)}).noise
        Gaussian(multiplier=1.414213562373095)
        """
        share = Multipliers(tuple(multiplier for _, multiplier in layers.values()))
        bounds = {name: bound for name, (bound, _) in layers.items()}
        return cls(Layerwise(bounds, share), Gaussian(share.effective))

    def init(self) -> State:
        """Returns the state of the clipping rule before the first lot."""
        return self.clipping.init()

    def __call__(self, grads: PerSample, state: State, expected_batch: float, rng: Rng) -> tuple[Release, State]:
        """Returns one DP-SGD release, divided by the expected batch, and the next state."""
        clipped = clip_and_sum(self.clipping, state, grads)
        return release_sum(self.clipping, state, clipped, self.noise, expected_batch, rng, divide_by=expected_batch)


DECLARED = Declaration(
    (NoisySum,),
    examples=(
        Example(
            "per-layer",
            "a bound and a noise multiplier for every layer, and what they amount to together",
            query='sd.NoisySum.per_layer({"0.": (0.8, 1.6), "2.": (0.6, 1.6)})',
        ),
    ),
)
