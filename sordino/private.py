"""The `Private` class: trains a user's own model, loss and optimizer with differential privacy.

`draws` yields lots, `backward` writes the noisy gradient of a lot to `.grad`, and `claim` says what can be claimed.

Privacy: a draw is charged when it is made. The query's release brings its event, the sampler amplifies it, and the
ledger keeps it. Everything written to `.grad` was released with noise; everything computed from it is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.accounting import PLD, Accountant
from sordino.declares import Declarations
from sordino.distributed_run import DistributedRun
from sordino.events import Event, NonPrivate
from sordino.ledger.claims import Claim
from sordino.ledger.divergence import Diverged, first_not_finite
from sordino.ledger.ledger import Ledger, ledger_for
from sordino.ledger.live_epsilon import LiveEpsilon
from sordino.lots.draw_phase import DrawPhase
from sordino.lots.draw_request import DrawRequest, check_physical_batch
from sordino.lots.isolated import isolated_backend, isolated_request
from sordino.lots.loading import LotBatches, MapStyle
from sordino.lots.lot import Lot
from sordino.lots.lot_gradients import LotGradients
from sordino.lots.lot_iterator import Draws
from sordino.lots.privacy_units import AnyUnit
from sordino.lots.record_lengths import class_labels, gradient_lengths, records_for_samplers
from sordino.penalty import L2, prepare_backend
from sordino.per_sample import batch_structure as batches
from sordino.per_sample import model_checks
from sordino.per_sample.model_devices import refuse_unusable_devices
from sordino.per_sample.protocol import Backend, LossFn, PerSample
from sordino.progress import Progress
from sordino.queries.noisy_sum import Query
from sordino.queries.with_loss import released_loss
from sordino.refusal import Refusal
from sordino.release.sealed import Sealed, reseal
from sordino.release.vectors import Grads, divide_
from sordino.runtime_checks import LotChecks
from sordino.sampling.record_access import Label
from sordino.sampling.sampler import Draw, Sampler
from sordino.sampling.size_disclosure import size_not_covered
from sordino.saved import StatesAndCopies

_HELD_BYTES, _HELD_RECORDS = 1 << 28, 256
"""Largest size, in bytes and in records, of the per-sample gradients that an isolated run holds at once."""


class Private(Declarations, StatesAndCopies):
    """Trains `model` privately: draws lots, writes noisy gradients to `.grad`, says what can be claimed.

    A loss with one number per record, a query, lots in place of batches, and any optimizer of torch:

        def loss_fn(model, x, y):
            return nn.functional.cross_entropy(model(x), y, reduction="none")   # one loss per record

        private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1)))
        for lot in private.draws(dataset, sd.Poisson(rate=0.01), steps=2000, expected_batch=500):
            private.backward(lot)             # clips each record's gradient, adds noise, writes .grad
            optimizer.step()
        print(private.claim(delta=1e-5))      # what can truly be said, or why nothing can

    `Flat(1.0)` shortens every record's gradient to length 1, `Gaussian(1.1)` adds noise of 1.1 times that to their sum,
    `Poisson(0.01)` takes each record into a lot by a coin of its own. `sd.calibrate` finds the 1.1 from an ε.

    Args:
        model: stays your own; nothing is wrapped.
        loss_fn: `loss_fn(model, *batch)` gives one loss per record, shape (B,), made of that record alone.
        query: what is asked of every lot.
        penalty: L2(λ), which joins every gradient before it is clipped.
        backend: how gradients are measured; None for the fast exact engine.
        seed: for tests. Without it all randomness comes from the operating system.
        accountant: turns events into ε; PLD by default.
        ledger: where all that is done to the same records is entered, so that one claim is about all of it.
        mesh: ranks that train together; by default those of the torch.distributed group, if there is one. "single"
            makes one process compute with the bits that any number of ranks would have.
        isolate: whether each record is loaded, collated and differentiated by itself, so that records cannot see one
            another.
    Privacy:
        A lot is charged when it is drawn. What was released is free to use; what was not is sealed.

    Examples:
        >>> import sordino as sd
        >>> data = torch.utils.data.TensorDataset(torch.randn(1000, 3))
        >>> model = nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> private = Private(model, lambda m, x: m(x).square().sum(1), sd.NoisySum(sd.Flat(1.0), sd.Gaussian(2.0)))
        >>> for lot in private.draws(data, sd.Poisson(rate=0.1), steps=10, expected_batch=100):
        ...     losses = private.backward(lot)
        ...     optimizer.step()
        >>> private.claim(delta=1e-5).epsilon < 1
        True

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
        isolate: bool = False,
    ) -> None:
        # Refuse what cannot be trained privately before anything else is created.
        model_checks.refuse_wrong_arguments(model, loss_fn, query)
        model_checks.refuse_bad_structure(model)
        self._isolate = isolate
        self._model, self._loss_fn, self._query = model, loss_fn, query
        # The ranks come first: they copy the first rank's parameters, and the backend and the key depend on them.
        self._distributed = DistributedRun(mesh, model)
        if isolate:
            backend = isolated_backend(
                backend, several_ranks=self._distributed.ranks is not None and self._distributed.ranks.size > 1
            )
        self._backend: Backend = prepare_backend(self._distributed.choose_backend(backend), penalty, model)
        self._lot_gradients = LotGradients(model, loss_fn, self._backend, penalty, self._distributed.sharded)
        self._accountant: Accountant = PLD() if accountant is None else accountant
        self._ledger = ledger_for(model, ledger)
        # All randomness of the run comes from one key, which is the same on all ranks.
        root = self._distributed.create_root_stream(seed, self._ledger)
        by_shapes = self._distributed.ranks is not None
        self._progress = Progress(root, query, self._backend, self._ledger, self._distributed.create_stream, by_shapes)
        self._checks = LotChecks(
            model, self._lot_gradients, self._ledger, root.child("standing test"), self._distributed.ranks
        )
        self._live_epsilon: LiveEpsilon | None = None
        self._last_lot: Lot | None = None
        self.kept: Mapping[str, Sealed[Grads]] = {}  # what the query handed out besides its last release
        self._last_records: NDArray[np.int64] | None = None  # of that lot

    @property
    def steps(self) -> int:
        """Lots drawn so far, used or not."""
        return self._progress.steps

    @property
    def diverged(self) -> Diverged | None:
        """The step at which training left the finite numbers, if it did; no lot is drawn after it."""
        return self._progress.diverged

    @property
    def loss(self) -> float | None:
        """The noisy mean loss of the last lot, released and charged by a query that is `WithLoss`; None before it."""
        return released_loss(self._query, self._progress.state)

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
        """Draws `steps` lots of a map-style dataset.

        Args:
            dataset: has a length and records by number.
            sampler: who is in a lot.
            steps: how many lots.
            expected_batch: the public number that every sum is divided by. Without it rate × N is used, and the claim
                says that it does not cover the dataset's size.
            physical_batch: records processed at once; None for as many as fit in memory.
            workers: processes that load a dataset which is not plain tensors.
            collate: makes a batch of a list of records.
            unit: what is drawn and claimed, such as `Unit("speaker")`; a record by default.

        Returns:
            The lots, each drawn when it is asked for.

        Privacy:
            Every lot that is drawn is charged, used or not.

        """
        # Check the arguments, on all ranks, before anything is read or drawn.
        model_checks.refuse_bad_structure(self._model)

        def make_request() -> DrawRequest:
            refuse_unusable_devices(self._model)
            self._distributed.refuse_device_of_another_kind()
            return DrawRequest.create_checked(dataset, sampler, steps, expected_batch, workers, collate, unit)

        settings = {
            "loss_fn": self._loss_fn,
            "penalty": self._lot_gradients.penalty,
            "backend": self._backend,
            "accountant": self._accountant,
            "physical_batch": physical_batch,
            "isolate": self._isolate,
        }
        request = self._distributed.agree_on_request(make_request, self._progress, settings)
        if self._isolate:
            request, chunk = self._isolate_request(request, physical_batch)
            self._disclose_size(request, expected_batch)
            return Draws(request.steps, self._generate_lots(request, chunk))
        # Probe the loss on the first records, then choose how many records are processed at once.
        probe_batch = self._lot_gradients.probe_first_records(request.load_first)
        given_chunk = check_physical_batch(physical_batch) or self._progress.chunk
        by_shapes = self._progress.by_shapes
        chunk = given_chunk or self._distributed.choose_physical_batch(
            self._lot_gradients, probe_batch, request.expected, by_shapes=by_shapes
        )
        self._disclose_size(request, expected_batch)
        return Draws(request.steps, self._generate_lots(request, chunk))

    def _disclose_size(self, request: DrawRequest, expected_batch: float | None) -> None:
        """Names the dataset's size as not covered where the run's public numbers tell it."""
        for name in (*size_not_covered(request.sampler, request.n, expected_batch), *request.not_covered):
            self._ledger.disclose(name)

    def _isolate_request(self, request: DrawRequest, physical_batch: int | None) -> tuple[DrawRequest, int]:
        """Returns the request with records read one by one, and how many of their gradients are held at once."""
        self._checks.is_isolated = True
        most_held = max(1, _HELD_BYTES // self._backend.sample_bytes(self._model))
        chunk = check_physical_batch(physical_batch) or self._progress.chunk or min(most_held, _HELD_RECORDS)
        return isolated_request(request, self._ledger.declare), chunk

    def _generate_lots(self, request: DrawRequest, chunk: int) -> Generator[Lot, None, None]:
        """Yields the lots of one call of `draws`.

        The phase begins with the first lot, so a call of `draws` whose lots are never asked for draws nothing.
        """
        run, loads = self._progress, self._progress.times_loaded
        # Begin or resume the phase, and tell the ledger which records are used from here on.
        phase = run.begin_phase(request.sampler, request.n, chunk)
        self._ledger.uses(request.local_data[0], request.unit, request.declared)
        records = records_for_samplers(
            request.n, request.load, chunk, self._compute_gradients, self._lot_gradients.gathered_parameters
        )
        draws = request.generate_draws(phase, records, run.root, chunk)
        remaining = request.steps
        try:
            while not self._distributed.has_diverged(run):  # before the next lot is drawn, and after the last
                run.refuse_stale_draws(loads)
                self._checks.tripwire.check_parameters(numbers=False)  # `backward` looks at those
                # Draw the next lot. It is charged in `_charge_and_create_lot`, before any record of it is computed on.
                draw, loaded, indices = next(draws, (None, None, None))
                if draw is None or loaded is None or indices is None:
                    break
                remaining -= 1
                self._checks.is_last_of_loop = phase.ended = remaining == 0
                lot = self._charge_and_create_lot(phase, draw, loaded, request.expected)
                self._checks.note_lot(
                    run.ledger_section or "", lot.step, request.local_reader, indices, request.local_data[1], chunk
                )
                yield lot
            if self._distributed.compare_at_end(run):
                self._checks.before_claim()  # all ranks are here, and one may ask for the claim alone
        finally:
            self._checks.tripwire.is_looping, phase.ended = False, True

    def backward(self, lot: Lot | Any) -> Sealed[Tensor]:
        """Asks the query of a lot and writes the noisy mean to `.grad`.

        Args:
            lot: the one drawn last. A batch that no sampler drew is accepted too, and voids the claim.

        Returns:
            The losses of its records, sealed.

        Privacy:
            One release of the query, entered in the ledger. What is in `.grad` afterwards may be used for anything.

        """
        # A batch that no sampler drew has no amplification and no charge, so it voids the claim. An old lot is refused.
        if not isinstance(lot, Lot):
            self._ledger.void("private.backward was given a batch that no sampler drew")
            lot = Lot(-1, Sealed(0), float(max(1, batches.batch_size(lot))), partial(iter, [lot]))
        else:
            self._refuse_old_lot(lot)
        self._checks.before_backward(lot_was_drawn=lot is self._last_lot)
        # Compute the per-sample gradients in batches and let the query clip, sum and release them.
        losses: list[Tensor] = []
        run = self._progress
        with self._lot_gradients.seeded_passes(self._progress.forward), ExitStack() as put_back:
            records = self._last_records if lot is self._last_lot else None
            ranked = self._distributed.share_lot(run, lot, records, self._lot_gradients)
            grads = self._lot_gradients.as_query_input(lot, losses, put_back, records, ranked)
            release, run.state = self._query(grads, run.state, lot.expected_batch, run.noise)
        # Enter the event of the release, and keep what the query hands out besides it sealed.
        self._ledger.release(release.event, run.ledger_section or "")
        self.kept = {name: reseal(value, self._ledger) for name, value in release.kept.items()}
        self._checks.after_query()
        # A bounded sum is finite, so only what has no proof is looked at. What is not finite is not handed on.
        not_finite_name = (
            self._distributed.find_on_any_rank(first_not_finite(release.value))
            if isinstance(release.event, NonPrivate)
            else None
        )
        if not_finite_name is None:
            divide_(release.value, lot.expected_batch / release.divided_by)
            self._checks.tripwire.write_gradients(release.value)
        else:
            run.diverged = Diverged(lot.step, f"the gradient of parameter {not_finite_name!r}")
        return Sealed(losses[0] if len(losses) == 1 else torch.cat(losses), self._ledger)

    def lengths(self, lot: Lot) -> Sealed[Tensor]:
        """Returns the gradient lengths of a lot's records at the current model, sealed; this takes one more pass over
        the lot.
        """
        self._refuse_old_lot(lot)
        with self._lot_gradients.gathered_parameters():
            return Sealed(gradient_lengths(self._compute_gradients(batch) for batch in lot.loads()), self._ledger)

    def labels(self, lot: Lot, label: Label | None = None) -> Sealed[Tensor]:
        """Returns the classes of a lot's records, sealed: what `label` makes of a batch's columns, by default the last
        column.
        """
        self._refuse_old_lot(lot)
        labels_by_batch = [class_labels(batch, label) for batch in lot.loads()]
        return Sealed(torch.cat(labels_by_batch) if labels_by_batch else torch.zeros(0, dtype=torch.long), self._ledger)

    def claim(self, delta: float, *, accountant: Accountant | None = None) -> Claim:
        """Returns what can truly be said about the run so far.

        Args:
            delta: usual is less than one over the number of records.
            accountant: another than the run's own.

        Returns:
            A `Guarantee` with an `epsilon`, or a `NoGuarantee` with a `reason` and no ε at all.

        Privacy:
            Costs nothing. It is made of the events in the ledger, whatever was aimed at.

        """
        return self._ledger.claim(delta, accountant=accountant or self._accountant)

    def spent(self, delta: float) -> float | None:
        """Returns ε so far, for a log or a line of progress; None as soon as the run has none.

        Args:
            delta: at this δ.

        Privacy:
            Costs nothing, and is no claim: it says what was spent. The parameters are looked at first, and the last lot
            is tested if none of the last quarter of the lots was, so that ε does not go on in logs over a run that
            became coupled.

        """
        self._checks.before_log()
        if self._live_epsilon is None or self._live_epsilon.delta != delta:
            self._live_epsilon = LiveEpsilon(delta)
        return self._live_epsilon(self._ledger.event(), self._ledger.coordinates)

    def _charge_and_create_lot(self, phase: DrawPhase, draw: Draw, loads: LotBatches, expected: float) -> Lot:
        """Charges a draw and creates its lot; nothing of it has been computed yet."""
        run = self._progress
        if run.ledger_section is None:  # the first: from here on the parameters change by released gradients only
            self._checks.begin_watching()
        self._last_lot = Lot(run.steps, Sealed(len(draw.indices), self._ledger), expected, loads, loads.most)
        self._last_records = draw.indices
        run.charge_draw(phase, draw, expected, self._lot_gradients.named)
        return self._last_lot

    def _refuse_old_lot(self, lot: Lot) -> None:
        if lot is not self._last_lot:
            raise Refusal("this lot is not the one drawn last: it can be used until the next is, by whoever drew it")

    def _compute_gradients(self, batch: Any) -> PerSample:
        """Computes per-sample gradients of `batch` at the current parameters, using the run's own RNG."""
        self._lot_gradients.refresh_inventory()
        with self._lot_gradients.seeded_passes(self._progress.forward):
            return self._lot_gradients.compute_gradients(batch)
