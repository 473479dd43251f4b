"""What the processes of a gang do with models whose parameters come and go layer by layer; importable by name."""

from __future__ import annotations

import weakref
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import sordino as sd
from sordino.distributed.collectives_on_demand import CollectiveRounds
from sordino.distributed.process_group import Ranks
from sordino.distributed.row_shard import gather_tensor, local_rows
from sordino.distributed.shared_lot import StoppedElsewhere
from sordino.release.release import tap_releases
from tests.distributed.jobs import engine, sharded
from tests.distributed.sharded_jobs import small
from tests.problems import cross_entropy, linear

WIDTH, LAYERS = 384, 16


class Alive(TorchDispatchMode):
    """How many bytes tensors take that were made inside, at most and at any one time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {_place(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for t in tree_leaves(made):
            if isinstance(t, Tensor) and not t.is_meta and _place(t) not in self._known | given | {0}:
                storage, place = t.untyped_storage(), _place(t)
                self._known.add(place)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._gone, place, storage.nbytes())
        self.most = max(self.most, self.now)
        return made

    def _gone(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.now -= size


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def peak(ranks: Ranks, layered: bool) -> tuple[float, int]:
    """The most memory that the passes over a lot took, in bytes for each parameter, and the largest message in numbers."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    model = nn.Sequential(*blocks, nn.Linear(WIDTH, 2))
    mesh = DeviceMesh.from_group(ranks.group, "cpu")
    for layer in (*blocks, model):
        fully_shard(layer, mesh=mesh)
    query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
    private = sd.Private(model, cross_entropy, query, seed=0, mesh=ranks, backend=engine(layered))
    lots = private.draws(linear(40, WIDTH), sd.Poisson(0.4), 2, expected_batch=16, physical_batch=8)
    largest, right = 0, CollectiveRounds._exchange_requests

    def seen(self: CollectiveRounds, *given: Any) -> Any:
        nonlocal largest
        found = right(self, *given)
        largest = max(largest, self.largest_round)
        return found

    with (
        patch(
            "sordino.runtime_checks.test_runner.NeighbourTestRunner.before_backward", lambda *_, **__: None
        ),  # makes the model whole
        patch.object(CollectiveRounds, "_exchange_requests", seen),
        Alive() as alive,
    ):
        private.backward(next(lots))
    return alive.most / sum(p.numel() for p in model.parameters()), largest


def seen_at_the_door(ranks: Ranks, layered: bool) -> list[Any]:
    """What one who watches the door sees of a sum, before noise."""
    model, seen = sharded(small(), ranks), list[Tensor]()
    query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
    private = sd.Private(model, cross_entropy, query, seed=0, mesh=ranks, backend=engine(layered))
    lot = next(private.draws(linear(60), sd.Poisson(0.2), 1, expected_batch=12, physical_batch=4))
    with tap_releases(lambda value, sensitivity, noise: seen.extend(value.values())):
        private.backward(lot)
    return [tensor.tolist() for tensor in seen]


def out_of_step(ranks: Ranks) -> list[list[Any]]:
    """Each rank asks for other things, and for more of them or fewer: what it got, what it received of sums."""
    model = sharded(small(), ranks)
    shards = list(model.parameters())
    rounds, sums = (
        CollectiveRounds(ranks, shards),
        [torch.zeros(local_rows(p).numel(), dtype=torch.int64) for p in shards],
    )
    rounds.on_receive = lambda number, own: sums[number].add_(own)
    wanted = [gather_tensor(p) for p in shards]
    found = []
    for number in range(ranks.rank, len(shards)):
        found.append(torch.equal(rounds.gather_rows(number), wanted[number]))
        rounds.contribute_sum(number, torch.arange(shards[number].numel()) + ranks.rank)
    rounds.serve_until_idle()
    return [found, [each.tolist() for each in sums]]


def stopped(ranks: Ranks) -> str:
    """One rank stops while the others ask and wait."""
    shards = list(sharded(small(), ranks).parameters())
    rounds = CollectiveRounds(ranks, shards)
    try:
        if ranks.rank == 0:
            rounds.stop()
        elif ranks.rank == 1:
            rounds.gather_rows(0)
        else:
            rounds.serve_until_idle()
    except StoppedElsewhere as error:
        return str(error)
    return ""


class Reads(nn.Module):
    """A head that computes with another module's weight, outside that module's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        found: Tensor = self.last(nn.functional.linear(h, self.first.weight))
        return found


class Checkpoints(nn.Module):
    """A network that forgets activations and computes them again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(checkpoint(lambda h: torch.tanh(self.first(h)), x, use_reentrant=False))
        return found


def refused(ranks: Ranks, how: str) -> str:
    """What is said of a model, or of a wish, that does not go with layers that come and go."""
    torch.manual_seed(0)
    model: nn.Module = {"reads": Reads, "checkpoints": Checkpoints}.get(how, small)()
    mesh = DeviceMesh.from_group(ranks.group, "cpu")
    if how != "whole":
        for layer in (model.first, model) if how == "reads" else (model,):
            fully_shard(layer, mesh=mesh)
    penalty = sd.L2(0.1) if how == "penalty" else None
    try:
        query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
        private = sd.Private(model, cross_entropy, query, mesh=ranks, backend=engine(layered=True), penalty=penalty)
        for lot in private.draws(linear(60), sd.Poisson(0.2), 1, expected_batch=12):
            private.backward(lot)
    except sd.Refusal as error:
        return str(error)
    return "nothing was refused"
