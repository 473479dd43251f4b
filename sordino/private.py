"""The `Private` class: trains a user's own model, loss and optimizer with differential privacy.

Read it from top to bottom: a run is created, `draws` yields lots, `backward` writes the noisy gradient of a lot to
`.grad`, `claim` says what can be claimed, and at the end stands what saves, loads and copies a run.

Privacy: a draw is charged when it is made. The query's release brings its event, the sampler amplifies it, and the
ledger keeps it. Everything written to `.grad` was released with noise; everything computed from it is post-processing.

Noise is never in two places. A saved state does not hold the noise key, and what it holds of secrets is encrypted under
that key. A loaded state and a copy go on with a key of their own, because what was released after the state was saved
used the old one. Only a `Replay`, which brings the old key, uses it again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sordino import environment, html_views, validate
from sordino.accounting import PLD, Accountant
from sordino.clipping.clipping_rule import State
from sordino.distributed.row_shard import gather_nested
from sordino.distributed_run import DistributedRun, RunFacts
from sordino.events import Event, NonPrivate
from sordino.former_names import former_method, rename_saved_query, rename_saved_state
from sordino.ledger import claims
from sordino.ledger.claims import Claim
from sordino.ledger.ledger import Ledger, ledger_for
from sordino.ledger.live_epsilon import LiveEpsilon
from sordino.lots.draw_arguments import DrawArguments
from sordino.lots.first_records import probe_first_records
from sordino.lots.isolated import isolated_backend, isolated_request
from sordino.lots.loading import MapStyle, count_records
from sordino.lots.lot import DrawPhase, DrawRequest, Draws, Lot, check_physical_batch
from sordino.lots.lot_gradients import LotGradients
from sordino.lots.padding import IN_ORDER, LotPadding, refuse_to_pad
from sordino.lots.privacy_units import AnyUnit
from sordino.lots.record_lengths import class_labels, gradient_lengths, records_for_samplers
from sordino.noise_key import NoiseKey, write_secret
from sordino.optim.step_noise import StepNoise
from sordino.penalty import L2, prepare_backend
from sordino.per_sample import batch_structure as batches
from sordino.per_sample import model_checks
from sordino.per_sample.captured_backend import Captured
from sordino.per_sample.compiled_models import find_compiler, unwrap_compiled
from sordino.per_sample.model_devices import refuse_unusable_devices
from sordino.per_sample.protocol import Backend, LossFn, Measuring, PerSample, Resumable, trainable_parameters
from sordino.progress_bar import ProgressBar
from sordino.queries.dry_run import dry_step
from sordino.queries.epsilon_target import resolve_query
from sordino.queries.noisy_sum import Query
from sordino.queries.with_loss import released_loss
from sordino.refusal import Refusal
from sordino.release.sealed import Sealed, reseal
from sordino.release.vectors import Grads
from sordino.replay import SAVED_FORMAT, Replay, open_saved_state, refuse_unknown_format
from sordino.rng.device_noise import find_device_noise_fault
from sordino.rng.streams import Rng
from sordino.runtime_checks import LotChecks
from sordino.runtime_checks.lot_checks import Diverged, first_not_finite
from sordino.runtime_checks.post_processing_watch import PostProcessingWatch
from sordino.sampling.record_access import Label
from sordino.sampling.sampler import Sampler
from sordino.sampling.size_disclosure import size_not_covered

NOTHING_LEFT_SINCE = "nothing of the lots drawn after the loaded state was saved has left the process that drew them"
"""The user's word for what no saved state can know."""

RUNTIME_CHECKS = "standing test"
"""Label of the random stream that the runtime checks draw from. The label decides the stream's bits, so it keeps the word
that 0.2 had for these checks; another word would change every seeded run and every saved state."""

_HELD_BYTES, _HELD_RECORDS = 1 << 28, 256
"""Largest size, in bytes and in records, of the per-sample gradients that an isolated run holds at once."""


@dataclass(frozen=True, eq=False)
class RunInside:
    """The parts and secrets of a run, for audits; `Private.open_for_audit` returns it.

    Privacy:
        Noise, draws and records are as secret as the data. Nothing of them may leave the process.

    """

    model: nn.Module
    loss_fn: LossFn
    query: Query
    penalty: L2 | None
    backend: Backend
    noise_state: Mapping[str, Any]
    """Key and position of the noise, as `Rng.replay` takes them."""
    draw_stream: Rng | None
    """The stream that the lots of the current call of `draws` are drawn from; None before the first."""
    draw_position: int
    """How many lots of that call were drawn."""
    phase_number: int | None
    """The number of that call, from which the noise of a phase that is charged as a whole follows; None before the first,
    and where lots are charged one by one."""
    records: NDArray[np.int64] | None
    """The records of the lot drawn last."""


