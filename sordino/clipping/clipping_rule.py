"""The clipping rule protocol, and the weighted sum of a lot that every rule is applied in.

A clipping rule (`ClippingRule`) turns norms into weights: it decides how much each record counts, and proves how far one
record can move the sum. It is public. At each step it fixes a `Rule` from its public state, before it has seen a
record; the rule is then applied to each record's norms on their own, batch by batch. If φ is the rule's weight and r a
norm, φ(r)·r ≤ C for every r bounds the contribution of any record, present or not, by C: that is the whole proof (Abadi
et al. 2016, arXiv:1607.00133).

`sum_clipped` holds every row to it, whatever the rule says: `bound_weights` computes the reach w_i · ‖g_i‖ of each row from
the norms that the rule was given and the weights that it gave back, and scales a row beyond C down until it meets it. A
weight that is not a finite number ≥ 0 becomes 0. With `units` the reach is that of the products, as the release counts it.
An L1 bound holds if √dimension · L2 does. So the formula of a clipping rule is a matter of usefulness alone. What is left
to its word is that a row's weight looks at that row only, and `RowwiseWatch` tries that.

Three things may depend on the data and are kept apart:
  - the weight of a record, a function of that record's norms alone;
  - a tally, numbers per record whose *sum* the rule wants to know; it reaches `advance` sealed, and only a noisy
    release of it can change the state;
  - a look at the norms of the whole lot, through `lot()`. A rule chosen after a look has no proof: it is `Unproven`.

**How a function is seen to work row by row.** A weight, a tally, a rate or a vector per record may look at that record
alone: a statistic over the rows makes every record depend on every other, and nothing bounds what one of them moves. Such
a function gives something else on a permutation or on a part of the rows. So it is tried on the same rows in another
order, and on half of them; a random choice that it does not know makes hiding hard.

A clipping rule of this library is proved row by row in its own file, so it is not tried again at every batch. Which
functions are the library's own must not be decided by an attribute that can be copied: `functools.wraps` gives a
stranger's function the `__module__` of the rule that it wraps. A function counts as the library's own only if the
namespace that its code runs in is that of a module of this package, and if everything that it holds (its closure, its
defaults, the object of a method) consists of numbers, tensors, instances of this package's own classes and such
functions. Whatever is not recognised is taken for a stranger's, which costs time and no privacy.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.accelerations import accelerate
from sordino.distributed.shared_lot import RankedLot
from sordino.events import Event
from sordino.per_sample.protocol import Norms, NormsOnDemand, PerSample, sums_one_by_one
from sordino.refusal import Refusal
from sordino.release.exact_sums import MOST_CHUNK_STEPS, MOST_STEPS, Grid, OnGrid, OnGridAccumulator
from sordino.release.exact_sums_by_rows import ByRowsAccumulator
from sordino.release.rounding import USUAL_ROWS
from sordino.release.sealed import Sealed
from sordino.release.sensitivity import EXACT, Estimate, Sensitivity, Unproven
from sordino.release.vectors import Accumulator, Grads, TwoPartSum, WideSum
from sordino.rng.streams import Rng

FLOOR = 1e-18
"""Added to every norm here: a gradient whose squares vanish in float32 is not longer, so no weight lifts it over C."""

_ROUNDED = 1e-6
"""The relative error of a few roundings: a weight C / r times r may exceed C by it, and such a row is left as it is."""

Sizes = Callable[[], Mapping[str, int]]

State: TypeAlias = Any
"""The public state of a clipping rule or a query: None, a number, text, a tensor that was released, or a list or dict of
such, so that a checkpoint of JSON and named tensors holds it."""

_VALUES = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size, np.generic)
_PACKAGE = "sordino."

Given = Tensor | NDArray[np.float64]
Rows = TypeVar("Rows", Tensor, Norms, "NDArray[np.float64]", "NDArray[np.float32]")

TOLERANCE = 1e-4
"""Relative to the largest value of a row: what products in another order may differ by."""
LARGEST_SAMPLE = 512
"""The number of rows that are tried; of more, so many are chosen at random."""


@dataclass(frozen=True)
class Rule:
    """How the records' gradients are weighted at one step.

    Args:
        weights: from norms (B, P) to weights (B, 1) or (B, P), row by row.
        sensitivity: how far one record moves the weighted sum.
        tally: from norms to numbers per record whose noisy sum the clipping rule asks for.

    Examples:
        >>> import sordino as sd
        >>> sd.Flat(1.0).rule(None, lambda: None).sensitivity.l2
        1.0

    """

    weights: Callable[[Norms], Tensor]  # (B, P) -> (B, 1) or (B, P), row by row
    sensitivity: Sensitivity | Unproven  # how far one record moves Σ w_i g_i
    tally: Callable[[Norms], Tensor] | None = None  # (B, P) -> (B, K), row by row

    @property
    def is_bounded(self) -> bool:
        """Whether there is a finite number that the noise is in proportion to."""
        scale = self.sensitivity.scale if isinstance(self.sensitivity, Unproven) else self.sensitivity.l2
        return math.isfinite(scale)


class ClippingRule(Protocol):
    """A clipping rule: it gives a `Rule` for every step, and may learn between steps from released numbers."""

    def init(self) -> State:
        """Returns the state before the first step."""
        ...

    def rule(self, state: State, lot: Callable[[], Norms]) -> Rule:
        """Returns the rule of this step; calling `lot` looks at the whole lot's norms and forgoes the proof."""
        ...

    def advance(
        self, state: State, tally: Sealed[Tensor] | None, expected_batch: float, rng: Rng
    ) -> tuple[Sequence[Event], State]:
        """Returns the events of what a clipping rule released of the tally, and the rule's next state."""
        ...


