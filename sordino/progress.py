"""How far a run has come: its random streams, its draws, the query's state; what is saved of it and how it goes on.

Privacy: a saved state holds the key of the noise. Loaded, it goes on with a new key, because what was released after it was
saved, here or elsewhere, used the old one; only a `Replay` takes the old key again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn

from sordino.algorithms.dpsgd import Query
from sordino.algorithms.dry_run import dry_step
from sordino.door import claims
from sordino.door.diverged import Diverged, finite, not_finite
from sordino.door.ledger import Ledger
from sordino.gradients.protocol import Backend, Resumable
from sordino.lots.phase import Phase
from sordino.random.rng import Rng
from sordino.ranks.shard import gathered
from sordino.refusal import Refusal
from sordino.replay import Replay
from sordino.sampling.sampler import Draw, Sampler
from sordino.weigh.weigher import State

_FORMAT = 3


@dataclass
class Progress:
    """The position of one run."""

    root: Rng
    query: Query
    backend: Backend
    ledger: Ledger
    fresh: Callable[[], Rng] = Rng.from_entropy  # a stream nobody can repeat; the same on all ranks
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
        """A new phase of draws, or the rest of the one a loaded state was saved in."""
        source, saved = (repr(sampler), n), self.saved
        phase = saved if saved is not None and saved.source == source else Phase(self.phases, source)
        self.phases = max(self.phases, phase.number + 1)
        self.phase, self.saved, self.chunk = phase, None, chunk
        return phase

    def charge(self, phase: Phase, draw: Draw, expected: float, parameters: Mapping[str, nn.Parameter]) -> None:
        """Enter a draw in the ledger, before anything of it is computed: from here on it costs what the query would."""
        ledger = self.ledger
        if self.page is None:
            self.page = ledger.page()
        ledger.close(self.page)
        for event in draw.spent:
            ledger.release(event, self.page)  # no draw is open: of the whole data
        if self._parameters is not parameters:
            self._parameters = parameters
            ledger.noised(sum(p.numel() for p in parameters.values()))
        planned = partial(dry_step, self.query, self.state, expected, self.backend)
        ledger.open(draw.amplify, lambda: planned()[0], phase.cover(draw), draw.bins, self.page)
        self.steps, self.phase = self.steps + 1, phase
        phase.moved(draw)

    def over(self, model: nn.Module, anywhere: Callable[[str | None], str | None] = lambda found: found) -> bool:
        """Is training over because a parameter, which is public, is not finite any more, here or `anywhere`?"""
        if self.diverged is None:
            named = self._parameters or dict(model.named_parameters())
            bad = anywhere(None if finite(list(named.values())) else not_finite(named))
            if bad is not None and not self.steps:
                raise Refusal(f"parameter {bad!r} is not finite before the first step: look at how it was initialised")
            self.diverged = None if bad is None else Diverged(self.steps - 1, f"parameter {bad!r}")
        return self.diverged is not None

    def same_as(self, loads: int) -> None:
        """Refuse draws that began before a state was loaded."""
        if loads != self.loads:
            raise Refusal("a state was loaded after these draws began: call draws() again, which goes on from it")

    def state_dict(self) -> dict[str, Any]:
        """As JSON, but for tensors that the query keeps."""
        now = self.phase
        return {
            "format": _FORMAT,
            "ledger": self.ledger.state_dict(),
            "page": self.page,
            "query": repr(self.query),
            "state": gathered(self.state),
            "root": self.root.state_dict(),
            "noise": self.noise.state_dict(),
            "forward": self.forward.state_dict(),
            "steps": self.steps,
            "phases": self.phases,
            "phase": -1 if now is None else now.number,
            "position": 0 if now is None else now.position,
            "source": None if now is None else now.source,
            "physical_batch": self.chunk,
            "memory": None if now is None or now.memory is None else now.memory(),
            "diverged": None if self.diverged is None else [self.diverged.step, self.diverged.what],
            "backend": self.backend.state_dict() if isinstance(self.backend, Resumable) else None,
        }

    def load_state_dict(self, state: Mapping[str, Any], replay: Replay | None) -> None:
        """Go on from a saved position, with a new key unless it is a replay."""
        if state.get("format") != _FORMAT:
            raise ValueError(
                f"state of format {state.get('format')!r}: need {_FORMAT}, as saved by Private.state_dict()"
            )
        self.ledger.load_state_dict(state["ledger"])
        self.page = state["page"]
        if state["query"] == repr(self.query):  # another query begins anew; what the old one did stays in the ledger
            self.state = state["state"]
        if replay is None:
            self.renew(draws=True)
        else:
            self.root, self.noise, self.forward = (Rng.replay(state[name]) for name in ("root", "noise", "forward"))
            if not replay.entered:
                self.ledger.disclose(f"{claims.REPLAYED}: {replay.because}")
        self.steps, self.phases = state["steps"], state["phases"]
        memory, saved = state["memory"], None
        if state["source"] is not None:  # the rest of a pass from a new key is not of that pass
            number, source = state["phase"] if replay else self.phases, (state["source"][0], state["source"][1])
            saved = Phase(number, source, state["position"], None if memory is None else lambda: memory)
        self.phase = self.saved = saved
        self.chunk = state["physical_batch"]
        self.diverged = Diverged(*state["diverged"]) if state.get("diverged") else None
        if state.get("backend") is not None and isinstance(self.backend, Resumable):
            self.backend.load_state_dict(state["backend"])
        self.loads += 1

    def renew(self, *, draws: bool) -> None:
        """Noise that was never used before, and draws too if asked."""
        fresh = self.fresh()
        self.noise, self.forward = fresh.child("noise"), fresh.child("forward")
        if draws:
            self.root = fresh
