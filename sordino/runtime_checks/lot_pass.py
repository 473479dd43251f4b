"""Lot pass: neighbour tests that compare with the pass that training makes anyway.

A test needs two passes whose other records must agree. At a lot that is tested the first of them is the training pass over
the lot's first batch: its losses and gradient lengths are remembered, and only the second pass is paid for. Two questions
are asked:

    company    a few records of the batch, among other records than before and fewer of them, have the losses and gradient
               lengths that they had in training. One small pass; for models whose passes draw nothing at random
    exchanged  with a quarter of the batch's rows replaced, nobody else's loss, length or direction moves. One pass of the
               training batch's size, with the random numbers of the training pass

The first question also goes through the dataset and collate. Whatever couples records (a statistic, a ranking, a padding, a
divisor counted over the batch, something kept from one batch to the next) shows in it, at the size that training has.

Privacy: a test releases nothing. That it failed is said once and ends the claim; which records it used is not said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.lots.loading import Alter, BatchReader, cut_into_batches
from sordino.per_sample import batch_structure as batches
from sordino.per_sample.formulas.gradient_part import is_autocast_on
from sordino.per_sample.protocol import PerSample
from sordino.per_sample.unit_loss import UnitBatch
from sordino.release.sensitivity import EXACT
from sordino.rng.global_generators import GlobalState, preserve_generators
from sordino.rng.streams import Rng
from sordino.runtime_checks.alterations import ALTERATIONS, Alterations
from sordino.runtime_checks.compare_passes import NOTHING, direction_weights, distance_between
from sordino.runtime_checks.coupling_finding import Broken, CouplingFinding
from sordino.runtime_checks.double_precision import DoublePrecision

COMPANY = 4
"""Records of the training batch that are watched among others, and as many others."""
_EXCHANGED = 4
"""One of so many rows of a training batch is exchanged."""
_UNREAD = 0.5
"""How often the few records are read from the dataset as it was before any record had been read."""
_SAME, _OTHER, _LOW = 1e-4, 2e-3, 0.2
"""Relative differences allowed between batches of equal shapes, of other shapes, and of other shapes in half precision."""
_TOGETHER = 0.75
"""The chance of each part of an alteration to be used beside the others: one of them may be refused, or hide another."""
_FLOOR = 0.05
"""Losses and lengths below this share of the usual one are compared as if they had it."""


@dataclass(frozen=True)
class RememberedPass:
    """What the training pass over a lot's first batch showed."""

    batch: Any
    began: GlobalState  # where the global generators stood before it
    ended: GlobalState
    random: bool  # something was drawn from a global generator
    losses: Tensor  # (B,)
    lengths: Tensor  # (B, P), of the gradient of each parameter
    watched: Tensor  # (B,), the rows that are not exchanged; all where nothing is
    weights: Tensor | None  # (B, 1), of `total`
    total: dict[str, Tensor] | None  # the sum of the watched rows' directions with random signs