class Stateless:
    """Base class of clipping rules that remember and learn nothing, and so give the same rule at every step."""

    def init(self) -> State:
        """Returns None: there is nothing to remember."""
        return None

    def advance(
        self, state: State, tally: Sealed[Tensor] | None, expected_batch: float, rng: Rng
    ) -> tuple[Sequence[Event], State]:
        """Returns no event and the state as it was: a stateless clipping rule learns nothing."""
        return (), state


@dataclass(frozen=True)
class ClippedLot:
    """The weighted sum and the tally of a lot; both are private."""

    total: Grads | TwoPartSum | WideSum | OnGrid
    tally: Tensor | None
    rows: int  # at most so many records were added up at once
    dtype: torch.dtype  # in this type


def zero_rows_not_finite(norms: Norms) -> tuple[Norms, Callable[[], Tensor] | None]:
    """Returns the norms that a clipping rule is given, with zeros in rows that are not finite, and what tells which rows
    are finite, (B, 1); None if all are.

    On a device every operation is a launch, so both the norms of single parameters and which rows are finite are left
    until somebody asks.
    """
    if norms.finite:
        return norms, None
    if norms.sums.is_cpu:
        finite = torch.isfinite(norms.squared).all(dim=1, keepdim=True)
        return Norms(torch.where(finite, norms.squared, 0), norms.names, norms.estimate), lambda: finite

    @cache
    def find_finite() -> Tensor:
        return (norms.sums < math.inf).unsqueeze(1)  # squares do not cancel: a finite sum has finite terms

    zeroed = norms.sums.nan_to_num(0.0, 0.0, 0.0)
    columns = partial(_zero_columns, norms, find_finite)
    return NormsOnDemand(zeroed, columns, norms.names, norms.estimate), find_finite


def _zero_columns(norms: Norms, find_finite: Callable[[], Tensor]) -> Tensor:
    return torch.where(find_finite(), norms.squared, 0)


