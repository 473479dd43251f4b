"""What the processes of a gang do with models that `fully_shard` divides among them; importable by name."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import sordino as sd
from sordino.distributed.process_group import Ranks
from sordino.distributed.row_shard import is_shard
from sordino.rng.streams import Rng
from tests.distributed.jobs import Came, came, engine, sharded
from tests.problems import cross_entropy, linear


class Words(nn.Module):
    """Tokens, attention, norms, a convolution, a parameter in no layer, a head that shares a table, a layer not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 8)
        self.mixed = nn.TransformerEncoderLayer(8, 2, 10, dropout=0.1, batch_first=True)
        self.along = nn.Conv1d(8, 8, 3, padding=1)
        self.shift = nn.Parameter(torch.linspace(-0.1, 0.1, 8))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.head = nn.Linear(8, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.mixed(self.table(x))
        h = self.frozen(self.along(h.transpose(1, 2)).transpose(1, 2))
        found: Tensor = self.head(h.mean(dim=1) + self.shift)
        return found


def words(ranks: Ranks, divided: bool, layered: bool = False) -> Came:
    """A few steps of a model with layers of many kinds."""
    torch.manual_seed(3)
    model = Words()
    if divided:
        mesh = DeviceMesh.from_group(ranks.group, "cpu")
        for layer in (model.mixed, model):
            fully_shard(layer, mesh=mesh)
        assert all(map(is_shard, model.parameters()))
    given = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(
        torch.randint(7, (30, 5), generator=given), torch.randint(7, (30,), generator=given)
    )
    query, backend = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), engine(layered)
    private = sd.Private(model, cross_entropy, query, seed=0, mesh=ranks, backend=backend)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for lot in private.draws(data, sd.Poisson(0.3), 2, expected_batch=9, physical_batch=3):
        private.backward(lot)
        optimizer.step()
    return came(private, model, claims=False)


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


def looked_at(ranks: Ranks, between: str) -> tuple[str, list[bool]]:
    """Two steps, and something that a user does to the model between them: the claim, and which gradients are divided."""
    model = sharded(small(), ranks)
    kinds = [type(module) for module in model.modules()]
    data = linear(60)
    private = sd.Private(model, cross_entropy, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), seed=0, mesh=ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for lot in private.draws(data, sd.Poisson(0.2), 2, expected_batch=12, physical_batch=4):
        private.backward(lot)
        if between == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        if between == "evaluate":
            with torch.no_grad():
                model(data.tensors[0])
        if between == "write":
            with torch.no_grad():
                model[2].bias.add_(1.0)
        if between == "backward":
            cross_entropy(model, *data.tensors).mean().backward()
            optimizer.step()
    assert [type(module) for module in model.modules()] == kinds
    grads = [p.grad for p in model.parameters()]
    return str(private.claim(1e-5)), [isinstance(grad, DTensor) for grad in grads]


def noise(ranks: Ranks) -> list[tuple[int, list[int]]]:
    """How many values of noise this rank makes of each parameter, and of how many."""
    asked: list[Any] = []
    right = Rng.normals_at

    def seen(self: Rng, total: int, stretches: Any, *more: Any) -> Tensor:
        asked.append((total, [count for _, count in stretches]))
        return right(self, total, stretches, *more)

    with patch.object(Rng, "normals_at", seen):
        looked_at(ranks, "nothing")
    return asked


def refused(ranks: Ranks, how: str) -> str:
    """What is said of a model that is divided in another way."""
    model: Any = small()
    mesh = DeviceMesh.from_group(ranks.group, "cpu")
    given: Any = None
    if how == "beside":
        fully_shard(model[0], mesh=mesh)
    elif how == "tensor parallel":
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    elif how == "sequence parallel":
        model[1] = nn.LayerNorm(5)
        parallelize_module(model, mesh, {"1": SequenceParallel(sequence_dim=0)})
    elif how == "expert parallel":
        for name, p in list(model[0].named_parameters()):
            setattr(model[0], name, nn.Parameter(distribute_tensor(p.data, mesh, [Shard(0)])))
    elif how == "pipeline":
        model = PipelineStage(model, ranks.rank, ranks.size, torch.device("cpu"), group=ranks.group)
    elif how == "pipeline's schedule":
        model = ScheduleGPipe(PipelineStage(model, ranks.rank, ranks.size, torch.device("cpu"), group=ranks.group), 1)
    elif how == "mixed precision":
        fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    elif how == "hybrid":
        two = DeviceMesh("cpu", [[0, 1]], mesh_dim_names=("copies", "rows"))
        fully_shard(model, mesh=two)
    elif how == "another group":
        fully_shard(model, mesh=mesh)
        given = Ranks()
    try:
        sd.Private(model, cross_entropy, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), mesh=given)
    except sd.Refusal as error:
        return str(error)
    return "nothing was refused"


class Attention(nn.Module):
    """Positions of a record that look at each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).unsqueeze(1)
        found: Tensor = self.last(nn.functional.scaled_dot_product_attention(h, h, h).squeeze(1).mean(1))
        return found


def talks(ranks: Ranks, how: str) -> str:
    """What is said of a loss that needs the other ranks."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if how == "context parallel":
            with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
                return cross_entropy(model, x, y)
        out = model(x)
        if how == "all_gather":
            everyone = torch.cat(dist.nn.all_gather(out.contiguous(), group=ranks.group))
            return nn.functional.cross_entropy(out, y, reduction="none") - torch.logsumexp(out @ everyone.T, 1)
        dist.all_reduce(seen := out.detach().mean(0), group=ranks.group)
        return nn.functional.cross_entropy(out - seen, y, reduction="none")

    mesh = DeviceMesh.from_group(ranks.group, "cpu")
    model: nn.Module = Attention() if how == "context parallel" else small()
    private = sd.Private(model, loss, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), mesh=ranks)
    x, y = linear(60, 12).tensors
    data = torch.utils.data.TensorDataset(x.view(60, 4, 3) if how == "context parallel" else x[:, :6], y)
    try:
        private.draws(data, sd.Poisson(0.2), 1, expected_batch=12)
    except sd.Refusal as error:
        return str(error)
    return "nothing was refused"


SITES = (7, 20, 13, 20)


def at_sites(
    ranks: Ranks, holders: list[list[int]], sampler: Any, reading: str, divided: bool, layered: bool = False
) -> Came:
    """A few steps on records that lie at sites, of which this rank holds some; of the others it has nothing to read."""
    x, y = linear(sum(SITES)).tensors
    all_sites = [torch.utils.data.TensorDataset(*pair) for pair in zip(x.split(SITES), y.split(SITES), strict=True)]
    held: dict[int, Any] = {site: all_sites[site] for site in holders[ranks.rank]}
    if reading == "one by one":
        held = {site: [data[i] for i in range(len(data))] for site, data in held.items()}
    model = sharded(small(), ranks) if divided else small()
    query = sd.NoisySum(sd.AdaptiveQuantile(1.0, 0.5, 2.0), sd.Gaussian(1.0))
    private = sd.Private(model, cross_entropy, query, seed=0, mesh=ranks, backend=engine(layered))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    workers = int(reading == "by a worker")
    for lot in private.draws(sd.Sites(SITES, held), sampler, 4, expected_batch=12, physical_batch=4, workers=workers):
        private.backward(lot)
        optimizer.step()
    return came(private, model)
