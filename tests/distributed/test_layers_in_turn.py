"""Every layer of the grid, its parameters there only while it runs: norms and sums of the whole model, bit by bit."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from sordino.distributed.fully_sharded import FullySharded
from sordino.per_sample.protocol import sums_one_by_one
from tests.distributed.jobs import engine
from tests.per_sample.oracle import square
from tests.per_sample.zoo import GRID, Case


class Draws(nn.Module):
    """A leaf without a rule, which is run again with the random numbers that it drew."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x * self.gain, torch.rand_like(x))


class Looks(nn.Module):
    """A leaf without a rule whose code looks at values, so that vmap cannot run it."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain.sin() if float(x.detach().abs().max()) < 100 else x * self.gain


def _with(leaf: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), leaf(), nn.Linear(4, 2))


LEAVES = [
    Case("leaf-that-draws", partial(_with, Draws), ((4,),)),
    Case("leaf-that-looks", partial(_with, Looks), ((4,),)),
]


@pytest.fixture(scope="module", autouse=True)
def _group_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("case", [*GRID, *LEAVES], ids=str)
def test_norms_and_sums_are_those_of_the_whole_model(case: Case):
    torch.manual_seed(1)
    model, batch = case.model(), case.batch(5, torch.float32)
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None and not p.dim():  # fully_shard divides rows
                module._parameters[name] = nn.Parameter(p.detach().view(1))
    fully_shard(model)
    sharded, backend = FullySharded(model), engine()
    found = []
    for passing in (sharded.gathered_parameters, sharded.gathered_layer_by_layer):
        with passing():
            torch.manual_seed(2)
            grads = backend.per_sample(model, square, batch)
            norms = grads.norms()
            weights = torch.linspace(0.1, 1, 5)[:, None]
            summed = dict(sums_one_by_one(grads, weights))
            if passing == sharded.gathered_parameters:
                at_once = grads.weighted_sum(weights)
                assert all(torch.equal(summed[name], at_once[name]) for name in summed)
        found.append((norms, {name: tensor.clone() for name, tensor in summed.items()}))
    (whole, sums), (layered, others) = found
    assert whole.names == layered.names
    assert torch.equal(whole.squared, layered.squared)
    assert sums.keys() == others.keys()
    assert all(torch.equal(sums[name], others[name]) for name in sums)
