"""Microbatches: clips the mean gradient of each group of a lot, in place of each record's.

    g̃ = Σ_k φ(‖m_k‖) m_k + N(0, (σC)² I),     m_k the mean gradient of group k

It is used where gradients of single records are expensive; here it is the published method at its true price.

Privacy: with groups in which a record's place is its own coin, independent of who else is there, one record changes one
group's vector, from anywhere in the ball of radius C to anywhere in it: the sum moves by up to 2C, and noise σC counts
as multiplier σ/2. Groups by position (`ByPosition`, as chunks of a lot are) have no such bound: one record fewer moves
every later record into another group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino import validate
from sordino.clipping.clipping_rule import ClippingRule, Rule, State
from sordino.former_names import former_field
from sordino.per_sample.protocol import Chunked, Norms, PerSample
from sordino.per_sample.row_arithmetic import row_squared_norms
from sordino.queries.noisy_sum import clip_and_sum, release_sum
from sordino.refusal import Refusal
from sordino.registry import Declaration, Method
from sordino.release.noise import Gaussian, Noise
from sordino.release.release import Release
from sordino.release.rounding import rounding_slack
from sordino.release.sensitivity import Sensitivity, Unproven
from sordino.release.vectors import Grads
from sordino.rng.streams import Rng

Indices = NDArray[np.int64]


class Grouping(Protocol):
    """A way to divide the records of a lot into groups."""

    @property
    def unproven(self) -> str:
        """The reason why there is no bound; empty if there is one."""
        ...

    def expected_groups(self, expected_batch: float) -> float:
        """Returns how many groups a lot is expected to have, a public number."""
        ...

    def assign_groups(self, records: Indices, rng: Rng) -> Indices:
        """Returns the group of each of these records of the dataset, in their order."""
        ...


@dataclass(frozen=True)
class ByCoin:
    """Lets each record choose one of `count` groups for itself, anew for every lot.

    Args:
        count: groups in a lot.

    Examples:
        >>> import sordino as sd
        >>> sd.Microbatches(sd.Flat(1.0), sd.Gaussian(1.1), sd.ByCoin(8))
        Microbatches(clipping=Flat(bound=1.0), noise=Gaussian(multiplier=1.1), grouping=ByCoin(count=8))

    """

    count: int
    unproven = ""

    def __post_init__(self) -> None:
        validate.count("count", self.count)

    def expected_groups(self, expected_batch: float) -> float:
        """Returns the number of groups."""
        return float(self.count)

    def assign_groups(self, records: Indices, rng: Rng) -> Indices:
        """Returns the group of each record, which is a function of the stream and of the record's own number."""
        coins = rng.uniform(int(records.max()) + 1 if len(records) else 0)
        return np.floor(coins[records] * self.count).astype(np.int64)


@dataclass(frozen=True)
class ByPosition:
    """Makes groups by position: the first `size` records of the lot, the next `size`, and so on.

    Args:
        size: records in a group.

    Privacy:
        Without a guarantee: a record added moves all after it to other groups. The claim says so.

    Examples:
        >>> import sordino as sd
        >>> sd.Microbatches(sd.Flat(1.0), sd.Gaussian(1.1), sd.ByPosition(4))
        Microbatches(clipping=Flat(bound=1.0), noise=Gaussian(multiplier=1.1), grouping=ByPosition(size=4))

    """

    size: int
    unproven = (
        "microbatches by position: one record fewer moves every later record of the lot into another group, "
        "so nothing bounds what it changes"
    )

    def __post_init__(self) -> None:
        validate.count("size", self.size)

    def expected_groups(self, expected_batch: float) -> float:
        """Returns the expected batch over the size of a group, at least 1."""
        return max(1.0, expected_batch / self.size)

    def assign_groups(self, records: Indices, rng: Rng) -> Indices:
        """Returns the groups in the order of the lot."""
        return np.arange(len(records), dtype=np.int64) // self.size


