"""Neighbour test: asks during training whether each record's loss depends on itself alone.

Three questions are asked, on drawn records:

    exchanged  with one record replaced, by another or by an altered one, nobody else's loss or gradient moves
    again      the batch once more, after other batches, gives the same losses and gradients
    alone      a record by itself has the gradient it had in the batch, and its length is that of what it adds to a sum

Most tests are made on a few records, some on as many as training runs at once: a ranking may keep all of a few.

State. Every batch is loaded and run from the state in which the test found the user's objects
(`per_sample/user_state.py`), so that a statistic that is computed once and kept is computed anew for each batch. Only
*again* starts from what the passes before it left.

Randomness. Two passes are compared only if they drew equally much at random, so that each record met the same numbers.
Where another padding or another number of records changes how much is drawn, the question is asked with steady draws
(`rng/shape_independent.py`), which are the same numbers whatever the shapes are; where numpy or Python drew, which cannot
be made steady, it is asked in evaluation mode.

Precision. A difference above rounding between batches of unlike shapes is asked again in float64, where a coupling is
as large as before and rounding is not.

Privacy: a test releases nothing. That it failed is said once and ends the claim; which records it used is not said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.lots.loading import Alter, BatchReader
from sordino.per_sample import batch_structure as batches
from sordino.per_sample.formulas.gradient_part import is_autocast_on
from sordino.per_sample.loss_probe import evaluation_mode
from sordino.per_sample.protocol import PerSample
from sordino.per_sample.user_state import UserState
from sordino.release.sensitivity import EXACT
from sordino.rng.global_generators import draw_next, preserve_generators, seed_all
from sordino.rng.shape_independent import HIGH_DRAWS, LOW_DRAWS, SteadyDraws
from sordino.rng.streams import Rng
from sordino.runtime_checks.alterations import ALTERATIONS, LENGTHS, TOGETHER, Alterations
from sordino.runtime_checks.compare_passes import (
    NOTHING,
    PassResult,
    direction_weights,
    distance_between,
    measure_disagreement,
    norm_of,
)
from sordino.runtime_checks.coupling_finding import Broken, CouplingFinding
from sordino.runtime_checks.double_precision import DoublePrecision
from sordino.runtime_checks.test_batches import LoadedTestBatch, RecordsOfTest, shapes_of

MOST_RECORDS, FEWEST_RECORDS = 16, 8
"""Records of a test: enough to be coupled with one another, few enough to cost little; an eighth of a lot between them."""
_SAME = 1e-4
"""Relative difference allowed between batches of equal shapes, whose other rows are computed by the same operations."""
_OTHER = 2e-3
"""Relative difference allowed between batches of other shapes, whose sums are taken in another order.
Above it the question is asked in float64."""
_LOW = 0.2
"""Relative difference allowed where layers compute in half precision and the model cannot be copied to float64."""
_SHORT = 1e-3
"""By how much a length may fall short of what enters the sum; the slack of a release is for float32's own rounding."""
_MORE = 3
"""Further exchanges with other random numbers, where the model, the loss or collate draws some: each may be a rare case."""
_EXCHANGED_ONE_IN = 4
"""One of so many records is exchanged in a whole batch, all for one and the same, so that every ranking moves."""
_FEWEST_FOR_TWO = 6
"""Records of a test from which on two of them may be altered at once."""
_SEEDS = 24
"""Seeds under which two batches must draw equally much, before a difference between them is taken for a coupling."""
_TRIES = 4
"""Other records tried in search of one that leaves the batch's shapes as they are."""


class _NothingToAlter(Exception):
    """The records have nothing that this alteration applies to."""


class _LeftOut(Exception):
    """Collate leaves altered records out, which no record of the dataset has been."""


