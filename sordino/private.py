"""`Private`: draws, backward, claim. The drop-in around the user's own model, loss and optimizer.

    for lot in private.draws(dataset, Poisson(0.01), steps=2000):
        private.backward(lot)       # writes p.grad
        optimizer.step()            # any torch.optim
    print(private.claim(delta=1e-5))

Privacy: a draw is charged when it is made. The query's release brings its event, the sampler amplifies it, the ledger keeps
it. Everything written to `.grad` has passed the door; everything after it is post-processing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino import validate
from sordino.accounting import PLD, Accountant
from sordino.algorithms.dpsgd import Query
from sordino.algorithms.dry_run import dry_step
from sordino.door import claims, history
from sordino.door.claims import Claim
from sordino.door.diverged import Diverged, finite, not_finite
from sordino.door.ledger import Ledger
from sordino.door.release import Release
from sordino.door.sealed import Sealed
from sordino.door.tripwire import Tripwire
from sordino.door.vectors import divide_
from sordino.events import Event, NonPrivate
from sordino.gradients import batch as batches
from sordino.gradients import check
from sordino.gradients import penalised as shifted
from sordino.gradients.captured.engine import Captured
from sordino.gradients.chunked import Chunked
from sordino.gradients.inventory import Inventory
from sordino.gradients.physical_batch import activation_bytes
from sordino.gradients.physical_batch import physical_batch as fitting
from sordino.gradients.protocol import Backend, LossFn, PerSample, Resumable, estimate_of, trainable
from sordino.loading import Batches, Loader, MapStyle, Prefetch, length
from sordino.lot import Lot
from sordino.lot_gradients import Passes
from sordino.penalty import L2
from sordino.phase import Phase
from sordino.random.rng import Rng
from sordino.record_lengths import asked, labels_of, lengths_of
from sordino.refusal import Refusal
from sordino.repeated_records import grouped, most_copies
from sordino.replay import Replay
from sordino.sampling.records import Label
from sordino.sampling.sampler import Draw, Informed, Sampler, drawn
from sordino.sampling.told_size import told_size
from sordino.standing import Finding, Moments, StandingTest
from sordino.standing.double import Rounding
from sordino.standing.finding import Broken
from sordino.standing.moments import mark_of

_FORMAT = 3
_EARLY = 100
"""Lots up to which a standing test asks every question."""


class Private:
    """Trains `model` privately: `loss_fn(model, *batch)` gives one loss per sample, `query` is asked of every lot.

    Without a seed all randomness comes from the operating system. A seed is for tests; the claim then says that it does
    not cover it.

    A `penalty` joins every gradient before it is weighed: L2(λ) makes it g + λθ. Decoupled decay stays in torch.optim.

    Given a `ledger` that other things done to the same data are in (statistics, another run), the claim is about all of
    them together.
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
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model={type(model).__name__}: must be a torch.nn.Module")
        for name, value in (("loss_fn", loss_fn), ("query", query)):
            if not callable(value):
                raise TypeError(
                    f"{name}={value!r}: must be callable; query is for instance NoisySum(Flat(1.0), Gaussian(1.1))"
                )
        check.structure(model)
        self._model, self._loss_fn, self._query = model, loss_fn, query
        self._backend: Backend = Captured() if backend is None else backend
        if penalty is not None:
            if not isinstance(penalty, L2):
                raise TypeError(f"penalty={penalty!r}: must be a penalty, such as L2(0.01)")
            penalty.of(list(trainable(model)))  # refuses names that are not there
            self._backend = shifted.prepared(self._backend)
        self._passes = Passes(model, loss_fn, self._backend, penalty)
        self._accountant: Accountant = PLD() if accountant is None else accountant
        if ledger is not None and not isinstance(ledger, Ledger):
            raise TypeError(
                f"ledger={ledger!r}: must be a sordino.Ledger, the one everything done to this data goes into"
            )
        before = history.ledger_of(model.parameters())
        self._ledger = ledger or before or Ledger()
        if before is not None and before is not self._ledger and not before.empty:
            self._ledger.disclose(claims.TRAINED_BEFORE)
        self._page: str | None = None  # taken with the first draw: a loaded state brings its own
        self._tripwire = Tripwire(self._ledger.void)
        self._tripwire.watch(self._passes.named, self._passes.buffers)
        if seed is not None:
            self._ledger.disclose(claims.SEED)
        self._root = Rng.from_entropy() if seed is None else Rng.from_seed(validate.count("seed", seed, least=0))
        self._noise, self._forward = self._root.child("noise"), self._root.child("forward")
        self._state = query.init()
        self._lot: Lot | None = None
        self._records: NDArray[np.int64] | None = None  # of that lot
        self._steps = 0
        self._phases = 0  # calls of draws that have begun
        self._phase: Phase | None = None  # of the last draw
        self._saved: Phase | None = None  # of a loaded state, to go on with
        self._loads = 0
        self._counted: Mapping[str, nn.Parameter] | None = None  # parameters the ledger knows the number of
        self._chunk: int | None = None
        self._diverged: Diverged | None = None
        self._moments = Moments(self._root.child("standing test"))
        self._test = StandingTest(self._passes.gradients, model, Rounding(model, self._passes.gradients_of))
        self._tested, self._claimed = 0, 0
        self._untested: tuple[Loader, NDArray[np.int64], int] | None = None  # what the lot drawn last was loaded from

    @property
    def steps(self) -> int:
        """Lots drawn so far, used or not."""
        return self._steps

    @property
    def diverged(self) -> Diverged | None:
        """The step at which training left the finite numbers, if it did; no lot is drawn after it."""
        return self._diverged

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
    ) -> Iterator[Lot]:
        """`steps` lots of a map-style dataset.

        `expected_batch` is the public number every sum is divided by; without it rate × N is used, and the claim says
        that it does not cover the dataset's size. `physical_batch` samples are processed at once (None: as many as fit in
        memory). `workers` processes load datasets that are not plain tensors.
        """
        n = length(dataset)
        if not isinstance(sampler, Sampler):
            raise TypeError(f"sampler={sampler!r}: must be a sampler, such as Poisson(rate=0.01)")
        steps = validate.count("steps", steps)
        workers = validate.count("workers", workers, least=0)
        if physical_batch is not None:
            validate.count("physical_batch", physical_batch)
        expected = sampler.expected(n)  # refuses what the sampler cannot draw from this dataset
        if expected_batch is not None:
            expected = validate.positive("expected_batch", expected_batch)
        if workers and isinstance(sampler, Informed):
            raise Refusal(
                f"workers={workers}: {type(sampler).__name__} asks the records at the model of the moment, so its lots "
                "cannot be loaded ahead; use workers=0"
            )
        check.structure(self._model)
        self._passes.look()
        load = Loader(dataset, collate)
        load.begin()
        some = torch.arange(check.PROBE).remainder(n).numpy()
        few = batches.to(load(some), self._passes.device)
        check.probe(self._model, self._loss_fn, few)
        chunk = physical_batch or self._chunk or self._fitting(few, expected)
        if expected_batch is None and not sampler.size_is_public:
            self._ledger.disclose(claims.DATASET_SIZE)
        for name in told_size(sampler, n, expected_batch):
            self._ledger.disclose(name)
        copies = most_copies(dataset, n)

        def lots() -> Iterator[Lot]:
            phase, loads = self._begin(sampler, n, chunk), self._loads
            self._ledger.uses(dataset)
            stream, start = self._root.child("draws", phase.number), phase.position
            memory = None if phase.memory is None else phase.memory()
            records = asked(n, load, chunk, self._gradients)

            def made() -> Iterator[Draw]:
                return islice(drawn(sampler, records, stream, start, memory), steps)

            prefetch = None
            if workers:
                seed = self._root.child("workers", phase.number, start).seed()
                prefetch = Prefetch(dataset, made, chunk, workers, collate, seed)
            lots = enumerate(made())
            try:
                while not self._left_the_finite():  # before the next lot is drawn, and after the last
                    if loads != self._loads:
                        raise Refusal(
                            "a state was loaded after these draws began: call draws() again, which goes on from it"
                        )
                    self._tripwire.look()
                    k, draw = next(lots, (-1, None))
                    if draw is None:
                        return
                    draw = grouped(draw, copies, sampler)
                    prefetched = None if prefetch is None else partial(prefetch.take, k)
                    self._untested = load, draw.indices, n
                    self._tripwire.looping = True
                    yield self._drawn(phase, draw, Batches(draw.indices, chunk, load, prefetched), expected)
            finally:
                self._tripwire.looping = False

        return lots()

    def backward(self, lot: Lot | Any) -> Sealed[Tensor]:
        """Ask the query of a lot and write the noisy mean to `.grad`; returns the sealed losses of its samples.

        A batch that no sampler drew is accepted too, and voids the claim.
        """
        if not isinstance(lot, Lot):
            self._ledger.void("private.backward was given a batch that no sampler drew")
            lot = Lot(-1, Sealed(0), float(max(1, batches.size(lot))), partial(iter, [lot]))
        else:
            self._refuse_old(lot)
        self._tripwire.look()
        inventory = Inventory(self._model)
        check.statistics(self._model, inventory.modules)
        self._passes.look(inventory)
        self._tripwire.forget()  # the last gradients' memory is free for the next sum
        if lot is self._lot and self._untested is not None and self._moments.due(lot.step, mark_of(inventory.modules)):
            self._stand(thorough=lot.step < _EARLY)
        losses: list[Tensor] = []
        with self._passes.own_randomness(self._forward), ExitStack() as put_back:
            grads = Chunked(
                lambda: self._passes.parts(lot, losses),
                partial(self._passes.parts_at, lot, losses, put_back),
                self._records if lot is self._lot else None,
                estimate_of(self._backend),
            )
            release, self._state = self._query(grads, self._state, lot.expected_batch, self._noise)
        self._ledger.release(release.event, self._page or "")
        self._tripwire.allow()  # a query may have moved the model and put it back
        if self._passes.written is not None:
            self._ledger.void(str(Finding(Broken.WRITTEN, self._passes.written)))
        # A bounded sum is finite, so only what has no proof is looked at. What is not finite is not handed on.
        bad = not_finite(release.value) if isinstance(release.event, NonPrivate) else None
        if bad is None:
            self._write(release, lot.expected_batch)
        else:
            self._diverged = Diverged(lot.step, f"the gradient of parameter {bad!r}")
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
        self._passes.look()
        self._tripwire.watch(self._passes.named, self._passes.buffers)
        self._tripwire.look()
        if self._untested is not None and self._moments.again(self._steps, self._claimed):
            self._claimed += 1
            self._stand(thorough=True)
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
        with self._tripwire.post_processing():
            yield

    @contextmanager
    def public(self, name: str) -> Iterator[None]:
        """Backward passes and steps inside are on data you declare public; the claim names it as not covered.

        with private.public("ImageNet"):
            loss.backward()
            optimizer.step()
        """
        self._ledger.disclose(f"steps on data declared public: {name}")
        with self._tripwire.public():
            yield

    def state_dict(self) -> dict[str, Any]:
        """Ledger, random streams and position, as JSON. It holds the noise key: keep it as secret as the data.

        A query may keep tensors in its state, such as the gradient it released last; they are in it as they are, and a
        checkpoint of `sordino.training` stores them by name beside the JSON. Of several calls of `draws` used in turn, the
        one drawn from last can be gone on with.
        """
        now = self._phase
        return {
            "format": _FORMAT,
            "ledger": self._ledger.state_dict(),
            "page": self._page,
            "query": repr(self._query),
            "state": self._state,
            "root": self._root.state_dict(),
            "noise": self._noise.state_dict(),
            "forward": self._forward.state_dict(),
            "steps": self._steps,
            "tested": self._tested,
            "phases": self._phases,
            "phase": -1 if now is None else now.number,
            "position": 0 if now is None else now.position,
            "source": None if now is None else now.source,
            "physical_batch": self._chunk,
            "memory": None if now is None or now.memory is None else now.memory(),
            "diverged": None if self._diverged is None else [self._diverged.step, self._diverged.what],
            "backend": self._backend.state_dict() if isinstance(self._backend, Resumable) else None,
        }

    def load_state_dict(self, state: Mapping[str, Any], *, replay: Replay | None = None) -> None:
        """Continue a saved run: ledger, steps and position of the next `draws` with the same sampler and dataset.

        The noise and the draws are new, from a new key: what the run released after it was saved, here or elsewhere, used
        those of the old one. So a pass that was begun is charged once more, for its rest. With a `Replay` the key is the
        saved one, and the run goes on bit by bit.

        The model's and the optimizer's state are the user's own and are loaded by their own methods.
        """
        if state.get("format") != _FORMAT:
            raise ValueError(
                f"state of format {state.get('format')!r}: need {_FORMAT}, as saved by Private.state_dict()"
            )
        self._ledger.load_state_dict(state["ledger"])
        self._page = state["page"]
        if state["query"] == repr(self._query):  # another query begins anew; what the old one did stays in the ledger
            self._state = state["state"]
        if replay is None:
            self._root = Rng.from_entropy()
            self._noise, self._forward = self._root.child("noise"), self._root.child("forward")
        else:
            self._root, self._noise, self._forward = (Rng.replay(state[name]) for name in ("root", "noise", "forward"))
            if not replay.entered:
                self._ledger.disclose(f"{claims.REPLAYED}: {replay.because}")
        self._steps, self._phases, memory, saved = state["steps"], state["phases"], state["memory"], None
        if state["source"] is not None:  # the rest of a pass from a new key is not of that pass
            number, source = state["phase"] if replay else self._phases, (state["source"][0], state["source"][1])
            saved = Phase(number, source, state["position"], None if memory is None else lambda: memory)
        self._phase = self._saved = saved
        self._chunk = state["physical_batch"]
        self._diverged = Diverged(*state["diverged"]) if state.get("diverged") else None
        if state.get("backend") is not None and isinstance(self._backend, Resumable):
            self._backend.load_state_dict(state["backend"])
        self._tested = int(state.get("tested", 0))
        self._tripwire.trust()
        self._loads += 1

    def renew(self, *, draws: bool) -> None:
        """Noise that was never used before, and draws too: for a run that goes on otherwise than it did.

        Without `draws` those to come are the ones the loaded state would have made: batches of a pass that was begun are
        then of that pass.
        """
        fresh = Rng.from_entropy()
        self._noise, self._forward = fresh.child("noise"), fresh.child("forward")
        if draws:
            self._root = fresh

    def __copy__(self) -> Private:
        """Another on the same model: it writes in the same ledger, and its noise is its own."""
        return self._twin(self._model)

    def __deepcopy__(self, memo: dict[int, Any]) -> Private:
        """Another on a copy of the model: it writes in the same ledger, and its noise is its own."""
        return self._twin(copy.deepcopy(self._model, memo))

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Private cannot be pickled, its noise must not be in two places: save private.state_dict() and the model's, "
            "and load them where the run goes on"
        )

    def _twin(self, model: nn.Module) -> Private:
        penalty, accountant = self._passes.penalty, self._accountant
        twin = Private(
            model,
            self._loss_fn,
            self._query,
            penalty=penalty,
            backend=self._backend,
            accountant=accountant,
            ledger=self._ledger,
        )
        state = self.state_dict()
        twin.load_state_dict({**state, "page": None, "state": copy.deepcopy(state["state"])})
        return twin

    def _fitting(self, few: Any, expected: float) -> int:
        """The physical batch for lots of the expected size."""
        activations = activation_bytes(self._model, self._loss_fn, few)
        parameters = sum(p.nbytes for p in self._model.parameters())
        return fitting(self._backend.sample_bytes(self._model), self._passes.device, expected, activations, parameters)

    def _begin(self, sampler: Sampler, n: int, chunk: int) -> Phase:
        """A new phase of draws, or the rest of the one a loaded state was saved in."""
        source, saved = (repr(sampler), n), self._saved
        phase = saved if saved is not None and saved.source == source else Phase(self._phases, source)
        self._phases = max(self._phases, phase.number + 1)
        self._phase, self._saved, self._chunk = phase, None, chunk
        return phase

    def _drawn(self, phase: Phase, draw: Draw, loads: Batches, expected: float) -> Lot:
        """Charge a draw and make its lot; nothing of it has been computed yet."""
        query, state = self._query, self._state
        if self._page is None:
            self._page = self._ledger.page()
            self._ledger_begins()
        self._ledger.close(self._page)
        for event in draw.spent:
            self._ledger.release(event, self._page)  # no draw is open: of the whole data
        if self._counted is not self._passes.named:
            self._counted = self._passes.named
            self._ledger.noised(sum(p.numel() for p in self._counted.values()))
        planned = partial(dry_step, query, state, expected, self._backend)
        self._ledger.open(draw.amplify, lambda: planned()[0], phase.cover(draw), draw.bins, self._page)
        self._records = draw.indices
        self._lot = Lot(self._steps, Sealed(len(draw.indices), self._ledger), expected, loads)
        self._steps += 1
        self._ledger.tested(self._page, self._steps, self._tested)
        self._phase = phase
        phase.moved(draw)
        return self._lot

    def _ledger_begins(self) -> None:
        """The first draw: from here on the parameters change by released gradients only, and have this history."""
        history.trained(self._passes.named.values(), self._ledger)
        self._tripwire.trust()

    def _stand(self, *, thorough: bool) -> None:
        """The standing test on records of the lot drawn last. Before anything was released a failure is refused."""
        assert self._untested is not None, "a lot was drawn"
        load, indices, n = self._untested
        finding = self._test(load, indices, n, self._moments.stream(self._steps, self._tested), thorough=thorough)
        self._tested, self._untested = self._tested + 1, None
        self._ledger.tested(self._page or "", self._steps, self._tested)
        if finding is not None:
            if not self._tripwire.steps:
                raise Refusal(str(finding))
            self._ledger.void(str(finding))

    def _left_the_finite(self) -> bool:
        """Is training over because a parameter, which is public, is not finite any more?"""
        if self._diverged is None:
            fine = finite(Inventory(self._model).parameters)
            bad = None if fine else not_finite(dict(self._model.named_parameters()))
            if bad is not None and not self._steps:
                raise Refusal(f"parameter {bad!r} is not finite before the first step: look at how it was initialised")
            self._diverged = None if bad is None else Diverged(self._steps - 1, f"parameter {bad!r}")
        return self._diverged is not None

    def _refuse_old(self, lot: Lot) -> None:
        if lot is not self._lot:
            raise Refusal(
                "this lot is not the one drawn last: a lot can be used until the next is drawn, by the Private that drew it"
            )

    def _gradients(self, batch: Any) -> PerSample:
        """Of a batch, at the current model, to be asked for norms; with random numbers of our own."""
        self._passes.look()
        with self._passes.own_randomness(self._forward):
            return self._passes.gradients(batch)

    def _write(self, release: Release, expected: float) -> None:
        """Divide by the public number and hand the gradient to the optimizer."""
        self._tripwire.watch(self._passes.named, self._passes.buffers)
        divide_(release.value, expected / release.divided_by)
        for name, p in self._passes.named.items():
            grad = release.value.get(name)
            if grad is not None:
                self._tripwire.write(p, grad if grad.dtype == p.dtype else grad.to(p.dtype))
