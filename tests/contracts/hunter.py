"""The neighbour hunter: looks for two neighbouring datasets whose sums differ by more than was declared.

World A runs the real code and records every value at the door before noise, and the scores of every choice. World B, one
record fewer in every lot, runs the same code but is handed A's outputs. At every door the two values are compared with the
declared sensitivity; at every step the gradients written must be the same, because all that may differ went through the
door. A sampler whose coins depend on the records is run on the records themselves in both worlds, one fewer in B, where
every other record has the coins it had in A.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.per_sample.protocol import Backend, LossFn
from sordino.release.release import tap_releases
from sordino.rng.streams import Rng
from sordino.sampling import Records
from sordino.sampling.sampler import Draw, Sampler, draw_lots
from tests.contracts.taps import Recorder, Replayer
from tests.untested import untested

SLACK = 1e-9  # float64 throughout
INPUTS, CLASSES = 5, 3


@dataclass(frozen=True)
class Scripted:
    """A sampler whose lots are given: the hunter couples two worlds with it."""

    lots: tuple[tuple[int, ...], ...]
    size_is_public: bool = False
    max_batch: int = 12
    """No lot is larger, which padding asks."""

    def expected_size(self, n: int) -> float:
        return 4.0

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        while True:
            for lot in self.lots[start:] + self.lots[:start]:
                yield Draw(np.array(lot, dtype=np.int64), lambda event: event)


@dataclass
class Catch:
    """What a hunt found: the largest move over the declared sensitivity, and anything else that gave a neighbour away."""

    worst: float = 0.0
    told: str = ""
    worst_choice: float = 0.0

    @property
    def broken(self) -> bool:
        return max(self.worst, self.worst_choice) > 1 + SLACK or bool(self.told)


def network() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(INPUTS, 4), nn.Tanh(), nn.Linear(4, CLASSES)).double()


def squared_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().sum(dim=1)


def records(rng: np.random.Generator, n: int) -> tuple[Tensor, Tensor]:
    """Adversarial and random records: tiny, huge, equal, opposed, zero, near the bound, one giant among dwarfs."""
    x = rng.normal(size=(n, INPUTS))
    y = rng.normal(size=(n, CLASSES))
    kind = rng.integers(7)
    if kind == 0:
        scale = 10.0 ** rng.uniform(-3, 3, size=(n, 1))
        x, y = x * scale, y * scale
    elif kind == 1:
        x[:], y[:] = x[0], y[0]
    elif kind == 2:
        x[:], y[:] = x[0], y[0] * rng.choice([-1.0, 1.0], size=(n, 1))
    elif kind == 3:
        x[:] = 0
    elif kind == 4:
        y *= 1e-2
        y[rng.integers(n)] *= 1e6
    elif kind == 5:
        x, y = x * 1e-3, y * 10.0 ** rng.uniform(-2, 2)
    return torch.from_numpy(x), torch.from_numpy(y)


@dataclass(frozen=True)
class World:
    """A run: records, who is drawn, what is trained on them."""

    dataset: TensorDataset
    sampler: Sampler
    steps: int = 1
    model: Callable[[], nn.Module] = network
    loss: LossFn = squared_error
    learning_rate: float = 0.05
    unit: sd.Unit | sd.Views | None = None
    pad_lots: bool = False


Units = Callable[[int], tuple[int, sd.Unit | sd.Views]]
"""From a number of units to how many records they have together, and whose each is; record u < n is of unit u."""
Queries = Callable[[], "sd.queries.Query"]


def hunt(
    query: Queries,
    backend: Backend,
    *,
    trials: int,
    seed: int = 0,
    physical_batch: int = 3,
    options: Mapping[str, Any] | None = None,
    units: Units | None = None,
) -> Catch:
    """Random and adversarial neighbours; the worst that was found. With `units` they differ by a unit."""
    rng = np.random.default_rng(seed)
    catch = Catch()
    for _ in range(trials):
        n = int(rng.choice([1, 2, 5, 12]))
        total, unit = (n, None) if units is None else units(n)
        dataset = TensorDataset(*records(rng, total))
        lots = tuple(tuple(np.flatnonzero(rng.random(n) < 0.7).tolist()) for _ in range(3))
        gone = int(rng.integers(n))
        fewer = tuple(tuple(i for i in lot if i != gone) for lot in lots)
        here = World(dataset, Scripted(lots), len(lots), unit=unit)
        there = World(dataset, Scripted(fewer), len(lots), unit=unit)
        found = compare(
            query, here, there, backend, seed=int(rng.integers(2**31)), physical_batch=physical_batch, options=options
        )
        catch.worst, catch.told = max(catch.worst, found.worst), catch.told or found.told
    return catch


class SharedCoins(Rng):
    """A stream that gives a coin to record `gone` too, though it is not there: the others keep theirs."""

    def __init__(self, rng: Rng, n: int, gone: int) -> None:
        super().__init__(rng._key, rng.counter)
        self.n, self.gone = n, gone

    def child(self, *labels: str | int) -> SharedCoins:
        return SharedCoins(super().child(*labels), self.n, self.gone)

    def uniform(self, n: int) -> np.ndarray:
        return np.delete(super().uniform(self.n), self.gone) if n == self.n - 1 else super().uniform(n)


@dataclass(frozen=True)
class Coupled:
    """A sampler in the world without record `gone` of n, or in the one with it (None)."""

    sampler: Sampler
    n: int
    gone: int | None = None
    size_is_public: bool = False

    def expected_size(self, n: int) -> float:
        return 4.0

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        raise NotImplementedError

    def draws_from(self, records: Records, rng: Rng, start: int, memory: Any) -> Iterator[Draw]:
        stream = rng if self.gone is None else SharedCoins(rng, self.n, self.gone)
        return draw_lots(self.sampler, records, stream, start, memory)


def hunt_draws(
    sampler: Callable[[], Sampler],
    query: Queries,
    backend: Backend,
    *,
    trials: int,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Catch:
    """Neighbours of a sampler that asks the records; the worst that was found."""
    rng = np.random.default_rng(seed)
    catch = Catch()
    for _ in range(trials):
        n = int(rng.choice([2, 5, 12]))
        x, y = records(rng, n)
        gone = int(rng.integers(n))
        kept = [i for i in range(n) if i != gone]
        here = World(TensorDataset(x, y), Coupled(sampler(), n), steps=4)
        there = World(TensorDataset(x[kept], y[kept]), Coupled(sampler(), n, gone), steps=4)
        found = compare(query, here, there, backend, seed=int(rng.integers(2**31)), options=options)
        catch.worst, catch.told = max(catch.worst, found.worst), catch.told or found.told
        catch.worst_choice = max(catch.worst_choice, found.worst_choice)
    return catch


def compare(
    query: Queries,
    here: World,
    there: World,
    backend: Backend,
    *,
    seed: int = 0,
    physical_batch: int = 3,
    options: Mapping[str, Any] | None = None,
) -> Catch:
    """Two neighbouring worlds: what passes the door in each, and whether anything passed beside it."""
    recorder = Recorder(torch.Generator().manual_seed(seed))
    one = _run(query(), backend, here, recorder, physical_batch, options or {})
    replayer = Replayer(recorder.doors, recorder.choices)
    other = _run(query(), backend, there, replayer, physical_batch, options or {})
    told = replayer.mismatch
    if replayer.passed != len(recorder.doors) or replayer.chosen != len(recorder.choices):
        told = "fewer releases than the neighbour"
    if not told and not all(torch.equal(a, b) for a, b in zip(one, other, strict=True)):
        told = "a gradient that did not come from the door"
    return Catch(replayer.worst, told, replayer.worst_choice)


def _run(
    query: sd.queries.Query,
    backend: Backend,
    world: World,
    tap: Recorder | Replayer,
    physical_batch: int,
    options: Mapping[str, Any],
) -> list[Tensor]:
    """Every gradient written."""
    model = world.model()
    private = sd.Private(model, world.loss, query, backend=backend, seed=1, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=world.learning_rate)
    written = []
    with tap_releases(tap, tap.choose), untested():
        for lot in private.draws(
            world.dataset,
            world.sampler,
            steps=world.steps,
            physical_batch=physical_batch,
            unit=world.unit,
            pad_lots=world.pad_lots,
        ):
            private.backward(lot)
            written += [p.grad.clone() for p in model.parameters() if p.grad is not None]
            optimizer.step()
    return written
