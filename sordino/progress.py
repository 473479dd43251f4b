"""The progress of a run: its random streams, draws and query state, to be saved and resumed.

Privacy: a saved state does not hold the key of the noise; the positions of its streams and what a sampler remembers of
the records are encrypted under that key. Loaded, a state goes on with a new key, because what was released after it was
saved, here or elsewhere, used the old one. Only a `Replay`, which brings the old key, uses it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn

from sordino import environment
from sordino.clipping.clipping_rule import State
from sordino.distributed.row_shard import gather_nested
from sordino.ledger import claims
from sordino.ledger.divergence import Diverged, all_finite, first_not_finite
from sordino.ledger.ledger import Ledger
from sordino.lots.draw_phase import DrawPhase
from sordino.noise_key import NoiseKey, read_secret
from sordino.per_sample.protocol import Backend, Measuring, Resumable
from sordino.queries.dry_run import dry_step
from sordino.queries.noisy_sum import Query
from sordino.refusal import Refusal
from sordino.replay import Replay
from sordino.rng.streams import Rng
from sordino.sampling.sampler import Draw, Sampler

_FORMAT = 4
_FORMAT_WITH_KEY = 3
"""The format of version 0.2, whose states hold key and memory in the clear. It can still be loaded."""
_STREAMS = ("root", "noise", "forward")
_NOT_REPEATABLE = """this state was saved while the run still measured which formulas are fastest.
A replay may choose others, which round differently, and then one noise hides two sums.
Load it without replay=. To have states that can be replayed, call private.save_secret(folder) before the first is saved."""


@dataclass
class Progress:
    """The position of one run: its random streams, its draws and the state of its query."""

    root: Rng
    query: Query
    backend: Backend
    ledger: Ledger
    create_stream: Callable[[], Rng] = Rng.from_entropy  # a stream nobody can repeat; the same on all ranks
    by_shapes: bool = False
    """Nothing is measured from here on: formulas and batch sizes follow from shapes, so that a replay repeats them."""
    noise: Rng = field(init=False)
    forward: Rng = field(init=False)
    state: State = field(init=False)  # the query's
    ledger_section: str | None = None  # taken with the first draw: a loaded state brings its own
    steps: int = 0
    phases_begun: int = 0  # calls of draws that have begun
    phase: DrawPhase | None = None  # of the last draw
    resumed_phase: DrawPhase | None = None  # of a loaded state, to go on with
    times_loaded: int = 0
    chunk: int | None = None
    diverged: Diverged | None = None
    _parameters: Mapping[str, nn.Parameter] | None = None  # of the last draw; the ledger knows their number

    def __post_init__(self) -> None:
        self.noise, self.forward = self.root.child("noise"), self.root.child("forward")
        self.state = self.query.init()

    def begin_phase(self, sampler: Sampler, n: int, chunk: int) -> DrawPhase:
        """Returns a new phase of draws, or the one that these draws go on with.

        A state that was loaded goes on with the phase it was saved in. A run that can be replayed goes on with its last
        phase too, once that has ended: its replay, from a state in the middle, would do so, and must draw the same.
        """
        source, saved, last_phase = (repr(sampler), n), self.resumed_phase, self.phase
        # Sampler and dataset must be those of the phase: other draws begin a phase of their own.
        if saved is not None and saved.source == source:
            phase = saved
        elif self.by_shapes and last_phase is not None and last_phase.ended and last_phase.source == source:
            phase = last_phase
        else:
            phase = DrawPhase(self.phases_begun, source)
        phase.ended = False
        self.phases_begun = max(self.phases_begun, phase.number + 1)
        self.phase, self.resumed_phase, self.chunk = phase, None, chunk
        return phase

    def charge_draw(
        self, phase: DrawPhase, draw: Draw, expected: float, parameters: Mapping[str, nn.Parameter]
    ) -> None:
        """Enters a draw in the ledger before anything of it is computed; from here on it costs what the query would."""
        ledger = self.ledger
        # The ledger section of this run is opened with its first draw, and the draw before this one is closed.
        if self.ledger_section is None:
            self.ledger_section = ledger.page()
        ledger.close(self.ledger_section)
        for event in draw.spent:
            ledger.release(event, self.ledger_section)  # no draw is open: of the whole data
        if self._parameters is not parameters:
            self._parameters = parameters
            ledger.record_coordinates(sum(p.numel() for p in parameters.values()))
        # The charge is the event of a dry run, until the release replaces it by its own.
        dry_release = partial(dry_step, self.query, self.state, expected, self.backend)
        ledger.open(draw.amplify, lambda: dry_release()[0], phase.pass_name(draw), draw.bins, self.ledger_section)
        self.steps, self.phase = self.steps + 1, phase
        phase.advance(draw)

    def has_diverged(
        self, model: nn.Module, find_on_any_rank: Callable[[str | None], str | None] = lambda found: found
    ) -> bool:
        """Returns whether training is over because a parameter, which is public, is not finite any more, here or
        `find_on_any_rank`.
        """
        if self.diverged is None:
            parameters = self._parameters or dict(model.named_parameters())
            not_finite_name = find_on_any_rank(
                None if all_finite(list(parameters.values())) else first_not_finite(parameters)
            )
            if not_finite_name is not None and not self.steps:
                raise Refusal(
                    f"parameter {not_finite_name!r} is not finite before the first step: look at how it was initialised"
                )
            self.diverged = (
                None if not_finite_name is None else Diverged(self.steps - 1, f"parameter {not_finite_name!r}")
            )
        return self.diverged is not None

    def refuse_stale_draws(self, times_loaded: int) -> None:
        """Refuses draws that began before a state was loaded."""
        if times_loaded != self.times_loaded:
            raise Refusal("a state was loaded after these draws began: call draws() again, which goes on from it")

    def choose_by_shapes(self) -> None:
        """Stops measuring. What was measured so far stays chosen, and is in every state that is saved from here on."""
        self.by_shapes = True
        if isinstance(self.backend, Measuring):
            self.backend.choose_by_shapes()

    def secret_state(self) -> dict[str, Any]:
        """Returns the keys of the streams. States that are saved from here on can be replayed with them."""
        self.choose_by_shapes()
        return self._noise_key().to_table()

    def _noise_key(self) -> NoiseKey:
        return NoiseKey.of_streams(self.root, self.noise, self.forward)

    def _is_repeatable(self) -> bool:
        """Returns whether what follows from here is a function of key, data, model and settings, and of no clock."""
        measures = isinstance(self.backend, Measuring) and self.backend.measures
        return self.by_shapes or (not measures and self.chunk is not None)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as JSON, but for tensors that the query keeps. It holds no key."""
        phase = self.phase
        # What a sampler remembers tells about records, so it is encrypted together with the positions of the streams.
        memory = None if phase is None or phase.memory is None else phase.memory()
        counters = {name: getattr(self, name).counter for name in _STREAMS}
        return {
            "format": _FORMAT,
            "ledger": self.ledger.state_dict(),
            "page": self.ledger_section,
            "query": repr(self.query),
            "state": gather_nested(self.state),
            "encrypted": self._noise_key().encrypt({"counters": counters, "memory": memory}),
            "remembers_records": memory is not None,
            "repeatable": self._is_repeatable(),
            "environment": environment.current_environment() if self._is_repeatable() else None,
            "steps": self.steps,
            "phases": self.phases_begun,
            "phase": -1 if phase is None else phase.number,
            "position": 0 if phase is None else phase.position,
            "source": None if phase is None else phase.source,
            "physical_batch": self.chunk,
            "diverged": None if self.diverged is None else [self.diverged.step, self.diverged.what],
            "backend": self.backend.state_dict() if isinstance(self.backend, Resumable) else None,
        }

    def load_state_dict(self, state: Mapping[str, Any], replay: Replay | None) -> None:
        """Goes on from a saved position, with a new key unless it is a replay."""
        if state.get("format") not in (_FORMAT, _FORMAT_WITH_KEY):
            raise ValueError(
                f"state of format {state.get('format')!r}: need {_FORMAT}, as saved by Private.state_dict()"
            )
        # Everything that may be refused comes before the first change.
        streams, memory = self._decrypt(state, replay)
        self.ledger.load_state_dict(state["ledger"])
        self.ledger_section = state["page"]
        if state["query"] == repr(self.query):  # another query begins anew; what the old one did stays in the ledger
            self.state = state["state"]
        # Noise must not be used twice: only a replay uses the saved streams again.
        if replay is None or streams is None:
            self.renew_key(draws=True)
        else:
            self.root, self.noise, self.forward = streams
            if not replay.entered:
                self.ledger.disclose(f"{claims.REPLAYED}: {replay.because}")
        self.steps, self.phases_begun = state["steps"], state["phases"]
        saved = None
        # A sampler that remembers records begins anew where that memory cannot be read.
        forgotten = memory is None and state.get("remembers_records", False)
        if state["source"] is not None and not forgotten:  # the rest of a pass from a new key is not of that pass
            number, source = state["phase"] if replay else self.phases_begun, (state["source"][0], state["source"][1])
            saved = DrawPhase(number, source, state["position"], None if memory is None else lambda: memory)
        self.phase = self.resumed_phase = saved
        self.chunk = state["physical_batch"]
        self.diverged = Diverged(*state["diverged"]) if state.get("diverged") else None
        if state.get("backend") is not None and isinstance(self.backend, Resumable):
            self.backend.load_state_dict(state["backend"])
        if replay is not None:
            self.choose_by_shapes()
        self.times_loaded += 1

    def _decrypt(self, state: Mapping[str, Any], replay: Replay | None) -> tuple[tuple[Rng, ...] | None, Any]:
        """Returns the saved streams, or None if it is no replay, and what the sampler remembered, if that can be read.

        Raises:
            WrongKey: if the secret of the replay is not that of the state.
            Refusal: if the replay could come to other bits, because the run chose by a stopwatch after the state, or
                because code, libraries, processor or threads are others.

        """
        has_key_inside = state["format"] == _FORMAT_WITH_KEY
        if replay is None:
            return None, state["memory"] if has_key_inside else None
        # States of version 0.2 hold the keys in the clear.
        if has_key_inside:
            streams, memory = tuple(Rng.replay(state[name]) for name in _STREAMS), state["memory"]
            measures = isinstance(self.backend, Measuring) and self.backend.measures
            repeatable = not measures and (self.by_shapes or state["physical_batch"] is not None)
        else:
            # Open the encrypted part with the key of the replay, or with the run's own.
            secret = replay.secret
            if secret is None:
                key = self._noise_key()  # of the same seed, or of this very run
            else:
                key = NoiseKey.from_table(secret if isinstance(secret, Mapping) else read_secret(secret))
            opened = key.decrypt(state["encrypted"])
            streams, memory = key.streams_at(opened["counters"]), opened["memory"]
            repeatable = state["repeatable"]
        # A replay is allowed only where every bit comes out the same.
        if not repeatable and not replay.entered:
            raise Refusal(_NOT_REPEATABLE)
        difference = environment.describe_difference(state.get("environment") or {}, environment.current_environment())
        if difference and not has_key_inside and not replay.entered:
            raise Refusal(
                f"this state was saved elsewhere: {difference}.\n"
                "A replay here may round differently, and then one noise hides two sums.\n"
                "Replay it where it was saved, or load it without replay=: it goes on with a new key."
            )
        return streams, memory

    def renew_key(self, *, draws: bool) -> None:
        """Replaces the noise key by one that was never used before, and the key of the draws too if `draws`."""
        new_root = self.create_stream()
        self.noise, self.forward = new_root.child("noise"), new_root.child("forward")
        if draws:
            self.root = new_root
