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
from sordino.distributed.row_shard import gathered
from sordino.ledger import claims
from sordino.ledger.divergence import Diverged, finite, not_finite
from sordino.ledger.ledger import Ledger
from sordino.lots.draw_phase import Phase
from sordino.noise_key import NoiseKey, read_secret
from sordino.per_sample.protocol import Backend, Measuring, Resumable
from sordino.queries.dry_run import dry_step
from sordino.queries.noisy_sum import Query
from sordino.refusal import Refusal
from sordino.replay import Replay
from sordino.rng.streams import Rng
from sordino.sampling.sampler import Draw, Sampler

_FORMAT = 4
_WITH_KEY = 3
"""The format of version 0.2, whose states hold key and memory in the clear. It can still be loaded."""
_STREAMS = ("root", "noise", "forward")
_MEASURED = """this state was saved while the run still measured which formulas are fastest.
A replay may choose others, which round differently, and then one noise hides two sums.
Load it without replay=. To have states that can be replayed, call private.save_secret(folder) before the first is saved."""


@dataclass
class Progress:
    """The position of one run: its random streams, its draws and the state of its query."""

    root: Rng
    query: Query
    backend: Backend
    ledger: Ledger
    fresh: Callable[[], Rng] = Rng.from_entropy  # a stream nobody can repeat; the same on all ranks
    by_shapes: bool = False
    """Nothing is measured from here on: formulas and batch sizes follow from shapes, so that a replay repeats them."""
    noise: Rng = field(init=False)
    forward: Rng = field(init=False)
    state: State = field(init=False)  # the query's
    page: str | None = None  # taken with the first draw: a loaded state brings its own
    steps: int = 0
    phases: int = 0  # calls of draws that have begun
    phase: Phase | None = None  # of the last draw
    saved: Phase | None = None  # of a loaded state, to go on with
    loads: int = 0
    chunk: int | None = None
    diverged: Diverged | None = None
    _parameters: Mapping[str, nn.Parameter] | None = None  # of the last draw; the ledger knows their number

    def __post_init__(self) -> None:
        self.noise, self.forward = self.root.child("noise"), self.root.child("forward")
        self.state = self.query.init()

    def begin(self, sampler: Sampler, n: int, chunk: int) -> Phase:
        """Returns a new phase of draws, or the one that these draws go on with.

        A state that was loaded goes on with the phase it was saved in. A run that can be replayed goes on with its last
        phase too, once that has ended: its replay, from a state in the middle, would do so, and must draw the same.
        """
        source, saved, last = (repr(sampler), n), self.saved, self.phase
        # Sampler and dataset must be those of the phase: other draws begin a phase of their own.
        if saved is not None and saved.source == source:
            phase = saved
        elif self.by_shapes and last is not None and last.ended and last.source == source:
            phase = last
        else:
            phase = Phase(self.phases, source)
        phase.ended = False
        self.phases = max(self.phases, phase.number + 1)
        self.phase, self.saved, self.chunk = phase, None, chunk
        return phase

    def charge(self, phase: Phase, draw: Draw, expected: float, parameters: Mapping[str, nn.Parameter]) -> None:
        """Enters a draw in the ledger before anything of it is computed; from here on it costs what the query would."""
        ledger = self.ledger
        # The ledger section of this run is opened with its first draw, and the draw before this one is closed.
        if self.page is None:
            self.page = ledger.page()
        ledger.close(self.page)
        for event in draw.spent:
            ledger.release(event, self.page)  # no draw is open: of the whole data
        if self._parameters is not parameters:
            self._parameters = parameters
            ledger.noised(sum(p.numel() for p in parameters.values()))
        # The charge is the event of a dry run, until the release replaces it by its own.
        planned = partial(dry_step, self.query, self.state, expected, self.backend)
        ledger.open(draw.amplify, lambda: planned()[0], phase.cover(draw), draw.bins, self.page)
        self.steps, self.phase = self.steps + 1, phase
        phase.moved(draw)

    def over(self, model: nn.Module, anywhere: Callable[[str | None], str | None] = lambda found: found) -> bool:
        """Returns whether training is over because a parameter, which is public, is not finite any more, here or
        `anywhere`.
        """
        if self.diverged is None:
            named = self._parameters or dict(model.named_parameters())
            bad = anywhere(None if finite(list(named.values())) else not_finite(named))
            if bad is not None and not self.steps:
                raise Refusal(f"parameter {bad!r} is not finite before the first step: look at how it was initialised")
            self.diverged = None if bad is None else Diverged(self.steps - 1, f"parameter {bad!r}")
        return self.diverged is not None

    def same_as(self, loads: int) -> None:
        """Refuses draws that began before a state was loaded."""
        if loads != self.loads:
            raise Refusal("a state was loaded after these draws began: call draws() again, which goes on from it")

    def choose_by_shapes(self) -> None:
        """Stops measuring. What was measured so far stays chosen, and is in every state that is saved from here on."""
        self.by_shapes = True
        if isinstance(self.backend, Measuring):
            self.backend.choose_by_shapes()

    def secret_state(self) -> dict[str, Any]:
        """Returns the keys of the streams. States that are saved from here on can be replayed with them."""
        self.choose_by_shapes()
        return self._key().table()

    def _key(self) -> NoiseKey:
        return NoiseKey.of_streams(self.root, self.noise, self.forward)

    def _is_repeatable(self) -> bool:
        """Returns whether what follows from here is a function of key, data, model and settings, and of no clock."""
        measures = isinstance(self.backend, Measuring) and self.backend.measures
        return self.by_shapes or (not measures and self.chunk is not None)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as JSON, but for tensors that the query keeps. It holds no key."""
        now = self.phase
        # What a sampler remembers tells about records, so it is encrypted together with the positions of the streams.
        memory = None if now is None or now.memory is None else now.memory()
        counters = {name: getattr(self, name).counter for name in _STREAMS}
        return {
            "format": _FORMAT,
            "ledger": self.ledger.state_dict(),
            "page": self.page,
            "query": repr(self.query),
            "state": gathered(self.state),
            "encrypted": self._key().encrypt({"counters": counters, "memory": memory}),
            "remembers_records": memory is not None,
            "repeatable": self._is_repeatable(),
            "environment": environment.here() if self._is_repeatable() else None,
            "steps": self.steps,
            "phases": self.phases,
            "phase": -1 if now is None else now.number,
            "position": 0 if now is None else now.position,
            "source": None if now is None else now.source,
            "physical_batch": self.chunk,
            "diverged": None if self.diverged is None else [self.diverged.step, self.diverged.what],
            "backend": self.backend.state_dict() if isinstance(self.backend, Resumable) else None,
        }

    def load_state_dict(self, state: Mapping[str, Any], replay: Replay | None) -> None:
        """Goes on from a saved position, with a new key unless it is a replay."""
        if state.get("format") not in (_FORMAT, _WITH_KEY):
            raise ValueError(
                f"state of format {state.get('format')!r}: need {_FORMAT}, as saved by Private.state_dict()"
            )
        # Everything that may be refused comes before the first change.
        streams, memory = self._decrypt(state, replay)
        self.ledger.load_state_dict(state["ledger"])
        self.page = state["page"]
        if state["query"] == repr(self.query):  # another query begins anew; what the old one did stays in the ledger
            self.state = state["state"]
        # Noise must not be used twice: only a replay uses the saved streams again.
        if replay is None or streams is None:
            self.renew(draws=True)
        else:
            self.root, self.noise, self.forward = streams
            if not replay.entered:
                self.ledger.disclose(f"{claims.REPLAYED}: {replay.because}")
        self.steps, self.phases = state["steps"], state["phases"]
        saved = None
        # A sampler that remembers records begins anew where that memory cannot be read.
        forgotten = memory is None and state.get("remembers_records", False)
        if state["source"] is not None and not forgotten:  # the rest of a pass from a new key is not of that pass
            number, source = state["phase"] if replay else self.phases, (state["source"][0], state["source"][1])
            saved = Phase(number, source, state["position"], None if memory is None else lambda: memory)
        self.phase = self.saved = saved
        self.chunk = state["physical_batch"]
        self.diverged = Diverged(*state["diverged"]) if state.get("diverged") else None
        if state.get("backend") is not None and isinstance(self.backend, Resumable):
            self.backend.load_state_dict(state["backend"])
        if replay is not None:
            self.choose_by_shapes()
        self.loads += 1

    def _decrypt(self, state: Mapping[str, Any], replay: Replay | None) -> tuple[tuple[Rng, ...] | None, Any]:
        """Returns the saved streams, or None if it is no replay, and what the sampler remembered, if that can be read.

        Raises:
            WrongKey: if the secret of the replay is not that of the state.
            Refusal: if the replay could come to other bits, because the run chose by a stopwatch after the state, or
                because code, libraries, processor or threads are others.

        """
        old = state["format"] == _WITH_KEY
        if replay is None:
            return None, state["memory"] if old else None
        # States of version 0.2 hold the keys in the clear.
        if old:
            streams, memory = tuple(Rng.replay(state[name]) for name in _STREAMS), state["memory"]
            measures = isinstance(self.backend, Measuring) and self.backend.measures
            repeatable = not measures and (self.by_shapes or state["physical_batch"] is not None)
        else:
            # Open the encrypted part with the key of the replay, or with the run's own.
            given = replay.secret
            if given is None:
                key = self._key()  # of the same seed, or of this very run
            else:
                key = NoiseKey.from_table(given if isinstance(given, Mapping) else read_secret(given))
            opened = key.decrypt(state["encrypted"])
            streams, memory = key.streams_at(opened["counters"]), opened["memory"]
            repeatable = state["repeatable"]
        # A replay is allowed only where every bit comes out the same.
        if not repeatable and not replay.entered:
            raise Refusal(_MEASURED)
        other = environment.difference(state.get("environment") or {}, environment.here())
        if other and not old and not replay.entered:
            raise Refusal(
                f"this state was saved elsewhere: {other}.\n"
                "A replay here may round differently, and then one noise hides two sums.\n"
                "Replay it where it was saved, or load it without replay=: it goes on with a new key."
            )
        return streams, memory

    def renew(self, *, draws: bool) -> None:
        """Replaces the noise key by one that was never used before, and the key of the draws too if `draws`."""
        fresh = self.fresh()
        self.noise, self.forward = fresh.child("noise"), fresh.child("forward")
        if draws:
            self.root = fresh
