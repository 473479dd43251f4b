"""`Private`: draws, backward, claim. The drop-in around the user's own model, loss and optimizer.

Privacy: a draw is charged when it is made. The query's release brings its event, the sampler amplifies it, the ledger keeps
it. Everything written to `.grad` has passed the door; everything after it is post-processing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.accounting import PLD, Accountant
from sordino.algorithms.dpsgd import Query
from sordino.algorithms.with_loss import released_loss
from sordino.door import history
from sordino.door.claims import Claim
from sordino.door.diverged import Diverged, not_finite
from sordino.door.ledger import Ledger, ledger_for
from sordino.door.sealed import Sealed, under
from sordino.door.vectors import Grads, divide_
from sordino.events import Event, NonPrivate
from sordino.gradients import batch as batches
from sordino.gradients import check
from sordino.gradients.protocol import Backend, LossFn, PerSample
from sordino.lots.draws import Draws
from sordino.lots.loading import Batches, MapStyle
from sordino.lots.lot import Lot
from sordino.lots.lot_gradients import LotGradients
from sordino.lots.phase import Phase
from sordino.lots.record_lengths import labels_of, lengths_of, records_for_samplers
from sordino.lots.request import Request, summable
from sordino.lots.units import AnyUnit
from sordino.penalty import L2, prepared
from sordino.progress import Progress
from sordino.ranks.group import ranks_of
from sordino.refusal import Refusal
from sordino.replay import Replay
from sordino.sampling.records import Label
from sordino.sampling.sampler import Draw, Sampler
from sordino.sampling.told_size import size_not_covered
from sordino.standing import LotChecks
from sordino.together import Together


class Private:
    """Trains `model` privately: `loss_fn(model, *batch)` gives one loss per record, `query` is asked of every lot.

    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1)))   # sd.calibrate finds the 1.1
    for lot in private.draws(dataset, sd.Poisson(rate=0.01), steps=2000, expected_batch=500):
        private.backward(lot)  # clips each record's gradient, adds noise, writes .grad
        optimizer.step()  # any torch.optim
    print(private.claim(delta=1e-5))  # what can truly be said, or why nothing can

    Without a `seed`, which is for tests, all randomness comes from the operating system. A `penalty`, L2(λ), joins every
    gradient before it is weighed. With a `ledger` the claim is about all that is in it: statistics, other runs.
    With a `mesh`, or inside a torch.distributed group, each rank computes its part of every lot.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        query: Query,
        *,
        penalty: L2 | None = None,
        backend: Backend | None = None,
        seed: int | None = None,
        accountant: Accountant | None = None,
        ledger: Ledger | None = None,
        mesh: Any = None,
    ) -> None:
        check.given(model, loss_fn, query)
        check.structure(model)
        self._model, self._loss_fn, self._query = model, loss_fn, query
        self._together = Together(ranks_of(mesh), model)
        self._backend: Backend = prepared(self._together.backend(backend), penalty, model)
        self._passes = LotGradients(model, loss_fn, self._backend, penalty)
        self._accountant: Accountant = PLD() if accountant is None else accountant
        self._ledger = ledger_for(model, ledger)
        root = self._together.root(seed, self._ledger)
        self._run = Progress(root, query, self._backend, self._ledger, self._together.fresh)
        self._checks = LotChecks(model, self._passes, self._ledger, root.child("standing test"), self._together.ranks)
        self._lot: Lot | None = None
        self.kept: Mapping[str, Sealed[Grads]] = {}  # what the query handed out besides its last release
        self._records: NDArray[np.int64] | None = None  # of that lot

    @property
    def steps(self) -> int:
        """Lots drawn so far, used or not."""
        return self._run.steps

    @property
    def diverged(self) -> Diverged | None:
        """The step at which training left the finite numbers, if it did; no lot is drawn after it."""
        return self._run.diverged

    @property
    def loss(self) -> float | None:
        """The noisy mean loss of the last lot, released and charged by a query that is `WithLoss`; None before it."""
        return released_loss(self._query, self._run.state)

    @property
    def event(self) -> Event:
        """Everything done to the data so far, by this and by whatever shares its ledger."""
        return self._ledger.event()

    def draws(
        self,
        dataset: MapStyle,
        sampler: Sampler,
        steps: int,
        *,
        expected_batch: float | None = None,
        physical_batch: int | None = None,
        workers: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        unit: AnyUnit | None = None,
    ) -> Draws:
        """`steps` lots of a map-style dataset.

        `expected_batch` is the public number every sum is divided by; without it rate × N is used, and the claim says
        that it does not cover the dataset's size. `physical_batch` samples are processed at once (None: as many as fit in
        memory). `workers` processes load datasets that are not plain tensors. A `unit` is what is drawn and claimed.
        """
        check.structure(self._model)
        request = Request.checked(dataset, sampler, steps, expected_batch, workers, collate, unit)
        few = self._passes.tried(request.first)
        known = summable(physical_batch) or self._run.chunk
        chunk = known or self._together.physical_batch(self._passes, few, request.expected)
        for name in size_not_covered(sampler, request.n, expected_batch):
            self._ledger.disclose(name)
        return Draws(request.steps, self._lots(request, chunk))

    def _lots(self, request: Request, chunk: int) -> Generator[Lot, None, None]:
        """Begun with the first lot: a call of `draws` whose lots are never asked for draws nothing."""
        run, loads = self._run, self._run.loads
        phase = run.begin(request.sampler, request.n, chunk)
        self._ledger.uses(request.dataset, request.unit, request.declared)
        records = records_for_samplers(request.n, request.load, chunk, self._gradients)
        made = request.draws(phase, records, run.root, chunk, self._together.share)
        try:
            while not run.over(self._model):  # before the next lot is drawn, and after the last
                run.same_as(loads)
                self._checks.tripwire.look(numbers=False)  # `backward` looks at those
                draw, loaded, indices = next(made, (None, None, None))
                if draw is None or loaded is None or indices is None:
                    break
                lot = self._drawn(phase, draw, loaded, request.expected)
                self._checks.drawn(run.page or "", lot.step, request.load, indices, request.n, chunk)
                yield lot
            self._together.ended(run)
        finally:
            self._checks.tripwire.looping = False

    def backward(self, lot: Lot | Any) -> Sealed[Tensor]:
        """Ask the query of a lot and write the noisy mean to `.grad`; returns the sealed losses of its samples.

        A batch that no sampler drew is accepted too, and voids the claim.
        """
        if not isinstance(lot, Lot):
            self._ledger.void("private.backward was given a batch that no sampler drew")
            lot = Lot(-1, Sealed(0), float(max(1, batches.size(lot))), partial(iter, [lot]))
        else:
            self._refuse_old(lot)
        self._checks.before_backward(drawn=lot is self._lot)
        losses: list[Tensor] = []
        run = self._run
        with self._passes.own_randomness(self._run.forward), ExitStack() as put_back:
            records = self._records if lot is self._lot else None
            ranked = self._together.ranked(run, lot, records, self._passes)
            grads = self._passes.of(lot, losses, put_back, records, ranked)
            release, run.state = self._query(grads, run.state, lot.expected_batch, run.noise)
        self._ledger.release(release.event, run.page or "")
        self.kept = {name: under(value, self._ledger) for name, value in release.kept.items()}
        self._checks.after_query()
        # A bounded sum is finite, so only what has no proof is looked at. What is not finite is not handed on.
        bad = not_finite(release.value) if isinstance(release.event, NonPrivate) else None
        if bad is None:
            divide_(release.value, lot.expected_batch / release.divided_by)
            self._checks.tripwire.write(release.value)
        else:
            run.diverged = Diverged(lot.step, f"the gradient of parameter {bad!r}")
        return Sealed(losses[0] if len(losses) == 1 else torch.cat(losses), self._ledger)

    def lengths(self, lot: Lot) -> Sealed[Tensor]:
        """The gradient lengths of a lot's samples at the current model, sealed; one more pass over the lot."""
        self._refuse_old(lot)
        return Sealed(lengths_of(self._gradients(batch) for batch in lot.loads()), self._ledger)

    def labels(self, lot: Lot, label: Label | None = None) -> Sealed[Tensor]:
        """The classes of a lot's samples, sealed: what `label` makes of a batch's columns, by default the last."""
        self._refuse_old(lot)
        found = [labels_of(batch, label) for batch in lot.loads()]
        return Sealed(torch.cat(found) if found else torch.zeros(0, dtype=torch.long), self._ledger)

    def claim(self, delta: float, *, accountant: Accountant | None = None) -> Claim:
        """What can truly be said so far: a `Guarantee` or a `NoGuarantee` with its reason."""
        self._checks.before_claim()
        return self._ledger.claim(delta, accountant=accountant or self._accountant)

    @contextmanager
    def post_processing(self, why: str) -> Iterator[None]:
        """Parameters and released gradients may be changed inside, by what was released alone; the claim says so.

        with private.post_processing("average of the last steps"):
            average.copy_to(model)
        """
        if not isinstance(why, str) or not why.strip():
            raise ValueError(f"{why!r}: say in words what is done to released values; it is printed with the claim")
        self._ledger.declare(f"post-processing of released values, by declaration: {why.strip()}")
        with self._checks.tripwire.post_processing():
            yield

    @contextmanager
    def public(self, name: str) -> Iterator[None]:
        """Backward passes and steps inside are on data you declare public; the claim names it as not covered.

        with private.public("ImageNet"):
            loss.backward()
            optimizer.step()
        """
        self._ledger.disclose(f"steps on data declared public: {name}")
        with self._checks.tripwire.public():
            yield

    def state_dict(self) -> dict[str, Any]:
        """Ledger, random streams and position, as JSON. It holds the noise key: keep it as secret as the data.

        Tensors of a query's state are in it as they are. Of several `draws` in turn, the last can be gone on with.
        """
        return {**self._run.state_dict(), **self._checks.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], *, replay: Replay | None = None) -> None:
        """Continue a saved run: ledger, steps and position of the next `draws` with the same sampler and dataset.

        The noise and the draws are new, from a new key: what the run released after it was saved, here or elsewhere, used
        those of the old one. So a pass that was begun is charged once more, for its rest. With a `Replay` the key is the
        saved one, and the run goes on bit by bit. Model and optimizer are the user's own, loaded by their own methods.
        """
        self._run.load_state_dict(state, replay)
        self._checks.resumed(state, self._run.root.child("standing test"), replayed=replay is not None)

    def renew(self, *, draws: bool) -> None:
        """Noise that was never used before, and draws too: for a run that goes on otherwise than it did.

        Without `draws` those to come are the ones the loaded state would have made: batches of a pass that was begun are
        then of that pass.
        """
        self._run.renew(draws=draws)

    def __copy__(self) -> Private:
        """Another on the same model, in the same ledger, with noise of its own."""
        return self._twin(self._model)

    def __deepcopy__(self, memo: dict[int, Any]) -> Private:
        """Another on a copy of the model: it writes in the same ledger, and its noise is its own."""
        return self._twin(copy.deepcopy(self._model, memo))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Private cannot be pickled, its noise must not be in two places: save its state_dict()")

    def _twin(self, model: nn.Module) -> Private:
        ask, penalty = self._query, self._passes.penalty
        shared, by, mesh = self._ledger, self._backend, self._together.ranks
        twin = Private(model, self._loss_fn, ask, penalty=penalty, backend=by, ledger=shared, mesh=mesh)
        twin._accountant = self._accountant
        state = self.state_dict()
        twin.load_state_dict({**state, "page": None, "state": copy.deepcopy(state["state"])})
        return twin

    def _drawn(self, phase: Phase, draw: Draw, loads: Batches, expected: float) -> Lot:
        """Charge a draw and make its lot; nothing of it has been computed yet."""
        run = self._run
        if run.page is None:  # the first: from here on the parameters change by released gradients only
            history.trained(self._passes.named.values(), self._ledger)
            self._checks.tripwire.trust()
        self._lot = Lot(run.steps, Sealed(len(draw.indices), self._ledger), expected, loads, loads.most)
        self._records = draw.indices
        run.charge(phase, draw, expected, self._passes.named)
        return self._lot

    def _refuse_old(self, lot: Lot) -> None:
        if lot is not self._lot:
            raise Refusal("this lot is not the one drawn last: it can be used until the next is, by whoever drew it")

    def _gradients(self, batch: Any) -> PerSample:
        """Of a batch, at the current model, to be asked for norms; with random numbers of our own."""
        self._passes.look()
        with self._passes.own_randomness(self._run.forward):
            return self._passes.gradients(batch)