class NeighbourTest:
    """Asks the questions of one model, loss and backend.

    Args:
        gradients: computes the per-sample gradients of a batch at the current parameters.
        model: the model.
        rounding: asks a question again in float64.
        code: the user's objects whose state is put back before every pass, beside the model and what loads the batches.

    """

    def __init__(
        self,
        gradients: Callable[[Any], PerSample],
        model: nn.Module,
        rounding: DoublePrecision,
        code: Iterable[Any] = (),
    ) -> None:
        self._gradients, self._model, self._rounding, self._code = gradients, model, rounding, tuple(code)
        self._refused: set[str] = set()  # parts of alterations that the user's code raised an error for

    def __call__(
        self,
        load: BatchReader,
        drawn: NDArray[np.int64],
        n: int,
        stream: Rng,
        *,
        thorough: bool,
        extremes: int = len(ALTERATIONS),
        full_batch_size: int | None = None,
        state: UserState | None = None,
    ) -> CouplingFinding | None:
        """Returns what is broken, if anything is.

        Args:
            load: loads batches as training does.
            drawn: the records of the lot, by their places in the dataset.
            n: the number of records of the dataset.
            stream: the secret choices of this test.
            thorough: whether to ask every question; else an exchange and one question more.
            extremes: how many altered records are tried beside a real one, where every question is asked or the batch
                is whole.
            full_batch_size: if given, the test is made on as many records as training runs at once, which is
                this number at most.
            state: what the user's objects hold now, if the caller has taken it already.

        """
        # Which records are tested is drawn from a secret stream, so code cannot behave well for these alone.
        indices = _choose_records(drawn, n, stream, full_batch_size)
        # Everything that the user's code remembers is put back afterwards: a test must not change the training.
        state = state or UserState([self._model, *self._code, *load.list_user_code()])
        try:
            with preserve_generators(), torch.enable_grad():

                def begin(together: RecordsOfTest, steady: int | None = None) -> _RunningTest:
                    """Begins a neighbour test of some records: makes the first pass, which the later passes are
                    compared with.
                    """
                    test = _RunningTest(
                        self, together, state, stream, n, on_full_batch=full_batch_size is not None, steady=steady
                    )
                    test.run_first_pass()
                    return test

                return self._ask(
                    load,
                    indices,
                    n,
                    stream,
                    begin,
                    thorough=thorough,
                    extremes=extremes,
                    full_batch_size=full_batch_size,
                )
        finally:
            state.put_back()

    def _ask(
        self,
        load: BatchReader,
        indices: NDArray[np.int64],
        n: int,
        stream: Rng,
        begin: Callable[..., _RunningTest],
        *,
        thorough: bool,
        extremes: int,
        full_batch_size: int | None,
    ) -> CouplingFinding | None:
        """Asks the questions of the neighbour test in turn, the cheap ones first, until one of them finds that records
        are coupled.
        """
        test = begin(RecordsOfTest(load, indices, stream.seed()))
        if test.finding is not None:
            return test.finding
        # One coin decides which of the questions is asked, if not all of them are.
        coin = float(stream.uniform(1)[0])
        # First question: does another record's gradient move when one is exchanged?
        if n > 1:
            test.ask_with_records_exchanged(extremes if thorough or full_batch_size is not None else int(coin >= 2 / 3))
        # Second: does the same batch give the same gradients again?
        if thorough or coin < 1 / 3:
            test.ask_again()
        # Third: does a record by itself have the gradient that it has in company?
        if thorough or 1 / 3 <= coin < 2 / 3:
            test.ask_alone()
        if test.finding is not None or not test.draws_at_random:
            return test.finding

        # What is random is asked once more with draws that do not depend on shapes.
        if thorough or coin < 0.25:
            finding = self._ask_without_chance(begin, test, stream, n, thorough=thorough)
            if finding is not None:
                return finding
        # What happens now and then only is asked with other random numbers.
        for _ in range(_MORE if thorough and n > 1 else 0):
            test = begin(RecordsOfTest(load, indices, stream.seed()))
            test.ask_with_records_exchanged(_toss_for_one_alteration(stream))
            if test.finding is not None:
                return test.finding
        return None

    def _ask_without_chance(
        self, begin: Callable[..., _RunningTest], test: _RunningTest, stream: Rng, n: int, *, thorough: bool
    ) -> CouplingFinding | None:
        """Asks the questions of the neighbour test with steady random draws, or in evaluation mode where not everything
        drawn can be made steady.
        """
        # Draws at the low or the high end of their range show dropout and similar layers in both of their states.
        levels = [LOW_DRAWS, HIGH_DRAWS] if stream.integers(1, 4)[0] else [HIGH_DRAWS, LOW_DRAWS]
        for level in levels[: 1 + int(thorough and bool(stream.integers(1, 2)[0]))]:
            steady = begin(test.together, steady=level)
            if steady.has_unknown_draws:
                break
            if n > 1:
                steady.ask_with_records_exchanged(1 + _toss_for_one_alteration(stream), only_other_shapes=True)
            steady.ask_alone()
            if steady.finding is not None:
                return steady.finding
        else:
            return None
        # What draws in ways that cannot be made steady is compared in evaluation mode, where it usually does not draw.
        with evaluation_mode(self._model):
            in_evaluation = begin(test.together)
            if n > 1:
                in_evaluation.ask_with_records_exchanged(_toss_for_one_alteration(stream))
            in_evaluation.ask_alone()
            return in_evaluation.finding


