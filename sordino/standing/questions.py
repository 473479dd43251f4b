"""The standing test of one run: the neighbour hunter's questions, asked during training, on drawn records.

    again      the batch once more with the same randomness gives the same losses and gradients
    exchanged  with one record replaced, by another or by an extreme one, nobody else's loss or gradient moves
    alone      a record by itself has the gradient it had in the batch, and its length is that of what it adds to a sum

Most tests are made on a few records, some on as many as training runs at once: a ranking may keep all of a few.
A batch whose passes draw different amounts at random (a longer padding has a larger dropout mask) decides nothing; the
question is asked again in evaluation mode, where the layers' randomness is off.

Privacy: a test releases nothing. That it failed is said once and ends the claim; which records it used is not said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.door.sensitivity import EXACT
from sordino.gradients import batch as batches
from sordino.gradients.probe import evaluation_mode
from sordino.gradients.protocol import PerSample
from sordino.lots.loading import Reads
from sordino.random.global_state import left_as_they_were, next_draws, seed_all
from sordino.random.rng import Rng
from sordino.standing.compare import Seen, directions, disagreement, distance, length
from sordino.standing.double import Rounding
from sordino.standing.finding import Broken, Finding
from sordino.standing.neighbours import EXTREMES, RecordsTogether, extreme, shapes

MOST, LEAST = 16, 8
"""Records of a test: enough to be coupled with one another, few enough to cost little; an eighth of a lot between them."""
_SAME = 1e-4
"""Relative difference allowed between batches of equal shapes, whose other rows are computed by the same operations."""
_OTHER = 2e-3
"""The same between batches of other shapes in float32: sums are taken in another order."""
_LOW = 0.2
"""The same where layers compute in half precision."""
_SHORT = 1e-3
"""By how much a length may fall short of what enters the sum; the door's slack is for float32's own rounding."""
_MORE = 3
"""Further exchanges with other random numbers, where the model, the loss or collate draws some: each may be a rare case."""
_OF = 4
"""One of so many records is exchanged in a whole batch, all for one and the same, so that every ranking moves."""
_TRIES = 4
"""Other records tried in search of one that leaves the batch's shapes as they are."""


class StandingTest:
    """Asks the questions of one model, loss and backend."""

    def __init__(self, gradients: Callable[[Any], PerSample], model: nn.Module, rounding: Rounding) -> None:
        self._gradients, self._model, self._rounding = gradients, model, rounding

    def __call__(
        self,
        load: Reads,
        drawn: NDArray[np.int64],
        n: int,
        stream: Rng,
        *,
        thorough: bool,
        extremes: int = len(EXTREMES),
        whole: int | None = None,
    ) -> Finding | None:
        """What is broken, if anything is. `thorough`: every question; else an exchange and one question more.

        `extremes`: so many extreme records are tried beside a real one, where every question is asked or the batch is
        whole. `whole`: on as many records as training runs at once, which is this number at most; else on a few of them.
        """
        indices = _chosen(drawn, n, stream, whole)
        with left_as_they_were(), torch.enable_grad():
            test = _OneTest(self, RecordsTogether(load, indices, stream.seed()), stream, n, whole=whole is not None)
            test.learn()
            if test.finding is not None:
                return test.finding
            coin = float(stream.uniform(1)[0])
            if thorough or coin < 1 / 3:
                test.again()
            if n > 1:
                test.exchanged(extremes if thorough or whole is not None else int(coin >= 2 / 3))
            if thorough or 1 / 3 <= coin < 2 / 3:
                test.alone()
            if test.finding is None and test.random and (thorough or coin < 0.25):
                with evaluation_mode(self._model):
                    in_evaluation = _OneTest(self, test.together, stream, n, whole=whole is not None)
                    in_evaluation.learn()
                    if n > 1:
                        in_evaluation.exchanged(_now_and_then(stream))
                    in_evaluation.alone()
                    test.finding = in_evaluation.finding
            for _ in range(_MORE if thorough and test.random and n > 1 else 0):  # what happens now and then only
                if test.finding is None:
                    test = _OneTest(
                        self, RecordsTogether(load, indices, stream.seed()), stream, n, whole=whole is not None
                    )
                    test.learn()
                    test.exchanged(_now_and_then(stream))
            return test.finding