def sum_clipped(
    parts: Iterable[PerSample],
    rule: Rule,
    estimate: Estimate = EXACT,
    sizes: Callable[[], Mapping[str, int]] | None = None,
    largest_batch: int | None = None,
    ranked: RankedLot | None = None,
) -> ClippedLot:
    """Returns Σ w_i g_i by a clipping rule's weights and the sum of the tally over the parts of a lot, with one part in
    memory at a time.

    A record whose norm is not finite gets weight 0 and tallies nothing: it is dropped without a word, because its
    presence is private. Under a rule that bounds nothing there is nothing to protect, and dropping it would hide that
    training diverges: it counts like any other.

    Args:
        parts: the per-sample gradients of the lot, batch by batch.
        rule: the clipping rule of this step.
        estimate: what the caller takes the norms to be; the sensitivity of the release must say so. Norms that are
            something else are refused.
        sizes: gives the number of elements of each tensor, where it is known.
        largest_batch: a public number of records that no part exceeds, where it is known.
        ranked: the lot as this rank takes part in it. Then the parts are this rank's, the total is its share, which the
            release adds up, and the tally is that of all ranks.

    """
    total: Accumulator | OnGridAccumulator | ByRowsAccumulator
    # One process adds up in floating point; ranks add whole numbers on a grid, so that their order does not matter.
    total = Accumulator() if ranked is None else _accumulator_on_grid(rule, ranked, sizes)
    tallies: list[Tensor] = []
    rows = 0
    try:
        for part in parts:
            # The weights are bounded row by row before they are used, so one record adds at most C to the sum.
            weights, norms, finite = _bounded_weights_of_part(part, rule, estimate, sizes)
            if isinstance(total, ByRowsAccumulator):
                total.add_chunk(sums_one_by_one(part, weights))
            else:
                total.add_chunk(part.weighted_sum(weights, into=total.next_buffer()))
            rows = max(rows, weights.shape[0])
            # The tally of a row that is not finite counts as zero, as its gradient does.
            if rule.tally is not None:
                counts = rule.tally(norms)
                tallies.append((counts if finite is None else torch.where(finite(), counts, 0)).sum(dim=0))  # (K,)
            del part, norms  # before the next part is made: one in memory at a time
    except Exception as error:
        # All ranks must use the same grid and sizes, or their sums could not be added.
        if ranked is not None:
            ranked.report_failure(error)  # or the others would wait for this rank
        raise
    assert largest_batch is None or rows <= largest_batch, "a lot is cut into parts of at most so many records"
    if ranked is not None:
        assert not isinstance(total, Accumulator), "ranks add up on a grid"
        if total.has_overflowed:
            ranked.report_failure(
                Refusal(
                    "a sum is too long for whole numbers of 64 bits.\n"
                    "Ranks add up in such numbers, and this one would wrap around.\n"
                    "Use a clipping rule that bounds each row."
                )
            )
        ranked.agree_after_pass(total.total.size, total.total.grid.step, largest_batch)
    tally = None if not tallies else _add_tallies(tallies) if ranked is None else ranked.sum_over_chunks(tallies)
    return ClippedLot(
        total.total, tally, max(USUAL_ROWS, rows if largest_batch is None else largest_batch), total.dtype
    )


def _bounded_weights_of_part(
    part: PerSample, rule: Rule, estimate: Estimate, sizes: Callable[[], Mapping[str, int]] | None
) -> tuple[Tensor, Norms, Callable[[], Tensor] | None]:
    """Returns the clipping rule's bounded weight of each row, the norms, and what tells which rows are finite (None if all
    are).
    """
    norms = part.norms()
    if norms.estimate != estimate:
        raise Refusal(
            f"the norms are {norms.estimate!r} and this query takes them to be {estimate!r}.\n"
            "What one record can add to the sum would not be what the event says.\n"
            "Use exact norms, which the default backend gives."
        )
    # Under a bounded rule a row that is not finite is dropped in silence, because its presence is private.
    measured = norms
    norms, finite = zero_rows_not_finite(norms) if rule.is_bounded else (norms, None)
    weights = rule.weights(norms)
    promise = rule.sensitivity
    # One weight a record, on a device: a few launches that zero and bound it whatever it is.
    has_one_weight = weights.dim() == 2 and weights.shape[1] == 1 and not weights.is_cpu
    if has_one_weight and rule.is_bounded and isinstance(promise, Sensitivity) and promise.units is None:
        return bound_weights_unseen(weights, measured.sums, largest_l2_reach(promise)), norms, finite
    if finite is not None:
        weights = torch.where(finite(), weights, 0)
    # Whatever the rule says, no row may reach further than its promise.
    if isinstance(promise, Sensitivity) and rule.is_bounded:
        weights = bound_weights(weights, norms, promise, sizes or partial(_element_counts, part))
    return weights, norms, finite