class Private:
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
    `Poisson(0.01)` takes each record into a lot by a coin of its own. `sd.calibrate` finds the 1.1 from an ε, and so does
    a run that is given the ε in place of a query:

        private = sd.Private(model, loss_fn, epsilon=3.0, delta=1e-5, clip=1.0)
        for lot in private.draws(dataset, batch_size=256, epochs=10): ...
        print(private)                        # what was chosen: clipping, noise, rate, steps

    Args:
        model: stays your own; nothing is wrapped.
        loss_fn: `loss_fn(model, *batch)` gives one loss per record, shape (B,), made of that record alone.
        query: what is asked of every lot; or
        epsilon: what the run may cost, at
        delta: this δ, by plain DP-SGD that clips every gradient to the length
        clip: 1.0 by default. The noise is found when `draws` knows the number of steps.
        penalty: L2(λ), which joins every gradient before it is clipped.
        backend: how gradients are measured; None for the fast exact engine.
        seed: for tests. Without it all randomness comes from the operating system.
        accountant: turns events into ε; PLD by default.
        ledger: where all that is done to the same records is entered, so that one claim is about all of it.
        mesh: ranks that train together; by default those of the torch.distributed group, if there is one. "single"
            makes one process compute with the bits that any number of ranks would have.
        isolate: whether each record is loaded, collated and differentiated by itself, so that records cannot see one
            another.
        strict: whether to raise `ClaimVoided` where the run loses its guarantee; by default it warns once, with the line
            of your code, and goes on without one.
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

    # --- Creating a run.

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        query: Query | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        clip: float | None = None,
        penalty: L2 | None = None,
        backend: Backend | None = None,
        seed: int | None = None,
        accountant: Accountant | None = None,
        ledger: Ledger | None = None,
        mesh: Any = None,
        isolate: bool = False,
        strict: bool = False,
    ) -> None:
        # Refuse what cannot be trained privately before anything else is created.
        query, self._target = resolve_query(query, epsilon, delta, clip)
        model_checks.refuse_wrong_arguments(model, loss_fn, query)
        # Of a compiled model the engine trains the module inside, whose layers it can see, and keeps the compiler.
        self._compiler = find_compiler(model)
        model = unwrap_compiled(model)
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
        self._ledger.is_strict = self._ledger.is_strict or bool(
            validate.instance("strict", strict, bool, "True or False")
        )
        # All randomness of the run comes from one key, which is the same on all ranks.
        self._root = self._distributed.create_root_stream(seed, self._ledger)
        self._noise, self._forward = self._root.child("noise"), self._root.child("forward")
        # Ranks choose formulas and batch sizes by shapes alone, and so does a run whose key was saved: a stopwatch would
        # choose otherwise on another rank, or in a replay.
        self._by_shapes = self._distributed.ranks is not None
        self._checks = LotChecks(
            model, self._lot_gradients, self._ledger, self._root.child(RUNTIME_CHECKS), self._distributed.ranks
        )
        self._post_processing = PostProcessingWatch(self._ledger.void, self._ledger.declare)
        self._cipher_was_chosen = False
        # How far the run has come. All of this is in its saved state.
        self._query_state: State = query.init()
        self._planned: DrawArguments | None = None  # what the noise was calibrated for, if the run has a target ε
        self._ledger_section: str | None = None  # taken with the first draw: a loaded state brings its own
        self._steps = 0
        self._phases_begun = 0  # calls of draws that have begun
        self._phase: DrawPhase | None = None  # of the last draw
        self._resumed_phase: DrawPhase | None = None  # of a loaded state, to go on with
        self._physical_batch: int | None = None
        self._diverged: Diverged | None = None
        # The rest is not saved.
        self._times_loaded = 0
        self._live_epsilon: LiveEpsilon | None = None
        self._drawn_plan: tuple[float, int] | None = None  # expected batch and steps of the last call of draws
        self._last_lot: Lot | None = None
        self._last_records: NDArray[np.int64] | None = None  # of that lot
        self.kept: Mapping[str, Sealed[Grads]] = {}  # what the query handed out besides its last release

    def __repr__(self) -> str:
        """Returns what was chosen: the model's class, the query, the target and the steps so far."""
        rows = self._describe()
        return "\n".join([f"Private({type(self._model).__name__})", *(f"  {name:<8} {value}" for name, value in rows)])

    def _repr_html_(self) -> str:
        """Returns what was chosen as a notebook shows it."""
        return html_views.render_card(f"Private({type(self._model).__name__})", self._describe())

    def _describe(self) -> list[tuple[str, str]]:
        """Returns the names and values by which a `Private` run is shown in words and in a notebook."""
        rows = [("query", repr(self._query))]
        if self._target is not None:
            rows.append(("target", f"epsilon={self._target.epsilon:g} at delta={self._target.delta:g}"))
        if self._planned is not None:
            rows.append(("draws", f"{self._planned.steps} lots by {self._planned.sampler!r}"))
        if self._compiler is not None:
            rows.append(("compiler", f"{self._compiler.name}, for the passes over padded lots"))
        return [*rows, ("drawn", f"{self._steps} lots so far")]

    @property
    def steps(self) -> int:
        """Lots drawn so far, used or not."""
        return self._steps

    @property
    def diverged(self) -> Diverged | None:
        """The step at which training left the finite numbers, if it did; no lot is drawn after it."""
        return self._diverged

    @property
    def loss(self) -> float | None:
        """The noisy mean loss of the last lot, released and charged by a query that is `WithLoss`; None before it."""
        return released_loss(self._query, self._query_state)

    @property
    def event(self) -> Event:
        """Everything done to the data so far, by this and by whatever shares its ledger."""
        return self._ledger.event()

    @property
    def step_noise(self) -> StepNoise | None:
        """How much of a step will be noise, from public numbers: `print(private.step_noise.advise())` says what to change.

        None before `draws`, and where the query adds no noise of one public scale.
        """
        if self._drawn_plan is None:
            return None
        expected, steps = self._drawn_plan
        coordinates = sum(p.numel() for p in self.trained_parameters().values())
        return StepNoise.of_query(self._query, expected_batch=expected, coordinates=coordinates, steps=steps)

    @property
    def is_within_phase(self) -> bool:
        """Whether the next lots belong to a phase that was charged as a whole before its first release."""
        phase = self._resumed_phase or self._phase
        return phase is not None and phase.noise is not None and phase.position < phase.steps

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """Returns the parameters of the `Private` run that are trained, by name."""
        return dict(trainable_parameters(self._model))

    # --- Drawing lots.

    def draws(
        self,
        dataset: MapStyle | DataLoader[Any] | Mapping[str, Any],
        sampler: Sampler | None = None,
        steps: int | None = None,
        *,
        batch_size: int | None = None,
        epochs: float | None = None,
        expected_batch: float | None = None,
        physical_batch: int | None = None,
        pad_lots: bool = False,
        workers: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        unit: AnyUnit | None = None,
        progress: bool = False,
    ) -> Draws:
        """Draws the `steps` lots of a map-style dataset that a `Private` run trains on.

        Args:
            dataset: has a length and records by number, which may be dicts; or a DataLoader, which brings its dataset,
                batch size, collate function and workers; or columns by name, such as a tokenizer's output with labels.
            sampler: who is in a lot.
            steps: how many lots.
            batch_size: in place of a sampler: Poisson sampling of lots of this size on average.
            epochs: in place of steps: as many as draw this many times as many records as there are.
            expected_batch: the public number that every sum is divided by; `batch_size` where that was given. Without
                either rate × N is used, and the claim says that it does not cover the dataset's size.
            physical_batch: records processed at once; None for as many as fit in memory.
            pad_lots: whether every batch is filled up to one size with rows that carry no weight, so that all passes have
                one shape, as `torch.compile` wants it; the sampler's lots must have a largest size, as those of
                `TruncatedPoisson` have. A model that `torch.compile` was applied to then runs compiled.
            workers: processes that load a dataset which is not plain tensors.
            collate: makes a batch of a list of records.
            unit: what is drawn and claimed, such as `Unit("speaker")`; a record by default.
            progress: whether a bar shows, on a terminal or in a notebook, how many lots are drawn and the time left.

        Returns:
            The lots, each drawn when it is asked for.

        Privacy:
            Every lot that is drawn is charged, used or not.

        """
        # Check the arguments, on all ranks, before anything is read or drawn. A run with a target ε in place of a query
        # finds its noise here, because sampler and steps are known now.
        model_checks.refuse_bad_structure(self._model)
        public_divisor = expected_batch
        if validate.instance("pad_lots", pad_lots, bool, "True or False"):
            refuse_to_pad(ranks=self._distributed.ranks is not None, unit=unit is not None, isolate=self._isolate)

        def make_request() -> DrawRequest:
            """Checks the arguments of a call of `Private.draws` on this rank."""
            nonlocal public_divisor
            self._refuse_unfit_devices()
            arguments = DrawArguments.resolve(
                dataset,
                sampler,
                steps,
                batch_size=batch_size,
                epochs=epochs,
                expected_batch=expected_batch,
                workers=workers,
                collate=collate,
                has_unit=unit is not None,
            )
            public_divisor = arguments.expected_batch
            return DrawRequest.create_checked(
                arguments.dataset,
                arguments.sampler,
                self._calibrate_to_target(arguments, counts_from_start=epochs is not None),
                arguments.expected_batch,
                arguments.workers,
                arguments.collate,
                unit,
            )

        settings = {
            "loss_fn": self._loss_fn,
            "penalty": self._lot_gradients.penalty,
            "backend": self._backend,
            "accountant": self._accountant,
            "physical_batch": physical_batch,
            "pad_lots": pad_lots,
            "isolate": self._isolate,
        }
        request = self._distributed.agree_on_request(make_request, self._facts_for_ranks, settings)
        given_chunk = check_physical_batch(physical_batch) or self._physical_batch
        if self._isolate:
            # Records are read one by one, and so many of their gradients are held at once.
            self._checks.is_isolated = True
            most_held = max(1, _HELD_BYTES // self._backend.sample_bytes(self._model))
            chunk = given_chunk or min(most_held, _HELD_RECORDS)
            request = isolated_request(request, self._ledger.declare)
        else:
            # Probe the loss on the first records, then choose how many records are processed at once.
            probe_batch = probe_first_records(self._lot_gradients, request.load_first)
            chunk = given_chunk or self._distributed.choose_physical_batch(
                self._lot_gradients, probe_batch, request.expected, by_shapes=self._by_shapes
            )
        # Padded lots have one shape, for which the passes of a compiled model can be compiled.
        padding = None
        if pad_lots:
            padding = LotPadding.create(request.sampler, request.n, chunk, probe_batch)
            chunk, request = padding.rows, replace(request, cutting=IN_ORDER)
            if self._compiler is not None and isinstance(self._backend, Captured):
                self._backend.compile_passes(self._model, padding.rows, self._compiler)
        # Name the dataset's size as not covered where the run's public numbers tell it.
        for name in (*size_not_covered(request.sampler, request.n, public_divisor), *request.not_covered):
            self._ledger.disclose(name)
        # A target ε was calibrated for records that are there once, so the claim says why it is larger.
        if request.copies > 1:
            self._ledger.declare(
                f"a record is up to {request.copies} times in the data: its copies are charged together, as one person's"
            )
        self._drawn_plan = request.expected, request.steps
        # One rank shows the bar; what it shows is public.
        ranks = self._distributed.ranks
        is_first_rank = ranks is None or ranks.rank == 0
        bar = ProgressBar(request.steps, "lot") if progress and is_first_rank else None
        return Draws(request.steps, self._generate_lots(request, chunk, padding), bar)

    def _calibrate_to_target(self, arguments: DrawArguments, *, counts_from_start: bool) -> int:
        """Returns how many lots a `Private` run has left to draw. If the run has a target ε and no noise yet, it finds
        the noise first.

        A run that was loaded in the middle of its epochs draws the rest of them, with the noise of the whole.
        """
        resumed = self._resumed_phase
        n = count_records(arguments.dataset)
        goes_on = resumed is not None and resumed.source == (repr(arguments.sampler), n)
        done = resumed.position if resumed is not None and goes_on and counts_from_start else 0
        if self._target is not None:
            if self._planned is not None and not goes_on:
                raise Refusal(
                    "this run has drawn the lots that its epsilon was calibrated for.\n"
                    f"More lots would cost more than epsilon={self._target.epsilon:g}.\n"
                    "Give all epochs to one call of draws, or give a query in place of epsilon."
                )
            self._query = self._target.calibrate_query(arguments.sampler, n, arguments.steps)
            self._query_state = self._query.init()
            self._planned = arguments
        if done >= arguments.steps:
            raise Refusal(
                f"all {arguments.steps} lots of these epochs were drawn before the state was saved.\n"
                "The run is complete.\n"
                "Ask for the claim, or give more epochs."
            )
        return arguments.steps - done

    def _generate_lots(
        self, request: DrawRequest, chunk: int, padding: LotPadding | None = None
    ) -> Generator[Lot, None, None]:
        """Yields the lots of one call of `Private.draws`.

        The phase begins with the first lot, so a call of `draws` whose lots are never asked for draws nothing.
        """
        times_loaded = self._times_loaded
        # Frameworks move the model between the call of `draws` and its first lot, so its device is looked at again here.
        self._refuse_unfit_devices()
        self._choose_cipher()
        # Begin or resume the phase, and tell the ledger which records are used from here on.
        phase = self._begin_phase(request.sampler, request.n, chunk, request.steps)
        (local_data, local_count), local_reader = request.local_data, request.local_reader
        self._ledger.uses(local_data, request.unit, request.declared)
        self._post_processing.note_dataset(local_data)
        records = records_for_samplers(
            request.n, request.load, chunk, self._compute_gradients, self._lot_gradients.pass_model.gathered_parameters
        )
        draws = request.generate_draws(phase, records, self._root, chunk, self._query, self._noise)
        remaining = request.steps
        try:
            while not self._has_diverged():  # before the next lot is drawn, and after the last
                if times_loaded != self._times_loaded:
                    raise Refusal(
                        "a state was loaded after these draws began.\n"
                        "They belong to the run as it was before.\n"
                        "Call draws() again, which goes on from the loaded state."
                    )
                drawn = next(draws, None)
                if drawn is None:
                    break
                remaining -= 1
                self._checks.is_last_of_loop = phase.ended = remaining == 0
                # From the first draw on the parameters change by released gradients only.
                if self._ledger_section is None:
                    self._checks.begin_watching()
                    self._ledger_section = self._ledger.new_section()
                # Charge the draw before anything of it is computed. The charge is the event of a dry run, until the
                # release replaces it by its own.
                most = None if padding is None else padding.rows_rounded_together
                lot = drawn.make_lot(self._steps, request.expected, self._ledger, most)
                self._lot_gradients.padding = padding  # until the next lot is drawn, by whichever call of draws
                planned = partial(_planned_event, self._query, self._query_state, request.expected, self._backend)
                self._ledger.open(
                    drawn.amplify,
                    planned,
                    drawn.pass_name,
                    drawn.draw.bins,
                    self._ledger_section,
                    spent=drawn.draw.spent,
                )
                self._steps, self._phase = self._steps + 1, phase
                self._last_lot, self._last_records = lot, drawn.draw.indices
                test_reader, test_count = drawn.nearby or (local_reader, local_count)
                self._checks.note_lot(
                    self._ledger_section, lot.step, test_reader, drawn.local_indices, test_count, chunk
                )
                yield lot
            # All ranks are here at the end, and one of them may ask for the claim alone.
            if self._distributed.ranks is not None:
                self._distributed.compare_at_end(self._facts_for_ranks())
                self._checks.before_claim()
        finally:
            self._checks.tripwire.is_looping, phase.ended = False, True

    def _refuse_unfit_devices(self) -> None:
        """Raises a `Refusal` if a `Private` run cannot be right where its model is, or its ranks cannot send its sums."""
        refuse_unusable_devices(self._model)
        self._distributed.refuse_device_of_another_kind()

    def _begin_phase(self, sampler: Sampler, n: int, chunk: int, steps: int) -> DrawPhase:
        """Returns a new phase of draws of the `Private` run, or the phase that these draws go on with.

        A state that was loaded goes on with the phase it was saved in. A run that can be replayed goes on with its last
        phase too, once that has ended: its replay, from a state in the middle, would do so, and must draw the same.
        A phase that was charged as a whole has no more draws than it was charged for.
        """
        source = (repr(sampler), n)
        # Sampler and dataset must be those of the phase: other draws begin a phase of their own.
        saved, last_phase = (
            phase if phase is not None and phase.source == source and phase.has_room_for(steps) else None
            for phase in (self._resumed_phase, self._phase)
        )
        if saved is not None:
            phase = saved
        elif self._by_shapes and last_phase is not None and last_phase.ended:
            phase = last_phase
        else:
            phase = DrawPhase(self._phases_begun, source, steps=steps)
        phase.ended = False
        self._phases_begun = max(self._phases_begun, phase.number + 1)
        self._phase, self._resumed_phase, self._physical_batch = phase, None, chunk
        return phase

    def _has_diverged(self) -> bool:
        """Returns whether private training is over because a parameter, which is public, is not finite any more.

        It also voids the claim if a parameter was changed other than by a step on released gradients.
        """
        if self._diverged is None:
            name = self._checks.before_draw(self._distributed)
            if name is not None and not self._steps:
                raise Refusal(
                    f"parameter {name!r} is not finite before the first step.\n"
                    "A step would make every other parameter so too.\n"
                    "Look at how it was initialised, and give it finite values."
                )
            self._diverged = None if name is None else Diverged(self._steps - 1, f"parameter {name!r}")
        return self._diverged is not None

    def _facts_for_ranks(self) -> RunFacts:
        """Returns what the ranks of a distributed run compare about the run itself."""
        streams = (self._root, self._noise, self._forward)
        return RunFacts(self._query, self._query_state, self._steps, streams, self._ledger)

    # --- Clipping, noise and claim.

    def backward(self, lot: Lot | Any) -> Sealed[Tensor]:
        """Asks the query of the `Private` run of a lot and writes the noisy mean to `.grad`, in place of
        `loss.backward()`.

        Args:
            lot: the one drawn last. A batch that no sampler drew is accepted too, and voids the claim.

        Returns:
            The losses of its records, sealed.

        Privacy:
            One release of the query, entered in the ledger. What is in `.grad` afterwards may be used for anything.

        """
        # A batch that no sampler drew has no amplification and no charge, so it voids the claim. An old lot is refused.
        if not isinstance(lot, Lot):
            self._ledger.void(
                "private.backward was given a batch that no sampler drew.\n"
                "Nothing is known of who could have been in it.\n"
                "Give it the lots of private.draws."
            )
            lot = Lot(-1, Sealed(0), float(max(1, batches.batch_size(lot))), partial(iter, [lot]))
        else:
            self._refuse_old_lot(lot)
        lot_was_drawn = lot is self._last_lot
        self._checks.before_backward(lot_was_drawn=lot_was_drawn)
        # Compute the per-sample gradients in batches and let the query clip, sum and release them.
        records = self._last_records if lot_was_drawn else None
        join_ranks = None
        if self._distributed.ranks is not None:
            join_ranks = partial(
                self._distributed.share_lot, self._facts_for_ranks(), lot, records, self._lot_gradients
            )
        release, self._query_state, losses = self._lot_gradients.ask_query(
            self._query, self._query_state, lot, records, self._noise, self._forward, self._ledger, join_ranks
        )
        # Enter the event of the release, and keep what the query hands out besides it sealed.
        self._ledger.release(release.event, self._ledger_section or "")
        self.kept = {name: reseal(value, self._ledger) for name, value in release.kept.items()}
        self._checks.after_query()
        # A bounded sum is finite, so only what has no proof is looked at. What is not finite is not handed on.
        not_finite_name = (
            self._distributed.find_on_any_rank(first_not_finite(release.value))
            if isinstance(release.event, NonPrivate)
            else None
        )
        if not_finite_name is None:
            self._checks.tripwire.write_gradients(release.value, lot.expected_batch / release.divided_by)
        else:
            self._diverged = Diverged(lot.step, f"the gradient of parameter {not_finite_name!r}")
        return losses

    def _refuse_old_lot(self, lot: Lot) -> None:
        """Raises Refusal unless `lot` is the one that this `Private` run drew last."""
        if lot is not self._last_lot:
            raise Refusal(
                "this lot is not the one drawn last.\n"
                "A lot can be used until the next is drawn, by the Private that drew it.\n"
                "Call private.backward(lot) before the loop goes on."
            )

    def _compute_gradients(self, batch: Any) -> PerSample:
        """Computes per-sample gradients of `batch` at the current parameters, using the random numbers of the `Private`
        run.
        """
        self._lot_gradients.pass_model.refresh_inventory()
        with self._lot_gradients.seeded_passes(self._forward):
            return self._lot_gradients.compute_gradients(batch)

    def lengths(self, lot: Lot) -> Sealed[Tensor]:
        """Returns the gradient lengths of a lot's records at the current model of the `Private` run, sealed; this takes
        one more pass over the lot.
        """
        self._refuse_old_lot(lot)
        with self._lot_gradients.pass_model.gathered_parameters():
            return Sealed(gradient_lengths(self._compute_gradients(batch) for batch in lot.loads()), self._ledger)

    def labels(self, lot: Lot, label: Label | None = None) -> Sealed[Tensor]:
        """Returns the classes of a lot's records, sealed: what `label` makes of a batch's columns, by default the last
        column.
        """
        self._refuse_old_lot(lot)
        labels_by_batch = [class_labels(batch, label) for batch in lot.loads()]
        return Sealed(torch.cat(labels_by_batch) if labels_by_batch else torch.zeros(0, dtype=torch.long), self._ledger)

    def claim(self, delta: float, *, accountant: Accountant | None = None) -> Claim:
        """Returns what can truly be said about the privacy of the run so far.

        Args:
            delta: usual is less than one over the number of records.
            accountant: another than the run's own.

        Returns:
            A `Guarantee` with an `epsilon`, or a `NoGuarantee` with a `reason` and no ε at all.

        Privacy:
            Costs nothing. It is made of the events in the ledger, whatever was aimed at.

        """
        return self._ledger.claim(delta, accountant=accountant or self._accountant)

    def spent_epsilon(self, delta: float) -> float | None:
        """Returns the ε that the private run spent so far, for a log or a line of progress; None as soon as the run has
        none.

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

    spent = former_method("spent", "spent_epsilon")

    # --- What the user declares about the loop.

    @contextmanager
    def post_processing(self, why: str) -> Iterator[None]:
        """Allows parameters to be changed, and others to be trained, inside by released values alone; the claim says so.

            with private.post_processing("average of the last steps"):
                average.copy_to(model)

            with private.post_processing("the generator is trained through the discriminator"):
                generator_optimizer.zero_grad()
                adversarial_loss(model(generator(torch.randn(64, 8)))).backward()
                generator_optimizer.step()

        Args:
            why: in words; printed with the claim, which rests on it.

        Privacy:
            Free, if only released values go into it. That is your word. Every tensor operation inside is looked at: one
            that reads memory of the dataset, or a row that is equal to a record, voids the claim. If gradients are taken,
            the claim names the lines that read other tensors from outside the block.

        """
        if not isinstance(why, str) or not why.strip():
            raise ValueError(f"{why!r}: say in words what is done to released values; it is printed with the claim")
        self._ledger.declare(f"post-processing of released values, by declaration: {why.strip()}")
        tripwire = self._checks.tripwire
        # Row shards are divided among ranks, where single operations cannot be followed; there the user's word remains.
        if self._lot_gradients.pass_model.is_sharded:
            with tripwire.post_processing():
                yield
            return
        parameters = list(self._model.parameters())
        released = [*parameters, *(p.grad for p in parameters if p.grad is not None), *self._model.buffers()]
        with (
            tripwire.post_processing(takes_gradients=True),
            self._post_processing.block(released, lambda: tripwire.was_backward_inside),
        ):
            yield

    @contextmanager
    def public(self, name: str) -> Iterator[None]:
        """Allows backward passes and steps inside on data that you declare public; the claim names them as not covered.

            with private.public("ImageNet"):
                loss.backward()
                optimizer.step()

        Args:
            name: which data; printed with the claim.

        Privacy:
            The claim is about the private records alone, and says so.

        """
        self._ledger.disclose(f"steps on data declared public: {name}")
        with self._checks.tripwire.public():
            yield

    # --- Saving and loading.

    def state_dict(self) -> dict[str, Any]:
        """Returns ledger and position of the private run, as JSON but for tensors of a query's state. It does not hold
        the noise key.

        It can go wherever the model goes: everything in it is public, or released, or encrypted under the run's key. Of
        several `draws` in turn, the last can be gone on with.
        """
        self._choose_cipher()
        phase, is_repeatable = self._phase, self._is_repeatable()
        # What a sampler remembers tells about records, so it is encrypted together with the positions of the streams.
        memory = None if phase is None or phase.memory is None else phase.memory()
        counters = {"root": self._root.counter, "noise": self._noise.counter, "forward": self._forward.counter}
        return {
            "format": SAVED_FORMAT,
            "ledger": self._ledger.state_dict(),
            "page": self._ledger_section,
            "query": repr(self._query),
            "state": gather_nested(self._query_state),
            "encrypted": self._noise_key().encrypt(
                {"counters": counters, "memory": memory, "noise_cipher": self._noise.cipher}
            ),
            "remembers_records": memory is not None,
            "repeatable": is_repeatable,
            "environment": environment.current_environment() if is_repeatable else None,
            "steps": self._steps,
            "phases": self._phases_begun,
            "phase": -1 if phase is None else phase.number,
            "position": 0 if phase is None else phase.position,
            "source": None if phase is None else phase.source,
            "whole_phase": None if phase is None else phase.describe_whole(),
            "physical_batch": self._physical_batch,
            "diverged": None if self._diverged is None else [self._diverged.step, self._diverged.what],
            "backend": self._backend.state_dict() if isinstance(self._backend, Resumable) else None,
            **self._checks.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, replay: Replay | None = None) -> None:
        """Continues a saved private run: ledger, steps and position of the next `draws` with the same sampler and
        dataset.

        The noise and the draws are new, from a new key: what the run released after it was saved, here or elsewhere,
        used those of the old one. So a pass that was begun is charged once more, for its rest, and a sampler that
        remembers records asks them anew. Lots that were drawn after the state was saved are not in it; the claim says
        that it rests on nothing of them having left. With a `Replay` the key is that of its `secret`, and the run goes
        on bit by bit. Model and optimizer are the user's own, loaded by their own methods.
        """
        self.continue_logged_run(state, replay=replay)
        # Nobody logged what was drawn after the state was saved, so it remains the user's word.
        if replay is None and self._steps:
            self._ledger.declare(NOTHING_LEFT_SINCE)

    def continue_logged_run(self, state: Mapping[str, Any], *, replay: Replay | None = None) -> None:
        """Continues a saved private run of which everything that was drawn after the state was saved is known.

        For programs that enter every draw in a log of their own before it is made, as `sordino train` does, and charge
        in the ledger what the state does not hold. Everybody else calls `load_state_dict`, which does the same and has
        the claim say that nothing of later lots has left the process.

        Args:
            state: what `state_dict` returned.
            replay: the permission to use noise and draws again; None for new ones, from a new key.

        Privacy:
            The claim is true only if lots that were drawn since, and of which anything left, are charged by the caller.

        """
        # Everything that may be refused comes before the first change.
        refuse_unknown_format(state)
        if replay is not None:
            validate.instance("replay", replay, Replay, "sd.Replay(because=...)")
        streams, memory = open_saved_state(
            state,
            replay,
            self._noise_key,
            device=next((p.device for p in self._model.parameters()), torch.device("cpu")),
            measures=self._backend_measures(),
            by_shapes=self._by_shapes,
        )
        self._ledger.load_state_dict(state["ledger"])
        self._ledger_section = state["page"]
        # Another query begins anew; what the old one did stays in the ledger. States of 0.3 have former names of fields.
        if state["query"] == repr(self._query):
            self._query_state = state["state"]
        elif rename_saved_query(state["query"]) == repr(self._query):
            self._query_state = rename_saved_state(state["state"])
        # Noise must not be used twice: only a replay uses the saved streams again.
        if replay is None or streams is None:
            self.renew(draws=True)
        else:
            self._root, self._noise, self._forward = streams
            self._cipher_was_chosen = True  # by the run whose noise is used again
            if not replay.entered:
                self._ledger.disclose(f"{claims.REPLAYED}: {replay.because}")
        self._steps, self._phases_begun = state["steps"], state["phases"]
        # The next draws go on with the saved phase. The rest of a pass that comes from a new key is not of that pass, and
        # a sampler that remembers records begins anew where that memory cannot be read.
        resumed_phase = None
        was_forgotten = memory is None and state.get("remembers_records", False)
        if state["source"] is not None and not was_forgotten:
            number, source = state["phase"] if replay else self._phases_begun, (state["source"][0], state["source"][1])
            resumed_phase = DrawPhase(number, source, state["position"], None if memory is None else lambda: memory)
        # A phase that is charged as a whole goes on only with its own key. With another, the next draws are a new phase.
        whole_phase = state.get("whole_phase")
        if resumed_phase is not None and whole_phase is not None:
            resumed_phase.resume_whole(self._noise.child("phase", resumed_phase.number), whole_phase)
            resumed_phase = resumed_phase if replay else None
        self._phase = self._resumed_phase = resumed_phase
        self._physical_batch = state["physical_batch"]
        self._diverged = Diverged(*state["diverged"]) if state.get("diverged") else None
        if state.get("backend") is not None and isinstance(self._backend, Resumable):
            self._backend.load_state_dict(state["backend"])
        if replay is not None:
            self._stop_measuring()
        self._times_loaded += 1
        self._checks.resume_from(state, self._root.child(RUNTIME_CHECKS), replayed=replay is not None)

    def renew(self, *, draws: bool) -> None:
        """Replaces the noise of the private run by noise that was never used before, for a run that goes on otherwise
        than it did.

        With `draws` the lots to come are new too. Without it they are the ones that the loaded state would have drawn,
        so that the rest of a pass over the data still belongs to that pass. A phase that is charged as a whole ends with
        the key of its noise: draws after it are a phase of their own, and are charged as one.
        """
        for phase in (self._phase, self._resumed_phase):
            if phase is not None:
                phase.end_here()
        new_root = self._distributed.create_stream()
        self._noise, self._forward = new_root.child("noise"), new_root.child("forward")
        self._cipher_was_chosen = False
        if draws:
            self._root = new_root

    def secret_state(self) -> dict[str, Any]:
        """Returns the noise key of the private run as JSON. Whoever reads it can subtract the noise: it is as secret as
        the data.

        It is needed for a `Replay` and for nothing else. States that are saved from here on can be replayed, because
        from here on nothing is measured: formulas and batch sizes are chosen by shapes alone, which a replay repeats.
        """
        self._stop_measuring()
        return self._noise_key().to_table()

    def save_secret(self, folder: str | Path) -> Path:
        """Writes the run's noise key to `SECRET-noise-key-do-not-share.json` in a folder, and returns the file's path.

        Only its owner can read the file, and the folder's `.gitignore` names it. Call this once, before the first state
        is saved that may be replayed, and again after a state was loaded without a `Replay`, which makes a new key.
        Delete the file when the run is over.
        """
        return write_secret(folder, self.secret_state())

    def _choose_cipher(self) -> None:
        """Chooses, once, the cipher of the run's noise, before its first value and before a state names it.

        If the model's device makes noise itself, and made the CPU's values in a self-test, it is the cipher of devices.
        Ranks divide their noise on the CPU, and keep the common one.
        """
        if self._cipher_was_chosen:
            return
        self._cipher_was_chosen = True
        device = next((p.device for p in self._model.parameters()), torch.device("cpu"))
        if self._noise.counter == 0 and self._distributed.ranks is None and find_device_noise_fault(device) is None:
            self._noise = self._noise.with_device_cipher()

    def _noise_key(self) -> NoiseKey:
        return NoiseKey.of_streams(self._root, self._noise, self._forward)

    def _stop_measuring(self) -> None:
        """Stops a `Private` run from measuring what is fastest. What was measured so far stays chosen, and is in every
        state saved from here on.
        """
        self._by_shapes = True
        if isinstance(self._backend, Measuring):
            self._backend.choose_by_shapes()

    def _backend_measures(self) -> bool:
        return isinstance(self._backend, Measuring) and self._backend.measures

    def _is_repeatable(self) -> bool:
        """Returns whether what follows from here is a function of key, data, model and settings, and of no clock."""
        return self._by_shapes or (not self._backend_measures() and self._physical_batch is not None)

    # --- Copies and audits.

    def __copy__(self) -> Self:
        """Returns another run on the same model, in the same ledger, with noise of its own."""
        return self._create_twin(self._model)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Returns another run on a copy of the model; it writes in the same ledger, and its noise is its own."""
        return self._create_twin(copy.deepcopy(self._model, memo))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Private cannot be pickled, its noise must not be in two places: save its state_dict()")

    def _create_twin(self, model: nn.Module) -> Self:
        """Returns a second `Private` run on `model` that shares the ledger and continues this run's position with a new
        key.
        """
        target = self._target if self._planned is None else None
        twin = type(self)(
            model,
            self._loss_fn,
            self._query if target is None else None,
            epsilon=None if target is None else target.epsilon,
            delta=None if target is None else target.delta,
            clip=None if target is None else target.clip,
            penalty=self._lot_gradients.penalty,
            backend=self._backend,
            accountant=self._accountant,
            ledger=self._ledger,
            mesh=self._distributed.ranks,
            isolate=self._isolate,
        )
        twin._compiler = self._compiler
        # The twin takes a ledger section of its own, and its query state must not be shared.
        state = self.state_dict()
        twin.continue_logged_run({**state, "page": None, "state": copy.deepcopy(state["state"])})
        return twin

    def open_for_audit(self) -> RunInside:
        """Returns the parts and the secrets of the `Private` run as they are now, for audits that compute them a second
        time.

        Privacy:
            It voids nothing, as `secret_state` does not: what an audit prints must be differences and verdicts, never
            these values.

        """
        phase = self._phase
        return RunInside(
            model=self._model,
            loss_fn=self._loss_fn,
            query=self._query,
            penalty=self._lot_gradients.penalty,
            backend=self._backend,
            noise_state=self._noise.state_dict(),
            draw_stream=None if phase is None else self._root.child("draws", phase.number),
            draw_position=0 if phase is None else phase.position,
            phase_number=None if phase is None or phase.noise is None else phase.number,
            records=self._last_records,
        )

    def restart_query(self, noise: Rng | None = None) -> None:
        """Puts the query of a `Private` run back to its first state and leaves the last lot untested, for trials of an
        audit.

        Args:
            noise: takes the place of the run's noise, so that two trials can be compared at the same coins.

        Privacy:
            Voids the claim: the noise may be known, and one lot may be asked more often than is charged.

        """
        self._ledger.void("the query was put back to its first state, for a trial of an audit", announce=False)
        self._query_state = self._query.init()
        self._checks.skip_test_of_lot()
        if noise is not None:
            self._noise = noise


def _planned_event(query: Query, state: State, expected_batch: float, backend: Backend) -> Event:
    """Returns the event of a dry run of the query, which is what a draw costs on which nothing is released."""
    return dry_step(query, state, expected_batch, backend)[0]
