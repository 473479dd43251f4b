"""Wrappers that run the model in another way, or on other ranks: refused by name until they are supported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import sordino as sd
from tests.honesty.data import cross_entropy, network, vectors
from tests.honesty.script import Cases, Script

WRAPPERS = Cases()


@contextmanager
def alone() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class InAGroup(Script):
    """A script whose model is made, and trained, within a process group."""

    def run(self, lots: int = 100, seed: int = 0) -> sd.Claim:
        with alone():
            self.model = self.wrap(self.model)
            return super().run(lots, seed)

    def wrap(self, model: nn.Module) -> nn.Module:
        raise NotImplementedError


class Parallel(InAGroup):
    def wrap(self, model: nn.Module) -> nn.Module:
        return nn.parallel.DistributedDataParallel(model)


class ParallelInside(InAGroup):
    def wrap(self, model: nn.Module) -> nn.Module:
        return nn.Sequential(nn.parallel.DistributedDataParallel(model))


class Distributed(InAGroup):
    def wrap(self, model: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor

        def spread(module: nn.Module, inputs: tuple[Any, ...], mesh: Any) -> tuple[Any, ...]:
            return tuple(distribute_tensor(x, mesh, [Replicate()]) for x in inputs)

        def gathered(module: nn.Module, output: Any, mesh: Any) -> Any:
            return output.to_local()

        return distribute_module(model, init_device_mesh("cpu", (1,)), input_fn=spread, output_fn=gathered)


class Unverified(Distributed):
    """With the engine told not to compare itself with autograd, norms of 0 were taken."""

    def wrap(self, model: nn.Module) -> nn.Module:
        self.options = {"backend": sd.per_sample.Captured(sd.per_sample.PerformanceOptions(verify=False))}
        return super().wrap(model)


def _made(kind: type[Script], seed: int) -> Script:
    return kind(network(), cross_entropy, vectors(seed))


@WRAPPERS.unmeasured
def distributed_data_parallel(seed: int) -> Script:
    return _made(Parallel, seed)


@WRAPPERS.unmeasured
def distributed_data_parallel_inside_the_model(seed: int) -> Script:
    return _made(ParallelInside, seed)


@WRAPPERS.unmeasured
def distributed_tensors(seed: int) -> Script:
    return _made(Distributed, seed)


@WRAPPERS.unmeasured
def distributed_tensors_unverified(seed: int) -> Script:
    return _made(Unverified, seed)


class Centred(nn.Module):
    """Subtracts the mean of the batch, which couples its records."""

    def forward(self, x: Any) -> Any:
        return x - x.mean(0)


def _compiled(model: Any) -> Any:
    model.compile(backend="eager")
    return model


@WRAPPERS.unmeasured
def a_coupled_model_compiled_in_place(seed: int) -> Script:
    """`model.compile()` leaves the class as it is; the call goes another way."""
    return Script(_compiled(nn.Sequential(Centred(), network())), cross_entropy, vectors(seed))


@WRAPPERS.unmeasured
def a_coupled_layer_compiled_in_place(seed: int) -> Script:
    return Script(nn.Sequential(_compiled(Centred()), network()), cross_entropy, vectors(seed))


@WRAPPERS.unmeasured
def a_coupled_model_wrapped_by_torch_compile(seed: int) -> Script:
    model = nn.Sequential(Centred(), network())
    return Script(torch.compile(model, backend="eager"), cross_entropy, vectors(seed))