def _accumulator_on_grid(
    rule: Rule, ranked: RankedLot, sizes: Callable[[], Mapping[str, int]] | None
) -> OnGridAccumulator | ByRowsAccumulator:
    """Returns the accumulator in which this rank adds up its clipped batches; its grid follows from the clipping rule's
    public bound.
    """
    promise = rule.sensitivity
    # Without a bound there is no step for the grid of whole numbers.
    if not rule.is_bounded:
        raise Refusal(
            "the rule bounds nothing.\n"
            "Ranks add up on a grid that follows from the bound.\n"
            "Give a finite bound, or train in one process."
        )
    # The grid follows from the bound. An unproven rule may exceed it, so its sums are limited to 64-bit numbers.
    if isinstance(promise, Unproven):
        grid, longest = Grid.of(promise.scale), min(MOST_CHUNK_STEPS, MOST_STEPS / max(1, ranked.chunks))
    else:
        factors = None if promise.units is None or sizes is None else promise.units(sizes())
        grid, longest = Grid.of(promise.l2, factors), math.inf
    # Parameters that are gathered layer by layer are summed row by row, one layer at a time.
    if ranked.rounds is not None and ranked.shards is not None:
        trained = {name: p for name, p in ranked.shards.items() if p.requires_grad}
        return ByRowsAccumulator(grid, ranked.ranks, ranked.rounds, trained, longest)
    return OnGridAccumulator(grid, ranked.ranks, longest, ranked.shards)


def _add_tallies(tallies: Sequence[Tensor]) -> Tensor:
    """Returns the sum of the tallies that a clipping rule made of a lot's parts."""
    first, *others = tallies
    for other in others:
        first = first + other
    return first


def _element_counts(part: PerSample) -> Mapping[str, int]:
    """Returns the number of elements of each tensor, from a sum with all weights 0, if the caller does not know it."""
    no_weight = torch.zeros(len(part.losses), 1, device=part.losses.device)
    return {name: tensor.numel() for name, tensor in part.weighted_sum(no_weight).items()}


def bound_weights(weights: Tensor, norms: Norms, sensitivity: Sensitivity, sizes: Sizes) -> Tensor:
    """Returns a clipping rule's weights, (B, 1) or (B, P), with the rows that reach further than the rule promised
    scaled down.

    `sizes` gives the number of elements of each tensor; it is asked only where the sensitivity has units.
    """
    if not weights.numel():
        return weights
    largest_reach = largest_l2_reach(sensitivity)
    # The common case first: nearly always every row keeps the bound, and one call shows it.
    limit = largest_reach * (1 + _ROUNDED)
    has_one_weight = weights.shape[1] == 1 and sensitivity.units is None
    if has_one_weight and are_surely_within(weights, norms.sums, FLOOR, limit):
        return weights
    if weights.is_cpu:  # what follows leaves such weights as they are; a device is not waited for to see that
        low, high = torch.aminmax(
            compute_reaches(weights, norms, sensitivity, sizes)
        )  # of what is not a number both are not
        if low.item() >= 0 and high.item() <= limit:
            return weights
    # Otherwise mend row by row: an improper weight becomes 0, and a reach beyond the bound is scaled down to it.
    # A weight below 0 or not finite has no meaning; its row is left out.
    proper = ((weights >= 0) & torch.isfinite(weights)).all(dim=1, keepdim=True)
    kept = torch.where(proper, weights, 0)
    reach = compute_reaches(kept, norms, sensitivity, sizes).double()
    shorter = torch.where(reach <= limit, 1.0, largest_reach / reach)  # 0 of an infinite reach, 1 of none
    return torch.where(reach.isfinite().unsqueeze(1), kept * shorter.to(kept.dtype).unsqueeze(1), 0)