class _OneTest:
    """One test in progress."""

    def __init__(self, of: StandingTest, together: RecordsTogether, stream: Rng, n: int, *, whole: bool) -> None:
        self._test, self.together, self._stream, self._n, self._whole = of, together, stream, n, whole
        self._device = next(of._model.parameters()).device
        self.finding: Finding | None = None
        self.random = False  # something was drawn at random by the model, the loss or collate

    def learn(self) -> None:
        """The first pass, which the others are compared with."""
        self._batch, by_collate = self.together.batch()
        b = batches.size(self._batch)
        if b != len(self.together.indices):
            self.finding = Finding(Broken.ROWS)
            return
        self._places = self._stream.permutation(b)[: max(1, b // _OF) if self._whole else 1]
        self._seed = self._stream.seed()
        seed_all(self._seed)
        self._untouched = next_draws()  # what is drawn next where a pass drew nothing
        self._watched = torch.ones(b, dtype=torch.bool)
        self._watched[torch.from_numpy(self._places)] = False
        self._signs = torch.from_numpy(np.where(self._stream.uniform(b) < 0.5, -1.0, 1.0)).float()
        self._weights: Tensor | None = None
        self._part: PerSample | None = None
        self._first = self._pass(self._batch, keep=True)
        self.random = self._first.drawn or by_collate

    def again(self) -> None:
        """The same batch once more."""
        if self.finding is None:
            everyone = torch.ones_like(self._watched)
            if disagreement(self._first, self._pass(self._batch), everyone) > _SAME:
                self.finding = Finding(Broken.AGAIN)

    def exchanged(self, extremes: int) -> None:
        """One record, or some where the batch is whole, replaced by another of the dataset, and in turn by extreme ones."""
        real = self._other()
        variants: list[Any] = [] if real is None else [real]
        for k in self._stream.permutation(len(EXTREMES))[:extremes].tolist():
            low = bool(self._stream.integers(1, 2)[0])
            made = extreme(self._batch, self._places.tolist(), EXTREMES[k], low=low)
            variants += [] if made is None else [made]
        for number, batch in enumerate(variants):
            if self.finding is None:
                self._compare(batch, real=number == 0 and real is not None)

    def alone(self) -> None:
        """One record by itself, where nothing is random."""
        if self.finding is not None or self._part is None or self._weights is None:
            return
        places = np.flatnonzero(self._watched.numpy() & (self._first.lengths.isfinite().numpy()))
        if not len(places):
            return
        i = int(places[int(self._stream.integers(1, len(places))[0])])
        chosen = torch.zeros(len(self._watched), 1)
        chosen[i] = 1
        within = {name: tensor.clone() for name, tensor in self._part.weighted_sum(self._on(chosen)).items()}
        size, measured = length(within), float(self._first.lengths[i])
        exact = self._part.norms().estimate == EXACT  # an estimate has a law of its own, and the event says so
        if exact and size > (1 + _SHORT) * measured + torch.finfo(torch.float32).tiny:
            self.finding = Finding(Broken.NORM)
            return
        if self.random:
            return
        single, by_collate = self.together.batch([i], unread=True)
        seed_all(self._seed)
        part = self._test._gradients(self._ready(single))
        apart = part.weighted_sum(self._on(torch.ones(1, 1)))
        if by_collate:
            return
        usual = float(self._first.lengths[self._first.lengths.isfinite()].median())
        far = distance(within, apart) / max(size, length(apart), 0.05 * usual, torch.finfo(torch.float32).tiny)
        if far > self._tolerance(same=False):
            explained = self._test._rounding.explains_alone(self._ready(self._batch), i, self._ready(single))
            self.finding = None if explained else Finding(Broken.ALONE)

    def _other(self) -> Any | None:
        """The batch with one record exchanged; with randomness, by one that leaves its shapes as they are, if it can."""
        made = None
        for _ in range(_TRIES if self.random else 1):
            gone = self.together.indices[self._places]
            by = np.repeat(self._stream.integers(1, self._n - 1), len(gone))
            by += by >= gone[0]  # any record but the one that is replaced
            made, _ = self.together.batch(exchanged=dict(zip(self._places.tolist(), by.tolist(), strict=True)))
            if shapes(made) == self._first.shapes:
                break
        return made

    def _compare(self, batch: Any, *, real: bool) -> None:
        if batches.size(batch) != len(self._watched):
            self.finding = Finding(Broken.ROWS)
            return
        try:
            seen = self._pass(batch)
        except Exception:
            if real:
                raise
            return  # a stranger's code may refuse an extreme record: that is an error, not a wrong claim
        if self._first.ended != seen.ended:
            self.random = True
            return  # the two drew different amounts: nothing can be said
        far = disagreement(self._first, seen, self._watched)
        if far > self._tolerance(same=seen.shapes == self._first.shapes):
            explained = real and self._test._rounding.explains(
                self._ready(self._batch), self._ready(batch), self._watched, self._seed
            )
            if not explained:
                self.finding = Finding(Broken.EXCHANGED)

    def _pass(self, batch: Any, *, keep: bool = False) -> Seen:
        ready = self._ready(batch)
        seed_all(self._seed)
        part = self._test._gradients(ready)
        lengths = part.norms().total().detach().cpu().float()
        if self._weights is None:
            self._weights = directions(lengths, self._signs, self._watched)
        weights = self._weights * lengths.isfinite().unsqueeze(1)
        total: Mapping[str, Tensor] = part.weighted_sum(self._on(weights))
        ended = next_draws()
        if keep:  # the next sum may be made in the same memory
            self._part, total = part, {name: tensor.clone() for name, tensor in total.items()}
        return Seen(part.losses.detach().cpu(), lengths, total, ended != self._untouched, ended, shapes(batch))

    def _ready(self, batch: Any) -> Any:
        return batches.to(batch, self._device)

    def _on(self, weights: Tensor) -> Tensor:
        return weights.to(self._device)

    def _tolerance(self, *, same: bool) -> float:
        if same:
            return _SAME
        parameters = self._test._model.parameters()
        low = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        low = low or any(p.dtype in (torch.bfloat16, torch.float16) for p in parameters)
        low = low or self._first.losses.dtype in (torch.bfloat16, torch.float16)
        return _LOW if low else _OTHER


def _now_and_then(stream: Rng) -> int:
    """One extreme record, or none."""
    return int(stream.integers(1, 2)[0])


def _chosen(drawn: NDArray[np.int64], n: int, stream: Rng, whole: int | None) -> NDArray[np.int64]:
    """Some of the drawn records, each once; filled up with others where there are too few to be coupled."""
    unique = np.unique(drawn)
    few = whole or max(LEAST, min(MOST, len(unique) // 8))
    if few < len(unique) // 4:  # the first different ones of many tosses, which cost less than an order of all
        tossed = list(dict.fromkeys(stream.integers(2 * few, len(unique)).tolist()))[:few]
        order = unique[tossed]
    else:
        order = unique[stream.permutation(len(unique))][:few] if len(unique) else unique
    if len(order) < min(LEAST, n):
        rest = np.setdiff1d(stream.integers(4 * LEAST, n), order)
        order = np.concatenate([order, rest[: LEAST - len(order)]])
    if not len(order):
        order = stream.integers(1, n)
    return order.astype(np.int64)