class _RunningTest:
    """One test in progress."""

    def __init__(
        self,
        neighbour_test: NeighbourTest,
        together: RecordsOfTest,
        state: UserState,
        stream: Rng,
        n: int,
        *,
        on_full_batch: bool,
        steady: int | None,
    ) -> None:
        # What is tested, and with which random numbers.
        self._test, self.together, self._stream, self._n, self._on_full_batch = (
            neighbour_test,
            together,
            stream,
            n,
            on_full_batch,
        )
        self._state, self._steady = state, steady
        self._device = next(neighbour_test._model.parameters()).device
        self.finding: CouplingFinding | None = None
        self.draws_at_random = False  # something was drawn at random by the model, the loss or collate
        self.has_unknown_draws = False  # something was drawn that could not be made steady

    def run_first_pass(self) -> None:
        """Makes the first pass of a neighbour test, which the passes over neighbouring batches are compared with."""
        self._loaded = self._load()
        b = batches.batch_size(self._loaded.batch)
        if b != len(self.together.indices):
            self.finding = CouplingFinding(Broken.ROWS)
            return
        if self._on_full_batch:  # in the second half, so that there are others in front of all of them
            self._places = b - 1 - self._stream.permutation(b - b // 2)[: max(1, b // _EXCHANGED_ONE_IN)]
            self._second_place = self._places[:0]
        else:
            # Of a few records one is exchanged; where enough others are left to watch, a second may be altered later.
            order = self._stream.permutation(b)
            self._places, self._second_place = order[:1], order[1:2] if b >= _FEWEST_FOR_TWO else order[:0]
        # All passes of this test begin with the same random numbers.
        self._seed = self._stream.seed()
        seed_all(self._seed)
        self._untouched = draw_next()  # what is drawn next where a pass drew nothing
        self._watched = torch.ones(b, dtype=torch.bool)
        self._watched[torch.from_numpy(self._places)] = False
        # Random signs make one sum of all watched directions, which moves if any of them turns.
        self._signs = torch.from_numpy(np.where(self._stream.uniform(b) < 0.5, -1.0, 1.0)).float()
        self._weights: Tensor | None = None
        self._part: PerSample | None = None
        self._first = self._run_pass(self._loaded.batch, keep=True)
        self.draws_at_random = self._first.drawn or self._loaded.drew

    def ask_with_records_exchanged(self, extremes: int, *, only_other_shapes: bool = False) -> None:
        """Asks in a neighbour test whether other records' losses move when one record, or some where the batch is
        whole, is replaced by another of the dataset and in turn by altered ones.

        Args:
            extremes: how many altered records are tried.
            only_other_shapes: whether a record that leaves the batch's shapes as they are is not asked about once more,
                because the test before, with the run's own random numbers, has done so.

        """
        # After a finding there is nothing more to ask, and with unknown draws nothing can be compared.
        if self.finding is not None or self.has_unknown_draws:
            return
        # An exchange for a real record first, then for altered ones in random order.
        try:
            real = self._load_exchanged()
        except Exception:  # a record that was not drawn, and that the user's code cannot take
            real = None
        if real is not None and not (only_other_shapes and shapes_of(real.batch) == self._first.shapes):
            self._compare_others(real)
        # Several alterations go into one batch by twos, each on a record of its own, which saves every second pass. What
        # is random is asked about one by one: which numbers a record meets may depend on the records in front of it.
        order = self._stream.permutation(len(ALTERATIONS)).tolist()
        is_random = self.draws_at_random or self._steady is not None
        by_twos = self.finding is None and extremes > 1 and len(self._second_place) == 1 and not is_random
        if by_twos:
            self._stop_watching_second_record()
        groups = [TOGETHER[k] for k in order if k < len(TOGETHER)] if by_twos else [(k,) for k in order]
        for group in groups[: extremes // 2 if by_twos else extremes]:
            if self.finding is not None or self.has_unknown_draws:
                return
            if by_twos and self._try_two_altered(*group) is not False:
                continue
            # Alone, or one after the other where the user's code refused one of the two.
            for k in group:
                if self.finding is None and not self.has_unknown_draws:
                    self._exchange_for_altered(ALTERATIONS[k])

    def _stop_watching_second_record(self) -> None:
        """Takes the second record that will be altered out of those that the neighbour test watches.

        The first pass is not made again: its sum of directions is formed anew, without that record.
        """
        assert self._part is not None, "the first pass was kept"
        self._watched[torch.from_numpy(self._second_place)] = False
        lengths = self._first.lengths
        self._weights = direction_weights(lengths, self._signs, self._watched)
        weights = self._weights * lengths.isfinite().unsqueeze(1)
        with self._seeded_draws():  # a model that saves memory runs its layers again for the sum
            total = _clone_tensors(self._part.weighted_sum(self._weights_on_device(weights)))
        self._first = replace(self._first, total=total)

    def ask_again(self) -> None:
        """Asks in a neighbour test whether the same batch gives the same losses once more, in the state that the test's
        earlier passes left behind.
        """
        if self.finding is not None:
            return
        everyone = torch.ones_like(self._watched)
        loaded = self._load(in_state=False) if self.together.load.list_user_code() else self._loaded
        seen = self._run_pass(loaded.batch)
        if loaded.ended == self._loaded.ended and measure_disagreement(self._first, seen, everyone) > _SAME:
            self.finding = CouplingFinding(Broken.COUNTED if self._is_counted() else Broken.AGAIN)

    def ask_alone(self) -> None:
        """Asks in a neighbour test whether a record run by itself has a gradient as long as what the record adds to the
        sum of its batch.
        """
        if self.finding is not None or self._part is None or self._weights is None:
            return
        places = np.flatnonzero(self._watched.numpy() & (self._first.lengths.isfinite().numpy()))
        if not len(places):
            return
        i = int(places[int(self._stream.integers(1, len(places))[0])])
        # What the record adds to a sum must not be longer than its measured length.
        chosen = torch.zeros(len(self._watched), 1)
        chosen[i] = 1
        with self._seeded_draws():
            within = _clone_tensors(self._part.weighted_sum(self._weights_on_device(chosen)))
        size, measured = norm_of(within), float(self._first.lengths[i])
        exact = self._part.norms().estimate == EXACT  # an estimate has a law of its own, and the event says so
        if exact and size > (1 + _SHORT) * measured + torch.finfo(torch.float32).tiny:
            self.finding = CouplingFinding(Broken.NORM)
            return
        # With random draws that depend on shapes, the record alone would meet other numbers.
        if (self.draws_at_random and self._steady is None) or self.has_unknown_draws:
            return
        single = self._load([i], unread=True)
        with self._seeded_draws():
            part = self._test._gradients(self._move_to_device(single.batch))
            apart = part.weighted_sum(self._weights_on_device(torch.ones(1, 1)))
        if self.has_unknown_draws or (single.drew and self._steady is None):
            return
        usual = float(self._first.lengths[self._first.lengths.isfinite()].median())
        # A difference above rounding is asked again in float64.
        far = distance_between(within, apart) / max(size, norm_of(apart), 0.05 * usual, NOTHING)
        if far > _OTHER:
            explained = self._test._rounding.rounding_explains_alone(
                self._make_reload(self._loaded), i, self._make_reload(single), self._seeded_draws
            )
            self._judge(Broken.ALONE, far, explained)

    def _is_counted(self) -> bool:
        """Returns whether what changed from pass to pass of a neighbour test is the same whatever the records are, as a
        counter is.
        """
        # Is the difference a generator of the user's own? Then putting it back makes the passes equal.
        everyone = torch.ones_like(self._watched)
        batch = self._loaded.batch
        try:
            self._state.put_generators_back()
            if measure_disagreement(self._first, self._run_pass(batch), everyone) <= _SAME:
                return False  # a generator of its own
            # Is it kept in a place that cannot be put back? Then loading anew does not help.
            self._load()
            if measure_disagreement(self._first, self._run_pass(batch), everyone) > _SAME:
                return False  # something that is kept where it cannot be put back
            # A counter moves on in the same way whatever the records were, and a memory of records does not.
            after_itself = self._run_pass(batch)
            after_itself = replace(after_itself, total=_clone_tensors(after_itself.total))
            self._run_pass(self._load_exchanged().batch)
            after_other = self._run_pass(batch)
            return measure_disagreement(after_itself, after_other, everyone) <= _SAME
        except Exception:  # what is said is then less helpful, and nothing else
            return False

    def _exchange_for_altered(self, parts: tuple[str, ...]) -> None:
        """Asks the neighbour test with the exchanged records altered in several ways at once or, where the model
        refuses that, in one way after the other.
        """
        # Other lengths draw other amounts of random numbers, so they are left to the test with steady draws.
        if self.draws_at_random and self._steady is None:
            parts = tuple(part for part in parts if part not in LENGTHS)  # these are asked with steady draws
        wanted = [part for part in parts if part not in self._test._refused]
        if not wanted:
            return
        # All at once is one pass; only if the user's code refuses that, one after the other shows which it takes.
        tried = self._try_altered(wanted)
        if tried is None or tried or len(wanted) == 1:
            if tried is False:
                self._test._refused.update(wanted)
            return
        for part in wanted:
            if self.finding is None and self._try_altered([part]) is False:
                self._test._refused.add(part)

    def _try_two_altered(self, first: int, second: int) -> bool | None:
        """Compares the neighbour test's first pass with one in which two records are altered, each in its own way.

        Only one of the two gets another label: two labels that are exchanged would leave the classes' counts as they
        were.

        Returns None if nothing applied, and False if the user's code raised.
        """
        one, two = ([part for part in ALTERATIONS[k] if part not in self._test._refused] for k in (first, second))
        if "label" in one:
            two = [part for part in two if part != "label"]
        places = (int(self._places[0]), int(self._second_place[0]))
        return self._run_altered(dict(zip(places, (one, two), strict=True)))

    def _try_altered(self, parts: list[str]) -> bool | None:
        """Compares the neighbour test's first pass with one over a batch whose exchanged records are altered.

        Returns None if nothing applied, and False if the user's code raised.
        """
        return self._run_altered(dict.fromkeys(self._places.tolist(), parts))

    def _run_altered(self, parts_at: Mapping[int, list[str]]) -> bool | None:
        """Compares the neighbour test's first pass with one over a batch with altered records.

        Args:
            parts_at: in which ways the record at each of these places is altered.

        Returns:
            Whether the user's code ran; None if no alteration applies to the records.

        """

        def alter(records: list[Any]) -> list[Any]:
            """Alters records of a neighbour test in those of the given ways that apply; raises if none does."""
            # The alterations know all records of the batch, so that values stay within what was seen.
            collated = bool(self.together.load.list_user_code())
            alterations = Alterations(records, safe=self._device.type != "cpu", collated=collated)
            used = {
                place: [part for part in parts if part in alterations.applicable] for place, parts in parts_at.items()
            }
            if not any(used.values()):
                raise _NothingToAlter
            each = len(records) // len(self.together.indices)  # a unit has several records
            for place, parts in used.items():
                for k in range(place * each, (place + 1) * each):
                    records[k] = alterations.alter(records[k], parts)
            return records

        # An error of the user's code on such a record is no finding: it cannot train on it.
        try:
            loaded = self._load(alter=alter)
            self._compare_others(loaded, altered=len(parts_at))
        except _NothingToAlter:
            return None
        except Exception:  # the user's code refuses such a record: no dataset that it can train on holds one
            return False
        return True

    def _load_exchanged(self) -> LoadedTestBatch:
        """Loads the neighbouring batch of a neighbour test, with one record exchanged; where passes draw at random, by
        a record that leaves the batch's shapes as they are, if there is one.
        """
        for left in range(_TRIES if self.draws_at_random and self._steady is None else 1, 0, -1):
            gone = self.together.indices[self._places]
            by = np.repeat(self._stream.integers(1, self._n - 1), len(gone))
            by += by >= gone[0]  # any record but the one that is replaced
            made = self._load(exchanged=dict(zip(self._places.tolist(), by.tolist(), strict=True)))
            if left == 1 or shapes_of(made.batch) == self._first.shapes:
                break
        return made

    def _compare_others(self, loaded: LoadedTestBatch, *, altered: int = 0) -> None:
        """Runs the neighbouring batch of a neighbour test, and compares the losses and gradients of all records that
        were not exchanged.

        Args:
            loaded: the neighbouring batch.
            altered: how many of its records were altered.

        """
        # A collate function may drop records that it cannot use, or one of two; fewer rows show that, and are no coupling.
        rows = batches.batch_size(loaded.batch)
        dropped = len(self._watched) - rows
        if altered and (dropped == altered or (dropped, altered) == (1, 2)):
            raise _LeftOut
        if rows != len(self._watched):
            self.finding = CouplingFinding(Broken.ROWS)
            return
        # The pass over the batch with exchanged records; a refused record is no finding.
        try:
            seen = self._run_pass(loaded.batch)
        except Exception:
            if altered:
                raise
            return  # a record that was not drawn, and that the user's code cannot take
        # Passes that drew different amounts cannot be compared number by number.
        if self._steady is None and (self._first.ended != seen.ended or loaded.ended != self._loaded.ended):
            self.draws_at_random = True
            return  # the two drew different amounts: this is asked with steady draws
        if self.has_unknown_draws:
            return
        # Equal shapes are computed by the same operations, so less rounding is allowed.
        far = measure_disagreement(self._first, seen, self._watched)
        same = seen.shapes == self._first.shapes
        # A difference beyond rounding in float32 is asked again in float64 before it counts.
        if far > (_SAME if same else _OTHER):
            explained = self._test._rounding.rounding_explains(
                self._make_reload(self._loaded), self._make_reload(loaded), self._watched, self._seeded_draws
            )
            if explained or self._met_the_same_numbers(loaded, seen):
                self._judge(Broken.EXCHANGED, far, explained, same=same)
            else:
                self.draws_at_random = True

    def _judge(self, broken: Broken, far: float, explained: bool | None, *, same: bool = False) -> None:
        """Turns a difference that the neighbour test measured into a finding, unless float64 explains it as rounding
        or, in half precision, nobody can tell.
        """
        if explained is None and not same and self._in_half_precision():
            explained = far <= _LOW
        if not explained:
            self.finding = CouplingFinding(broken)

    def _met_the_same_numbers(self, loaded: LoadedTestBatch, seen: PassResult) -> bool:
        """Returns whether the records of two neighbouring batches were given the same random numbers in the neighbour
        test, beyond all doubt.

        Two batches may draw equally much by chance although a record that was exchanged drew more than the one before
        it. What numpy and Python draw is then unlikely to be equally much with other seeds too. What torch draws one
        after the other is the same for all records in front of the first exchanged one.
        """
        # Steady draws are equal by construction.
        if self._steady is not None or not self.draws_at_random:
            return True
        # Draws outside of torch's generators can be compared only by repeating them.
        drew_outside = (
            loaded.ended[1][1:] != self.together.draws_if_untouched[1:] or seen.ended[1:] != self._untouched[1:]
        )
        if drew_outside:
            return all(self._draws_equally_much(loaded) for _ in range(_SEEDS))
        if len(self._places) == 1:
            return True
        # Rows in front of all exchanged ones met their random numbers before anything differed; if they moved too, it
        # was not chance.
        in_front = torch.arange(len(self._watched)) < int(self._places.min())
        return measure_disagreement(self._first, replace(seen, total=self._first.total), in_front) > _SAME

    def _draws_equally_much(self, loaded: LoadedTestBatch) -> bool:
        """Returns whether two neighbouring batches of a neighbour test draw equally many random numbers, under a seed
        that neither has met.
        """
        seed = self._stream.seed()
        ended = []
        for each in (self._loaded, loaded):
            batch = each.reload(seed=seed)
            seed_all(seed)
            self._test._gradients(self._move_to_device(batch.batch))
            ended.append((batch.ended, draw_next()))
        return ended[0] == ended[1]

    def _load(
        self,
        places: Sequence[int] | None = None,
        exchanged: Mapping[int, int] | None = None,
        *,
        alter: Alter | None = None,
        unread: bool = False,
        in_state: bool = True,
        seed: int | None = None,
    ) -> LoadedTestBatch:
        """Loads a batch for the neighbour test, by default from the state in which the test found the user's objects."""
        # The state of the user's objects is part of what the comparison must keep equal.
        if in_state:
            self._state.put_back()
        else:
            self._state.put_generators_back()
        together = self.together if seed is None else replace(self.together, seed=seed)
        reload = partial(self._load, places, exchanged, alter=alter, unread=unread)
        # Random draws: seeds are the same, and it is noted whether anything was drawn.
        if self._steady is None:
            loaded = together.load_batch(places, exchanged, alter=alter, unread=unread)
            drew = loaded.drew or self._state.have_generators_moved()
            return replace(loaded, drew=drew, reload=reload)
        with SteadyDraws(self._steady) as steady:
            loaded = together.load_batch(places, exchanged, alter=alter, unread=unread)
        # Records are read each under a seed of its own; what collate drew outside torch cannot be made steady.
        outside = loaded.ended[1][1:] != together.draws_if_untouched[1:] or loaded.ended[0] is not None
        self.has_unknown_draws = (
            self.has_unknown_draws or steady.has_unknown_draws or outside or self._state.have_generators_moved()
        )
        return replace(loaded, reload=reload)

    def _make_reload(self, loaded: LoadedTestBatch) -> Callable[[], Any]:
        """Returns how to load a batch once more, from the state that the test found, with the same random numbers."""
        return lambda: self._move_to_device(loaded.reload().batch)

    @contextmanager
    def _seeded_draws(self) -> Iterator[None]:
        """Lets a pass of the neighbour test draw the random numbers that all passes of the test share."""
        seed_all(self._seed)
        if self._steady is None:
            yield
            return
        with SteadyDraws(self._steady) as steady:
            yield
        self.has_unknown_draws = (
            self.has_unknown_draws or steady.has_unknown_draws or draw_next()[1:] != self._untouched[1:]
        )

    def _run_pass(self, batch: Any, *, keep: bool = False) -> PassResult:
        """Runs a batch of the neighbour test in the state that loading it left, and returns the losses and gradients
        that are compared.
        """
        # Norms first, then one weighted sum: a coupling shows in either of them.
        ready = self._move_to_device(batch)
        with self._seeded_draws():  # a model that saves memory runs its layers again for the sum
            part = self._test._gradients(ready)
            lengths = part.norms().total().detach().cpu().float()
            # The weights are fixed by the first pass, so all later passes are compared in the same combination.
            if self._weights is None:
                self._weights = direction_weights(lengths, self._signs, self._watched)
            weights = self._weights * lengths.isfinite().unsqueeze(1)
            total: Mapping[str, Tensor] = part.weighted_sum(self._weights_on_device(weights))
            ended = draw_next() if self._steady is None else self._untouched
        if keep:  # the next sum may be made in the same memory
            self._part, total = part, _clone_tensors(total)
        return PassResult(part.losses.detach().cpu(), lengths, total, ended != self._untouched, ended, shapes_of(batch))

    def _move_to_device(self, batch: Any) -> Any:
        return batches.move_to(batch, self._device)

    def _weights_on_device(self, weights: Tensor) -> Tensor:
        return weights.to(self._device)

    def _in_half_precision(self) -> bool:
        """Returns whether some of the model under the neighbour test computes in half precision, where differences may
        be rounding.
        """
        half = (torch.bfloat16, torch.float16)
        return (
            is_autocast_on()
            or any(p.dtype in half for p in self._test._model.parameters())
            or self._first.losses.dtype in half
        )


def _clone_tensors(total: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in total.items()}


def _toss_for_one_alteration(stream: Rng) -> int:
    """Returns 1 or 0 at random: how many altered records are tried."""
    return int(stream.integers(1, 2)[0])


def _choose_records(drawn: NDArray[np.int64], n: int, stream: Rng, full_batch_size: int | None) -> NDArray[np.int64]:
    """Returns the records of a drawn lot that a neighbour test is made on, each once.

    Where there are too few to be coupled, others of the dataset are added.
    """
    # A record that was drawn twice stands once in a test, or exchanging it would leave its copy.
    unique = np.unique(drawn)
    count = full_batch_size or max(FEWEST_RECORDS, min(MOST_RECORDS, len(unique) // 8))
    if count < len(unique) // 4:  # the first different ones of many tosses, which cost less than an order of all
        tossed = list(dict.fromkeys(stream.integers(2 * count, len(unique)).tolist()))[:count]
        order = unique[tossed]
    else:
        order = unique[stream.permutation(len(unique))][:count] if len(unique) else unique
    # Lots of few records are filled up from the dataset: a coupling needs company to show.
    if len(order) < min(FEWEST_RECORDS, n):
        others = np.setdiff1d(stream.integers(4 * FEWEST_RECORDS, n), order)
        order = np.concatenate([order, others[: FEWEST_RECORDS - len(order)]])
    if not len(order):
        order = stream.integers(1, n)
    return order.astype(np.int64)