def bound_weights_unseen(weights: Tensor, squared: Tensor, largest_reach: float) -> Tensor:
    """Returns a clipping rule's weights, (B, 1), none of which reaches further than promised, in few launches and
    without a look at them.

    It does what `bound_weights` does with weights that need mending, and takes 0 for a record whose norm is not finite.

    Args:
        weights: as the rule gave them.
        squared: the squared norm of each record, (B,), which may be infinite or not a number.
        largest_reach: C; no weight times its norm is larger afterwards, up to rounding.

    """
    # C / r is 0 for an infinite norm, and not a number for one that is none.
    largest = squared.sqrt().add_(FLOOR).reciprocal_().mul_(largest_reach).to(weights.dtype).unsqueeze(1)
    # An improper weight becomes 0; `minimum` hands on what is not a number, which becomes 0 too.
    proper = weights.nan_to_num(0.0, 0.0, 0.0).clamp_(min=0.0)
    return torch.minimum(proper, largest).nan_to_num_(0.0)


@accelerate
def are_surely_within(weights: Tensor, squared: Tensor, floor: float, limit: float) -> bool:
    """Returns whether one look shows that a clipping rule's weights keep 0 ≤ w (√s + floor) ≤ limit for all rows; False
    settles nothing.

    Plain code has no such look, and computes the reach of every row.
    """
    return False


def largest_l2_reach(sensitivity: Sensitivity) -> float:
    """Returns the largest L2 reach that keeps every bound that a clipping rule promised."""
    if sensitivity.l1 is None or sensitivity.dimension is None:
        return sensitivity.l2
    return min(sensitivity.l2, sensitivity.l1 / math.sqrt(sensitivity.dimension))


def compute_reaches(weights: Tensor, norms: Norms, sensitivity: Sensitivity, sizes: Sizes) -> Tensor:
    """Returns √(Σ_p (a_p w_ip r_ip)²), shape (B,), the reach of each row under a clipping rule: negative or not a
    number where a weight is.
    """
    if weights.shape[1] == 1 and sensitivity.units is None:
        return weights[:, 0] * norms.total().add_(FLOOR)
    # √(Σ_p (a_p w_p r_p)²): with units the release counts the products.
    by_tensor = weights * norms.squared.sqrt().add_(FLOOR)  # (B, P)
    if sensitivity.units is not None:
        factors = sensitivity.units(sizes())
        by_tensor = by_tensor * by_tensor.new_tensor([factors[name] for name in norms.names])
    lengths: Tensor = torch.linalg.vector_norm(by_tensor, dim=1)
    if not by_tensor.shape[1]:
        return lengths
    # A negative weight would vanish in the square, so it is returned as it is, and the caller sets it to 0.
    least = by_tensor.amin(dim=1)
    return torch.where(least >= 0, lengths, least)


