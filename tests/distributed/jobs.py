"""What the processes of a gang are asked to do; importable by name, so that they find it."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import sordino as sd
from sordino.distributed.process_group import Ranks
from sordino.distributed.row_shard import gather_tensor
from sordino.per_sample import Captured
from sordino.per_sample.performance_options import PerformanceOptions
from tests.contracts import hunter
from tests.contracts.row import BACKENDS, Variant
from tests.contracts.variants import VARIANTS
from tests.distributed import mutations
from tests.problems import Rows, cross_entropy, linear

ROWS: dict[str, Variant] = {row.name: row for row in VARIANTS}
STEPS = 2


@dataclass(frozen=True)
class Came:
    """What a run came to, as far as it must not depend on the number of ranks."""

    parameters: str
    ledger: Any
    noise: int
    claim: str


def digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(gather_tensor(p).detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def sharded(model: nn.Module, ranks: Ranks) -> nn.Module:
    """Divided among the ranks, its first layer by itself: a group of its own, with rows for some ranks only."""
    mesh = DeviceMesh.from_group(ranks.group, "cpu")
    for layer in (model[0], model):
        fully_shard(layer, mesh=mesh)
    return model


def came(private: sd.Private, model: nn.Module, *, claims: bool = True) -> Came:
    said = str(private.claim(1e-5)) if claims else ""  # the ledger, which it follows from, is compared
    state = private.state_dict()
    return Came(digest(model), state["ledger"], private._noise.counter, said)


def engine(layered: bool = False) -> Captured:
    """By shapes alone, as ranks need it; `layered`: a divided model comes and goes layer by layer."""
    return Captured(PerformanceOptions(measure=False, layer_by_layer=layered))


@contextmanager
def untested() -> Iterator[None]:
    """Without standing tests, which take half of a short run; they draw from streams of their own, and `train` has them."""
    with (
        patch("sordino.runtime_checks.test_runner.NeighbourTestRunner.before_backward", lambda *_, **__: None),
        patch("sordino.runtime_checks.test_runner.NeighbourTestRunner.before_claim", lambda *_, **__: None),
    ):
        yield


def variant(ranks: Ranks, name: str, divided: bool = False, layered: bool = False) -> Came:
    """A few steps of one row of the table of variants, in the float32 of training."""
    row = ROWS[name]
    torch.manual_seed(1 + (not divided) * ranks.rank)  # ranks begin elsewhere: the first one's parameters are copied
    model = nn.Sequential(nn.Linear(hunter.INPUTS, 4), nn.Tanh(), nn.Linear(4, hunter.CLASSES))
    given = torch.Generator().manual_seed(2)
    x, y = torch.randn(40, hunter.INPUTS, generator=given), torch.randn(40, hunter.CLASSES, generator=given)
    model = sharded(model, ranks) if divided else model
    named = row.backends[0]
    backend = engine(layered) if "captured" in row.backends else BACKENDS[named]
    private = sd.Private(model, squares, row.query(), backend=backend, seed=4, mesh=ranks, **row.options)
    sampler = sd.Poisson(0.25) if row.sampler is None else row.sampler()
    data = torch.utils.data.TensorDataset(x, y)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with untested():
        for lot in private.draws(data, sampler, steps=STEPS, expected_batch=10, physical_batch=3):
            private.backward(lot)
            optimizer.step()
    return came(private, model, claims=False)


def squares(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x) - y).square().sum(1)


@dataclass(frozen=True)
class Case:
    """A run that is unlike the others in one thing."""

    rate: float = 0.2
    physical_batch: int | None = 4
    dropout: float = 0.0
    workers: int = 0
    steps: int = 4
    seed: int | None = 0
    records: bool = False
    dtype: torch.dtype = torch.float32
    broken: str = ""
    correlated: bool = False
    divided: bool = False
    layered: bool = False


def train(ranks: Ranks, case: Case) -> Came:
    """A small network on a small problem."""
    torch.manual_seed(0)
    width = 300 if case.broken else 8  # enough coordinates for every rank to have some
    model = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Dropout(case.dropout), nn.Linear(width, 2)).to(case.dtype)
    model = sharded(model, ranks) if case.divided else model
    data = Rows(60) if case.records else linear(60)
    if not case.records:
        x, y = data.tensors
        data = torch.utils.data.TensorDataset(x.to(case.dtype), y)
    query = sd.NoisySum(sd.AdaptiveQuantile(1.0, 0.5, 2.0), sd.Gaussian(1.0))
    sampler: Any = sd.Poisson(case.rate)
    if case.correlated:
        query = sd.NoisySum(sd.Flat(1.0), sd.Correlated(1.0, sd.Banded(2)))
        sampler = sd.CyclicPoisson(2 * case.rate, 2)
    with ExitStack() as undo:
        if case.broken:
            undo.enter_context(mutations.ALL[case.broken](ranks))
        backend = engine(case.layered)
        private = sd.Private(model, cross_entropy, query, seed=case.seed, mesh=ranks, backend=backend)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        options: dict[str, Any] = {"expected_batch": 12, "physical_batch": case.physical_batch, "workers": case.workers}
        for lot in private.draws(data, sampler, case.steps, **options):
            private.backward(lot)
            optimizer.step()
    return came(private, model)


def checkpointed(ranks: Ranks, folder: str, steps: int, query: str, divided: bool, begin: bool) -> Came:
    """So many steps of a run of four, from its beginning or from a checkpoint that others wrote; then a checkpoint."""
    import torch.distributed.checkpoint as dcp  # a second of every process, which few tests need
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))
    model = sharded(model, ranks) if divided else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    if not begin:
        of_model, of_optimizer = get_state_dict(model, optimizer)
        dcp.load({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=folder, process_group=ranks.group)
        set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
    private = sd.Private(model, cross_entropy, QUERIES[query], seed=0, mesh=ranks)
    run = sd.InCheckpoint(private, sd.Replay("the test goes on with the same run"))
    if not begin:
        dcp.load({"private": run}, checkpoint_id=folder, process_group=ranks.group)
    lots = private.draws(linear(60), sd.Poisson(0.2), 4 - private.steps, expected_batch=12)
    for _ in range(steps):
        private.backward(next(lots))
        optimizer.step()
    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.save(
        {"model": of_model, "optimizer": of_optimizer, "private": run}, checkpoint_id=folder, process_group=ranks.group
    )
    return came(private, model, claims=False)


QUERIES = {
    "adaptive": sd.NoisySum(sd.AdaptiveQuantile(1.0, 0.5, 2.0), sd.Gaussian(1.0)),
    "lookahead": sd.OptimisticLookahead(sd.Flat(1.0), sd.Gaussian(1.0), learning_rate=0.1),
}


def part(ranks: Ranks, steps: int, saved: dict[str, Any] | None) -> dict[str, Any]:
    """So many steps of a run of six, from its beginning or from what was saved; everything that is needed to go on."""
    saved = copy.deepcopy(saved)  # tensors that came by a queue are shared by all processes
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    query = sd.NoisySum(sd.AdaptiveQuantile(1.0, 0.5, 2.0), sd.Gaussian(1.0))
    private = sd.Private(model, cross_entropy, query, seed=0, mesh=ranks)
    if saved is not None:
        private.load_state_dict(saved["private"], replay=sd.Replay("the test goes on with the same run"))
    lots = private.draws(linear(60), sd.Poisson(0.2), 6 - private.steps, expected_batch=12)
    for _ in range(steps):
        private.backward(next(lots))
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "private": private.state_dict()}
    return {**state, "parameters": digest(model)}


def fitted(ranks: Ranks, folder: str) -> None:
    """A run of the command line by all ranks of torch's own group, which are three here."""
    sd.fit("spiral", steps=10, records=600, noise_multiplier=1.0, keep_key=True, out=folder)