@former_field("weigher", "clipping")
@dataclass(frozen=True)
class Microbatches:
    """Releases the noisy sum of the clipped means of groups, divided by the expected number of groups.

    Every group's sum is held until the lot is through: as many gradients in memory as there are groups.

    Args:
        clipping: how much each group's mean counts.
        noise: what is added to their sum.
        grouping: who is in a group.

    Privacy:
        A record may change the mean of one group from one vector to another of length C: charged as 2C.

    Examples:
        >>> from sordino import Flat, Gaussian
        >>> Microbatches(Flat(1.0), Gaussian(2.2), ByCoin(25)).grouping
        ByCoin(count=25)

    """

    clipping: ClippingRule
    noise: Noise
    grouping: Grouping

    def __post_init__(self) -> None:
        if not isinstance(self.noise, Gaussian):
            raise TypeError(f"noise={self.noise!r}: must be Gaussian; the L1 reach of a group's vector is not known")
        validate.clipping_rule("clipping", self.clipping)
        self._rule_without_records(self.clipping.init())

    def init(self) -> State:
        """Returns the state of the clipping rule, and 0, the number of the first lot."""
        return [self.clipping.init(), 0]

    def __call__(self, grads: PerSample, state: State, expected_batch: float, rng: Rng) -> tuple[Release, State]:
        """Returns one release of the clipped means of the groups, and the next state."""
        inner, step = state
        rule = self._rule_without_records(inner)
        # To the clipping rule every group is one record, whose gradient is the mean of the group.
        means = self._group_means(grads, rng.child("groups", step))
        clipped = clip_and_sum(self.clipping, inner, means, rule=rule)
        clipped = clipped._replace(sensitivity=self._reach_of_record(clipped.sensitivity, expected_batch))
        halved = Gaussian(self.noise.multiplier / 2)  # σC over a reach of 2C
        released, inner = release_sum(self.clipping, inner, clipped, halved, expected_batch, rng)
        # The caller divides by the expected batch, and this is a mean over the expected number of groups.
        scale = expected_batch / self.grouping.expected_groups(expected_batch)
        value = {name: tensor.mul_(scale) for name, tensor in released.value.items()}
        return Release(value, released.event), [inner, step + 1]

    def _rule_without_records(self, state: State) -> Rule:
        """Returns the clipping rule of this step for microbatches; raises Refusal for one that looks at single records."""

        def refuse_look() -> Norms:
            """Raises Refusal for a clipping rule that looks at norms of records, because microbatches have none."""
            raise Refusal(
                f"{self.clipping!r} looks at the norms of the lot's records before it chooses its weights.\n"
                "Microbatches clip the means of groups, and single records have no norms there.\n"
                "Use a clipping rule that does not look, such as Flat or Scheduled."
            )

        # A look at the lot is refused at once: the rule would see norms of records, and what is clipped here are means.
        rule = self.clipping.rule(state, refuse_look)
        # A record that changes a group's mean changes the tally of that group from any value to any other.
        if rule.tally is not None:
            raise Refusal(
                f"{self.clipping!r} counts records.\n"
                "A record changes the count of its group from any value to any other, which its noise does not cover.\n"
                "Use a clipping rule that counts nothing, such as Flat or Scheduled."
            )
        return rule

    def _reach_of_record(self, reach: Sensitivity | Unproven, expected_batch: float) -> Sensitivity | Unproven:
        """Returns how far one record moves the sum over microbatches: 2C, since it can change one group's vector to any
        within C.
        """
        # A record that comes or goes changes its group's mean from one vector within C to another, so by up to 2C.
        if isinstance(reach, Unproven):
            return Unproven(reach.reason, 2 * reach.scale)
        # Rounding grows with the number of vectors that are added, which is that of the groups.
        groups = math.ceil(self.grouping.expected_groups(expected_batch))
        doubled = replace(reach, l2=2 * reach.l2, l1=None, rounding=rounding_slack(groups))
        return Unproven(self.grouping.unproven, doubled.l2) if self.grouping.unproven else doubled

    def _group_means(self, grads: PerSample, rng: Rng) -> _GroupMeans:
        """Returns the mean gradient of every microbatch that has a record."""
        parts: Iterable[PerSample] = grads if isinstance(grads, Chunked) else (grads,)
        # Which group a record is in comes from the run's own stream, or from its place; never from the other records.
        groups_of = _group_lookup(grads, self.grouping, rng)
        total: Grads | None = None
        sums: dict[int, Grads] = {}
        counts: dict[int, int] = {}
        start = 0
        for part in parts:
            b = len(part.losses)
            finite = part.norms().squared.isfinite().all(dim=1)  # (B,)
            # A sum over nobody gives a zero of the right shapes, so that an empty lot is released like any other.
            if total is None:
                total = _add_members(part, torch.zeros_like(finite), None)
            # Add the records of this batch to the sums of their groups; a record that is not finite is left out.
            groups = groups_of(start, b)
            for k in np.unique(groups).tolist():
                member = torch.from_numpy(groups == k).to(finite.device) & finite
                sums[k] = _add_members(part, member, sums.get(k))
                counts[k] = counts.get(k, 0) + int(member.sum())
            start += b
        assert total is not None, "a lot has at least one part"
        # A group's mean divides by its own number of records. That number stays inside: only clipped means leave.
        return _GroupMeans(total, [{n: t / max(1, counts[k]) for n, t in sums[k].items()} for k in sorted(sums)])