class OwnPass:
    """Watches the training pass over the first batch of one lot.

    Args:
        stream: the secret choices of this test.
        exchange: whether rows of the whole batch will be exchanged, for which a sum of directions is remembered.

    """

    def __init__(self, stream: Rng, *, exchange: bool) -> None:
        self._stream, self._exchange = stream, exchange
        self.remembered: RememberedPass | None = None
        self.batch: Any = None  # the one that was watched

    def watch(self, batch: Any, make: Callable[[], tuple[PerSample, Tensor]]) -> tuple[PerSample, Tensor]:
        """Makes the training pass over a lot's `batch` and remembers its losses and lengths for the neighbour test;
        returns what `make` returns.
        """
        began = GlobalState.capture()
        part, losses = make()
        ended = GlobalState.capture()
        norms, self.batch = part.norms(), batch
        # Estimated lengths differ from pass to pass by design, and units choose their records anew each time.
        if norms.estimate == EXACT and type(batch) is not UnitBatch and len(losses) >= 2:
            self._remember(batch, began, ended, part, norms.squared)
        return part, losses

    def _remember(self, batch: Any, began: GlobalState, ended: GlobalState, part: PerSample, squared: Tensor) -> None:
        """Keeps what the neighbour tests compare with of the pass that training makes over a lot."""
        # All records are watched unless some of them are exchanged for others.
        b = len(part.losses)
        watched = torch.ones(b, dtype=torch.bool)
        weights = total = None
        if self._exchange:
            # In the second half, so that some rows stand in front of all that are exchanged.
            places = b - 1 - self._stream.permutation(b - b // 2)[: max(1, b // _EXCHANGED)]
            watched[torch.from_numpy(places)] = False
            # Random signs keep differences of several records from cancelling in the sum.
            signs = torch.from_numpy(np.where(self._stream.uniform(b) < 0.5, -1.0, 1.0)).float()
            weights = direction_weights(squared.detach().sum(1).sqrt().cpu().float(), signs, watched)
            # The sum is cloned, because the engine reuses its memory for the next batch.
            total = {name: sum_.clone() for name, sum_ in part.weighted_sum(weights.to(squared.device)).items()}
        self.remembered = RememberedPass(
            batch,
            began,
            ended,
            not began.equals(ended),
            part.losses.detach().cpu().clone(),
            squared.detach().cpu().sqrt(),
            watched,
            weights,
            total,
        )


class OwnPassTest:
    """Asks both questions of one model, loss and backend.

    Args:
        gradients: computes per-sample gradients of a batch as training does.
        model: the model, for the type its layers compute in.
        rounding: answers whether a difference is nothing but rounding.

    """

    def __init__(self, gradients: Callable[[Any], PerSample], model: nn.Module, rounding: DoublePrecision) -> None:
        self._gradients, self._model, self._rounding = gradients, model, rounding
        self._refused: set[str] = set()  # parts of alterations that the user's code raised an error for
        self.company_applies = True  # until records are found to be read with random changes

    def ask_in_other_company(
        self,
        training_pass: RememberedPass,
        load: BatchReader,
        drawn: NDArray[np.int64],
        n: int,
        chunk: int,
        stream: Rng,
    ) -> CouplingFinding | None:
        """Asks whether a few records of the lot have the losses and gradient lengths of the training pass among fewer
        and other records.

        Args:
            training_pass: the training pass, over the first batch of the lot.
            load: reads records and collates them, as training does.
            drawn: the lot's records.
            n: how many records the dataset has.
            chunk: how many records training runs at once, at most.
            stream: the secret choices of this test.

        Returns:
            What is broken, or None. None too where records are read with random changes: then this question cannot be
            asked, and `company_applies` says so from here on.

        """
        # The training pass ran the lot's first chunk; if that is cut otherwise, nothing can be compared.
        first = cut_into_batches(drawn, chunk, n)[0] if len(drawn) else drawn
        if len(first) != len(training_pass.losses):
            self.company_applies = False  # the lot is cut in another way
            return None
        places = stream.permutation(len(first))[: min(COMPANY, max(1, len(first) // 2))]
        # Training must not notice the test: its generators are put back.
        with preserve_generators(), torch.enable_grad():
            seen, batch = self._measure_in_other_company(load, first[places], n, stream)
            far = _largest_difference(training_pass, seen, torch.from_numpy(places), len(places))
            if far <= _OTHER:
                return None
            return self._settle_suspicion(training_pass, load, first, places, batch)

    def _measure_in_other_company(
        self, load: BatchReader, records: NDArray[np.int64], n: int, stream: Rng
    ) -> tuple[tuple[Tensor, Tensor], Any]:
        """Returns losses and gradient lengths of records of the lot's pass among strangers, and that batch, in which
        the records stand first.

        Some of the strangers are made extreme. A user's code may refuse those with an error, which is no coupling; then the
        question is asked with strangers as they are.
        """
        # Half of the times from the dataset as it was before any record had been read: what it learned by reading shows.
        read = load.as_if_unread() if float(stream.uniform(1)[0]) < _UNREAD else load
        # Strangers are drawn from the whole dataset, so they may be records that are not in the lot.
        strangers = stream.integers(len(records), n).astype(np.int64)
        both = np.concatenate([records, strangers])
        parts = self._choose_parts(stream)
        # Now and then the strangers are made extreme as well; what the user's code refuses is not tried again.
        if parts:
            try:
                batch = read(
                    both, None, self._make_alteration(len(records), parts, collated=bool(load.list_user_code()))
                )
                if batches.batch_size(batch) == len(both):
                    return self._measure(batch), batch
            except Exception:  # a user's code may raise anything on a record that it does not expect
                if len(parts) == 1:
                    self._refused.update(parts)
        batch = read(both)
        return self._measure(batch), batch

    def _choose_parts(self, stream: Rng) -> list[str]:
        """Returns how strangers are altered before records of the lot's pass run among them: in no way a third of the
        times, else in some of the known ways.
        """
        kind, which = (int(k) for k in stream.integers(2, 12))
        coins = stream.uniform(8)
        if kind < 4:
            return []
        chosen = [part for part in ALTERATIONS[which % len(ALTERATIONS)] if part not in self._refused]
        some = [part for part, coin in zip(chosen, coins, strict=False) if coin < _TOGETHER]
        return some or chosen[:1]

    def _make_alteration(self, first: int, parts: list[str], *, collated: bool) -> Alter:
        """Returns the function that alters the strangers in a batch that is compared with the lot's pass: all records
        from the place `first` on.
        """
        safe = next(self._model.parameters()).device.type != "cpu"

        def alter(records: list[Any]) -> list[Any]:
            alterations = Alterations(records, safe=safe, collated=collated)
            used = [part for part in parts if part in alterations.applicable]
            return [*records[:first], *(alterations.alter(record, used) for record in records[first:])]

        return alter

    def _settle_suspicion(
        self,
        training_pass: RememberedPass,
        load: BatchReader,
        first: NDArray[np.int64],
        places: NDArray[np.int64],
        other_batch: Any,
    ) -> CouplingFinding | None:
        """Finds out why records differ in other company from the lot's training pass; called seldom, so that it may
        cost a pass or two more.
        """
        # Records that are read with random changes are other records the second time.
        again = load(first)
        one, two = batches.list_tensors(again), batches.list_tensors(training_pass.batch)
        if len(one) != len(two) or not all(map(_tensors_equal, one, two)):
            self.company_applies = False
            return None
        # The same batch with the same random numbers must give the same: else something is kept from batch to batch.
        training_pass.began.restore()
        part = self._gradients(self._move_to_device(training_pass.batch))
        seen = part.losses.detach().cpu(), part.norms().squared.detach().cpu().sqrt()
        everyone = torch.arange(len(training_pass.losses))
        if _largest_difference(training_pass, seen, everyone, len(everyone)) > _SAME:
            return CouplingFinding(Broken.AGAIN)
        # What counts is the gradients themselves: a loss may be little but rounding while its gradient is not.
        rows, lengths = torch.from_numpy(places), training_pass.lengths.square().sum(1).sqrt().float()
        chosen = torch.zeros(len(lengths), dtype=torch.bool)
        chosen[rows] = True
        weights = direction_weights(lengths, torch.ones_like(lengths), chosen)
        among = {name: sum_.clone() for name, sum_ in part.weighted_sum(self._move_to_device(weights)).items()}
        others = self._gradients(self._move_to_device(other_batch))
        apart = others.weighted_sum(self._move_to_device(_pad_weights(weights[rows], len(others.losses))))
        far = distance_between(among, apart) / max(1.0, float(len(rows))) ** 0.5
        if far <= _OTHER:
            return None
        explained = self._rounding.rounding_explains_rows(
            self._move_to_device(training_pass.batch), rows, self._move_to_device(other_batch), torch.arange(len(rows))
        )
        if explained is None:  # float64 cannot be asked
            explained = far <= self._tolerance(training_pass)
        return None if explained else CouplingFinding(Broken.EXCHANGED)

    def ask_with_rows_exchanged(self, training_pass: RememberedPass, stream: Rng) -> CouplingFinding | None:
        """Asks whether the watched rows of the lot's training pass stay as they are if the other rows are replaced, at
        the batch size of training.
        """
        assert training_pass.weights is not None, "remembered for this question"
        places = torch.nonzero(~training_pass.watched).flatten().tolist()
        kept = torch.nonzero(training_pass.watched).flatten()
        if not len(kept):
            return None
        # All exchanged rows become one and the same row, so that every ranking and statistic moves.
        source = int(kept[int(stream.integers(1, len(kept))[0])])
        exchanged = _replace_rows(training_pass.batch, places, source)
        variants = [_make_extreme(exchanged, places[::2], stream), exchanged]
        with preserve_generators(), torch.enable_grad():
            # Rows that are made extreme as well come first; the user's code may refuse those.
            for batch in variants:
                if batch is None:
                    continue
                training_pass.began.restore()
                try:
                    part = self._gradients(self._move_to_device(batch))
                except Exception:
                    if batch is exchanged:
                        raise
                    continue  # an extreme record may be refused; the question is asked with rows as they are
                return self._compare_exchanged(training_pass, part)
        return None

    def _compare_exchanged(self, training_pass: RememberedPass, part: PerSample) -> CouplingFinding | None:
        """Compares the watched rows of the lot's training pass with those of a pass over the same batch with other rows
        exchanged.
        """
        squared = part.norms().squared
        weights = training_pass.weights
        assert weights is not None, "remembered for this question"
        assert training_pass.total is not None, "remembered for this question"
        total = part.weighted_sum(weights.to(squared.device))
        if not GlobalState.capture().equals(training_pass.ended):
            return None  # the exchanged rows decide how much is drawn, so the two cannot be compared
        rows = torch.nonzero(training_pass.watched).flatten()
        seen = part.losses.detach().cpu()[rows], squared.detach().cpu().sqrt()[rows]
        far = _largest_difference(training_pass, seen, rows, len(rows))
        turned = distance_between(training_pass.total, total) / max(1.0, float(len(rows))) ** 0.5
        if max(far, turned) <= _SAME:
            return None
        if training_pass.random:
            # Rows that draw more or less than those before them may draw equally much in all by chance, and shift what
            # the rows behind them meet. The rows in front of them meet the same numbers in any case.
            front = rows[rows < int(torch.nonzero(~training_pass.watched).min())]
            seen = part.losses.detach().cpu()[front], squared.detach().cpu().sqrt()[front]
            if not len(front) or _largest_difference(training_pass, seen, front, len(front)) <= _SAME:
                return None
        return CouplingFinding(Broken.EXCHANGED)

    def _measure(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Returns the losses (B,) and the lengths (B, P) of a batch."""
        part = self._gradients(self._move_to_device(batch))
        return part.losses.detach().cpu(), part.norms().squared.detach().cpu().sqrt()

    def _move_to_device(self, batch: Any) -> Any:
        return batches.move_to(batch, next(self._model.parameters()).device)

    def _tolerance(self, training_pass: RememberedPass) -> float:
        """Returns the relative difference that rounding may make between the lot's training pass and batches of other
        shapes.
        """
        low = is_autocast_on()
        half = (torch.bfloat16, torch.float16)
        low = low or training_pass.losses.dtype in half or any(p.dtype in half for p in self._model.parameters())
        return _LOW if low else _OTHER


def _largest_difference(training_pass: RememberedPass, seen: tuple[Tensor, Tensor], rows: Tensor, count: int) -> float:
    """Returns the largest relative difference of losses and lengths between rows of the lot's training pass and the
    first rows of another pass.

    A parameter's length is compared relative to the length of the record's whole gradient: a layer whose gradient is nearly
    zero beside the others has nothing to say.
    """
    losses, lengths = seen
    one, other = training_pass.lengths[rows].double(), lengths[:count].double()
    total_lengths = torch.maximum(one.square().sum(1).sqrt(), other.square().sum(1).sqrt())
    usual = training_pass.lengths.double().square().sum(1).sqrt()
    return max(
        _largest_relative_difference(one, other, total_lengths.unsqueeze(1), usual),
        _largest_relative_difference(
            training_pass.losses[rows].double(), losses[:count].double(), None, training_pass.losses.double().abs()
        ),
    )


def _largest_relative_difference(one: Tensor, other: Tensor, size: Tensor | None, usual: Tensor) -> float:
    """Returns how far the losses or lengths of a lot's pass and of another pass are apart, at most, over `size` or the
    larger of both.

    It is infinite where only one of them is finite.
    """
    fine = one.isfinite()
    if not torch.equal(fine, other.isfinite()):
        return float("inf")
    finite = usual[usual.isfinite()]
    floor = _FLOOR * (float(finite.median()) if len(finite) else 1.0) + NOTHING
    size = torch.maximum(one.abs(), other.abs()) if size is None else size
    far = ((one - other).abs() / (size + floor))[fine]
    far = far[far.isfinite()]
    return float(far.max()) if len(far) else 0.0


def _pad_weights(weights: Tensor, count: int) -> Tensor:
    """Returns weights for `count` rows of which the first have these, and the others 0."""
    return torch.cat([weights, torch.zeros(count - len(weights), 1)])


def _tensors_equal(one: Tensor, other: Tensor) -> bool:
    """Returns whether a tensor of a lot's pass holds the same values as one of another pass; nan is the same as nan."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = one.cpu(), other.cpu()
    return torch.equal(one, other) or (one.is_floating_point() and torch.equal(one.nan_to_num(), other.nan_to_num()))


def _replace_rows(batch: Any, places: list[int], source: int) -> Any:
    """Returns the batch of a lot's pass with the rows at `places` replaced by the row `source`."""

    def change(leaf: Tensor) -> Tensor:
        result = leaf.clone()
        result[places] = leaf[source]
        return result

    return batches.map_tensors(change, batch)


def _make_extreme(batch: Any, places: Any, stream: Rng) -> Any | None:
    """Returns the batch of a lot's pass with the numbers of some rows made extreme, or None where a coin or their type
    forbids it.

    A third of the times rows stay as they are, a third they become large, a third they become nan or infinite: a user's
    code that looks for nan may do nothing else then.
    """
    # The coins are tossed in any case, so that later choices do not depend on the batch.
    kind, choice = (int(k) for k in stream.integers(2, 6))
    floats = any(leaf.is_floating_point() or leaf.dtype == torch.uint8 for leaf in batches.list_tensors(batch))
    rows = list(places)
    if kind < 2 or not floats or not rows:
        return None

    def change(leaf: Tensor) -> Tensor:
        """Returns a tensor of the batch of a lot's pass with the numbers or pixels of the chosen rows made extreme."""
        if leaf.dtype == torch.uint8:
            result = leaf.clone()
            result[rows] = 0 if choice % 2 else 255
            return result
        if not leaf.is_floating_point():
            return leaf
        result = leaf.clone()
        # A shifted and scaled copy first; values that are not finite show sums and maxima over the batch.
        if kind < 4:
            result[rows] = 3 + (-7.0 if choice % 2 else 1e3) * leaf[rows]
        else:
            result[rows] = float("nan") if choice % 2 else float("inf")
        return result

    return batches.map_tensors(change, batch)