def works_row_by_row(
    function: Callable[[Rows], Given],
    rows: Rows,
    rng: Rng,
    result: Given | None = None,
    largest_sample: int = LARGEST_SAMPLE,
) -> bool:
    """Returns whether a function, such as a clipping rule's weights, looks at each row alone: it gives a row the same
    on a permutation of the rows, and on half of them.

    `result` is what it gave for all rows, if that is known already.

    >>> lengths = torch.tensor([1.0, 2.0, 3.0, 4.0])
    >>> works_row_by_row(lambda r: 1 / r, lengths, Rng.from_seed(0))
    True
    >>> works_row_by_row(lambda r: r / r.max(), lengths, Rng.from_seed(0))
    False
    """
    # One row has no others that it could depend on.
    n = len(rows.squared) if isinstance(rows, Norms) else len(rows)
    if n < 2:
        return True
    all_rows = _as_float64(function(rows) if result is None else result)
    # A sample is enough: a function that mixes rows shows it in almost any of them.
    sample = (
        np.arange(n) if n <= largest_sample else np.unique(rng.integers(largest_sample, n))
    )  # none twice: the halves have no row in common
    # A permutation shows what depends on places, and the two halves show what depends on other rows.
    order = sample[rng.permutation(len(sample))]
    half = np.sort(order[: len(order) // 2])
    other = np.sort(order[len(order) // 2 :])
    return all(
        _agrees_with_rows(all_rows, where, _as_float64(function(_take_rows(rows, where))))
        for where in (order, half, other)
    )


SMALL_SAMPLE = 64
"""The number of rows that are tried wherever such a function is used: it costs as much as 128 rows more."""


def refuse_statistics(function: Callable[[Rows], Given], rows: Rows, result: Given, rng: Rng, name: str) -> None:
    """Raises Refusal for a function that does not work row by row, as a clipping rule must, with its name and the cure;
    `result` is what it gave on all rows.
    """
    if not works_row_by_row(function, rows, rng, result, SMALL_SAMPLE):
        raise Refusal(
            f"{name}: what it gives a record changes with the other records.\n"
            "A record could then move the contributions of others, which its noise does not cover.\n"
            "Give a function of each row on its own. Take statistics such as a mean or a maximum from public data, "
            "or release them with noise first."
        )


class RowwiseWatch:
    """Watches the functions of a rule that is not of this library: each is tried on every batch it is used on."""

    STATISTIC = "the rule's weights or tally change with other rows of a batch: nothing bounds what one record moves"

    def __init__(self) -> None:
        self.is_broken, self.is_watching = False, False

    def __call__(self, function: Callable[[Norms], Tensor]) -> Callable[[Norms], Tensor]:
        """Returns the function, watched. The library's own functions are proved and returned as they are."""
        # Functions of this library are proved on paper; only a user's own are tried out.
        if is_own_code(function):
            return function
        # The choice of rows must be secret, or the function could recognise the check.
        self.is_watching = True
        self._rng = Rng.from_entropy()

        def call_and_check(norms: Norms) -> Tensor:
            """Returns the result of a clipping rule's function, after trying whether it works row by row; a failure is
            remembered.
            """
            # The user's result is what is used in any case, so a check never changes what is trained.
            result = function(norms)
            if not self.is_broken and len(norms.squared):
                # Work on a copy: the function might keep the tensor and write to it later.
                kept_result = result.clone()
                # The rule must work row by row on the lot's lengths, on lengths that a neighbour might have, and on a batch
                # of short rows alone or of long ones alone: a mean over rows of any length is always long. And it may keep
                # nothing of what it has seen.
                self.is_broken = not (
                    works_row_by_row(function, norms, self._rng, kept_result)
                    and works_row_by_row(function, self._rescale_rows(norms), self._rng)
                    and works_row_by_row(function, self._rescale_batch(norms), self._rng)
                    and torch.equal(function(norms), kept_result)
                )
            return result

        return call_and_check

    def is_broken_anywhere(self, ranked: RankedLot | None) -> bool:
        """Returns whether a function is broken, here or on any other rank."""
        return self.is_broken if ranked is None or not self.is_watching else ranked.any_rank(self.is_broken)

    def _rescale_rows(self, norms: Norms) -> Norms:
        """Returns rows of any length: each norm is multiplied by 10⁻³ to 10³."""
        exponents = torch.from_numpy(self._rng.uniform(len(norms.squared)) * 12 - 6).to(norms.squared)
        return Norms(norms.squared * (10.0**exponents).unsqueeze(1), norms.names, norms.estimate)

    def _rescale_batch(self, norms: Norms) -> Norms:
        """Returns rows that are all longer or all shorter than they were: one factor of 10⁻³ to 10³ for all norms."""
        factor = 10.0 ** float(self._rng.uniform(1)[0] * 12 - 6)
        return Norms(norms.squared * factor, norms.names, norms.estimate)


def _take_rows(rows: Rows, where: NDArray[np.int64]) -> Rows:
    """Returns the rows at these places, on which a function, such as a clipping rule's weights, is tried again."""
    # Norms are taken with their names, so that the function sees what it would see in a smaller lot.
    if isinstance(rows, Norms):
        chosen: Any = Norms(rows.squared[torch.from_numpy(where).to(rows.squared.device)], rows.names, rows.estimate)
    else:
        chosen = rows[torch.from_numpy(where).to(rows.device) if isinstance(rows, Tensor) else where]
    taken: Rows = chosen
    return taken


def _as_float64(values: Given) -> NDArray[np.float64]:
    return (
        values.detach().cpu().double().numpy() if isinstance(values, Tensor) else np.asarray(values, dtype=np.float64)
    )


def _agrees_with_rows(result: NDArray[np.float64], where: NDArray[np.int64], some: NDArray[np.float64]) -> bool:
    """Returns whether what a function such as a clipping rule's gave for some rows agrees up to rounding with the rows
    `where` of `result`.
    """
    # A single number for all rows depends on none of them, as long as it is the same for every choice of rows.
    if result.ndim == 0 or some.ndim == 0:  # one number for all rows: the same whatever the rows are
        return result.shape == some.shape and bool(np.array_equal(result, some, equal_nan=True))
    wanted = result[where] if len(result) > 1 or len(where) <= 1 else result
    if wanted.shape != some.shape:
        return False
    # Two values agree if they are near, equal (infinities), or both not a number.
    each = wanted.reshape(len(wanted), -1), some.reshape(len(some), -1)
    # Differences count relative to the largest value in the row.
    size = np.nan_to_num(np.abs(each[0]), posinf=0.0).max(axis=1, initial=0.0, keepdims=True)
    with np.errstate(invalid="ignore"):
        near = np.abs(each[0] - each[1]) <= TOLERANCE * size
    return bool((near | (each[0] == each[1]) | (np.isnan(each[0]) & np.isnan(each[1]))).all())


def is_own_code(function: Callable[..., Any]) -> bool:
    """Returns whether a clipping rule's function, and all that it holds, is code of this package, which need not be
    tried row by row.

    >>> from sordino import Flat
    >>> is_own_code(Flat(1.0).rule(None, lambda: None).weights)
    True
    >>> is_own_code(lambda norms: norms)
    False
    """
    return _is_own(function, set())


def _is_own(thing: Any, seen: set[int]) -> bool:
    """Returns whether what a clipping rule's function holds is a plain value or the library's own; `seen` is what is
    being looked at already.
    """
    if isinstance(thing, _VALUES) or type(thing) in (Tensor, np.ndarray) or id(thing) in seen:
        return True
    # Each kind of object is followed to everything that its code could reach.
    seen.add(id(thing))
    if isinstance(thing, FunctionType):
        held = [
            *map(_cell_content, thing.__closure__ or ()),
            *(thing.__defaults__ or ()),
            *(thing.__kwdefaults__ or {}).values(),
        ]
        return _is_own_namespace(thing.__globals__) and all(_is_own(each, seen) for each in held)
    if isinstance(thing, MethodType):
        return _is_own(thing.__func__, seen) and _is_own(thing.__self__, seen)
    if type(thing) is partial:
        return all(_is_own(each, seen) for each in (thing.func, *thing.args, *thing.keywords.values()))
    if type(thing) in (tuple, list, set, frozenset):
        return all(_is_own(each, seen) for each in thing)
    if type(thing) is dict:
        return all(_is_own(each, seen) for pair in thing.items() for each in pair)
    if isinstance(thing, BuiltinFunctionType):
        return thing.__self__ is None or isinstance(thing.__self__, ModuleType | type)  # not a method of some container
    if isinstance(thing, type):
        return _is_own_class(thing)
    # An instance is the library's own if its very class is, not a subclass of it, and if all its fields are.
    return _is_own_class(type(thing)) and all(_is_own(each, seen) for each in vars(thing).values())


def _cell_content(cell: CellType) -> Any:
    """Returns what a cell in the closure of a clipping rule's function holds, or the cell itself, which nobody
    recognises, if it is empty.
    """
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _is_own_namespace(namespace: dict[str, Any]) -> bool:
    """Returns whether a clipping rule's function runs in the namespace, the very object, of a module of this package."""
    name = namespace.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) and name.startswith(_PACKAGE) else None
    return module is not None and vars(module) is namespace


def _is_own_class(kind: type) -> bool:
    """Returns whether a class that a clipping rule uses is the very one that a module of this package has under its
    name.
    """
    # The module must hold this very class under its name: a class can be given any module name by hand.
    if not kind.__module__.startswith(_PACKAGE):
        return False
    resolved: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        resolved = getattr(resolved, part, None)
    return resolved is kind