@dataclass(frozen=True)
class _GroupMeans:
    """The mean gradients of groups, as per-sample gradients in which every group is one record."""

    zeros: Grads  # to add to
    means: list[Grads]

    @property
    def losses(self) -> Tensor:
        """Zeros, one for each group: what a group's loss is, nobody asks."""
        return torch.zeros(len(self.means), device=next(iter(self.zeros.values())).device if self.zeros else None)

    def norms(self) -> Norms:
        """Returns the squared norms of the microbatches' mean gradients, (K, P)."""
        names = tuple(self.zeros)
        # A lot without records has no groups, and its sum is zero.
        if not self.means:
            return Norms(torch.zeros(0, len(names), device=self.losses.device), names)
        rows = [torch.stack([row_squared_norms(mean[name][None])[0] for name in names]) for mean in self.means]
        return Norms(torch.stack(rows), names)

    def dot(self, u: Mapping[str, Tensor]) -> Tensor:
        """Returns the inner product of each mean with `u`, (K, P)."""
        return torch.stack([torch.stack([(mean[name] * u[name]).sum() for name in u]) for mean in self.means])

    def weighted_sum(self, weights: Tensor, into: Grads | None = None) -> Grads:
        """Returns Σ w_k m_k over the microbatches' mean gradients; groups of weight 0 are left out."""
        total = {name: tensor.clone() for name, tensor in self.zeros.items()} if into is None else into
        # Groups of weight 0 are left out altogether: their mean may not be finite.
        for mean, row in zip(self.means, weights.expand(-1, len(total)).tolist(), strict=True):
            for name, weight in zip(total, row, strict=True):
                if weight:
                    total[name].add_(mean[name], alpha=weight)
        return total


def _add_members(part: PerSample, member: Tensor, into: Grads | None) -> Grads:
    """Returns the sum of the gradients of a microbatch's members, added to `into` if there is one."""
    member_sum = part.weighted_sum(member.to(torch.float32)[:, None])
    if into is None:
        return {name: tensor.clone() for name, tensor in member_sum.items()}
    for name, tensor in member_sum.items():
        into[name].add_(tensor)
    return into


def _group_lookup(grads: PerSample, grouping: Grouping, rng: Rng) -> Callable[[int, int], Indices]:
    """Returns a function from a stretch of the lot to the microbatches of its records; by position if the records are
    unknown.
    """
    # Groups follow from the record's number, so that a neighbour's records stay in their groups.
    records = grads.records if isinstance(grads, Chunked) else None
    if records is not None:
        groups = grouping.assign_groups(records, rng)
        return lambda start, n: groups[start : start + n]
    return lambda start, n: grouping.assign_groups(np.arange(start + n, dtype=np.int64), rng)[start:]


DECLARED = Declaration(
    (ByCoin, ByPosition, Microbatches),
    methods=(
        Method(
            "microbatches",
            "the clipped means of groups that each record chooses for itself, at twice the sensitivity",
            query=lambda run, own, clipping, noise: Microbatches(clipping, noise, ByCoin(max(1, round(own["groups"])))),
            parameters=lambda run: {"groups": max(1.0, round(run.expected_lot / 4))},
            example="sd.Microbatches(sd.Flat(bound=1.0), sd.Gaussian(multiplier=2.2), sd.ByCoin(10))",
        ),
        Method(
            "microbatches-by-position",
            "clipped means of groups in the order of the lot: no guarantee",
            query=lambda run, own, clipping, noise: Microbatches(clipping, noise, ByPosition(int(own["size"]))),
            parameters=lambda run: {"size": 8.0},
            example="sd.Microbatches(sd.Flat(bound=1.0), sd.Gaussian(multiplier=2.2), sd.ByPosition(5))",
        ),
    ),
)
