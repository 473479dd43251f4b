"""Refusals before anything is released: models and losses whose samples cannot be told apart.

DP-SGD bounds what one record contributes. That needs a loss per record which depends on that record alone, and a
forward pass that stores nothing about the records. The model's structure is checked before every lot; the loss by a
probe that changes one record and watches the losses of the others.

Privacy: the probe runs on a fixed few records before the first draw, releases nothing, and its messages quote shapes and
names only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.utils._pytree import tree_map

from sordino.gradients.batch import arguments, size, take
from sordino.gradients.inventory import modules_of
from sordino.gradients.protocol import LossFn
from sordino.random.global_state import left_as_they_were, seed_all
from sordino.refusal import Refusal

PROBE = 3
"""Records the probe uses: one to change, two to watch."""

_ONE_PER_SAMPLE = "need one loss per sample, shape (B,); use reduction='none' and reduce over a sample's own axes only"


def one_loss(losses: Tensor) -> Tensor:
    """The loss of a batch of one, as a scalar."""
    return loss_vector(losses, 1)[0]


def loss_vector(losses: Any, samples: int) -> Tensor:
    """The losses of `samples` samples. The count is quoted, so it must be a public one: one sample, or the probe's."""
    if not isinstance(losses, Tensor):
        raise Refusal(f"loss_fn returned a {type(losses).__name__}: {_ONE_PER_SAMPLE}")
    if losses.dim() == 0:
        raise Refusal(f"loss_fn returned a scalar: {_ONE_PER_SAMPLE}")
    if losses.shape != (samples,):
        raise Refusal(f"loss_fn returned shape {tuple(losses.shape)} for {samples} sample(s): {_ONE_PER_SAMPLE}")
    if not losses.is_floating_point():
        raise Refusal(f"loss_fn returned {losses.dtype}: need floating-point losses that gradients can be taken of")
    return losses


def structure(model: nn.Module) -> None:
    """Refuse modules that mix the samples of a batch or store something about them, and parameters without a meaning."""
    wrapped(model)
    statistics(model)
    for name, p in model.named_parameters():
        if isinstance(p, UninitializedParameter):
            raise Refusal(f"parameter {name!r} has no shape yet: run the model once on public or made-up input first")
        if p.is_complex():
            raise Refusal(f"parameter {name!r} is complex: need real parameters; hold real and imaginary parts apart")


_WRAPPERS = {
    "DataParallel": "it cuts batches over devices",
    "DistributedDataParallel": "its ranks would each draw, add noise and print ε as if they were alone",
    "FullyShardedDataParallel": "its parameters are shards of one rank",
    "OptimizedModule": "torch.compile hides its layers",
}


def wrapped(model: nn.Module) -> None:
    """Refuse wrappers that are not supported, and a process that is one of several, by name."""
    if (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    ):
        raise Refusal(
            "this process is one of several ranks: each would draw, add noise and print ε as if it were alone; train in "
            "one process"
        )
    for name, module in model.named_modules():
        label = f"module {name!r}" if name else "the model"
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS:
                raise Refusal(
                    f"{label} is a {kind.__name__}: {_WRAPPERS[kind.__name__]}; pass the plain module inside it"
                )
        if getattr(module, "_compiled_call_impl", None) is not None:
            raise Refusal(f"{label} was compiled by .compile(): its layers cannot be seen; make the model without it")
    for name, p in model.named_parameters():
        if type(p.data).__name__ == "DTensor" or type(p).__name__ == "DTensor":
            raise Refusal(
                f"parameter {name!r} is a DTensor, a shard of one rank: its norms would be those of the shard; train the "
                "plain model in one process"
            )


def statistics(model: nn.Module, modules: Iterable[nn.Module] | None = None) -> None:
    """Refuse modules that take or store statistics of a batch; modes change in mid-run, so this is asked every lot."""
    for module in modules_of(model) if modules is None else modules:
        if isinstance(module, _NormBase):  # of both kinds
            _refuse_statistics(model, module)


def _refuse_statistics(model: nn.Module, module: nn.Module) -> None:
    name = next(name for name, found in model.named_modules() if found is module)
    label = f"{type(module).__name__} {name!r}" if name else type(module).__name__
    if isinstance(module, _BatchNorm):
        if module.running_mean is None:
            raise Refusal(
                f"{label} keeps no running statistics, so it mixes the samples of every batch, in eval mode too: "
                "replace it by GroupNorm or LayerNorm"
            )
        if module.training:
            raise Refusal(
                f"{label} is in training mode: it mixes the samples of a batch and stores their statistics, with or "
                "without trainable parameters; replace it by GroupNorm, or freeze its statistics with .eval()"
            )
    if isinstance(module, _InstanceNorm) and module.training and module.running_mean is not None:
        raise Refusal(f"{label} tracks running statistics of private samples: make it with track_running_stats=False")


def probe(model: nn.Module, loss_fn: LossFn, batch: Any) -> None:
    """Refuse a loss that is not one per sample or couples samples, and a forward pass that writes to buffers.

    The samples are watched in the model's own mode and, because masks of dropout hide some couplings, in eval mode too.
    """
    samples = size(batch)
    _refuse_written(model, loss_fn, _made_up(batch))  # before a private record has been seen
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    loss_vector(_run(model, loss_fn, batch), samples)
    _refuse_changed(model, before)
    _refuse_coupled(model, loss_fn, batch, changed=samples - 1)
    with _eval_mode(model):
        _refuse_coupled(model, loss_fn, batch, changed=0)
        _refuse_counted(model, loss_fn, batch)


def _refuse_coupled(model: nn.Module, loss_fn: LossFn, batch: Any, changed: int) -> None:
    losses = _run(model, loss_fn, batch)
    if not _same(losses, _run(model, loss_fn, batch)):
        raise Refusal(
            "the same records with the same random numbers gave other losses the second time: the model or the loss keeps "
            "something from one batch to the next, or draws from a generator of its own; keep nothing of the records "
            "between batches, and draw from torch's, numpy's or Python's global generators, which the run seeds"
        )
    others = torch.arange(len(losses)) != changed
    for factor in (-7.0, 0.01):
        if not _same(losses[others], _run(model, loss_fn, _changed(batch, changed, factor))[others]):
            raise Refusal(
                "changing one record changed the losses of others: the samples of a batch are coupled; need each loss to "
                "depend on its own record alone; look for a normalisation, a ranking or a mean over the batch"
            )


def _refuse_counted(model: nn.Module, loss_fn: LossFn, batch: Any) -> None:
    losses = _run(model, loss_fn, batch)
    if not _same(losses, _run(model, loss_fn, batch, seed=1)):
        return  # still random: a batch of another shape draws other values
    for i in range(len(losses)):
        if not _same(losses[i : i + 1], _run(model, loss_fn, take(batch, slice(i, i + 1)))):
            raise Refusal(
                "a record's loss depends on which others are in the batch, or on how many: the samples are coupled; divide "
                "by nothing in loss_fn that is counted over the batch"
            )


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _run(model: nn.Module, loss_fn: LossFn, batch: Any, seed: int = 0) -> Tensor:
    with left_as_they_were(), torch.enable_grad():  # a loss may take gradients of its own
        seed_all(seed)
        losses = loss_fn(model, *arguments(batch))
    return losses.detach() if isinstance(losses, Tensor) else losses


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    tolerance = max(1e-4, 16 * torch.finfo(one.dtype).eps)  # rounding differs a little between batch shapes
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def _made_up(batch: Any) -> Any:
    """A batch of the same shapes and types that holds nothing of the records: noise for numbers, zeros for the rest."""
    generator = torch.Generator().manual_seed(0)

    def invent(leaf: Tensor) -> Tensor:
        if leaf.is_floating_point():
            return torch.randn(leaf.shape, generator=generator).to(leaf)
        return torch.zeros_like(leaf)

    return tree_map(invent, batch)


def _refuse_written(model: nn.Module, loss_fn: LossFn, made_up: Any) -> None:
    """Refuse a forward pass that sets parameters or buffers by what it sees, as data-dependent initialisation does."""
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    versions = {name: tensor._version for name, tensor in held.items()}
    before = {name: tensor.detach().clone() for name, tensor in held.items()}
    data_free = _data_free(model)
    try:
        _run(model, loss_fn, made_up)
    except Exception:
        return  # a stranger's code may want other numbers; its own records come next
    finally:
        for name, tensor in held.items():
            now = tensor.detach()
            if name in data_free:
                continue
            if tensor._version != versions[name] or not torch.equal(now.nan_to_num(), before[name].nan_to_num()):
                with torch.no_grad():
                    tensor.copy_(before[name])
                kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
                raise Refusal(
                    f"the forward pass writes to {kind} {name!r}: what it stores about private samples would leave with "
                    "the model; initialise it on public or made-up input first, and stop the update, for instance with "
                    ".eval() on its module"
                )


def _data_free(model: nn.Module) -> set[str]:
    """Buffers that follow from the weights alone: the vectors of a spectral normalisation."""
    return {
        f"{name}.{buffer}"
        for name, module in model.named_modules()
        if isinstance(module, _SpectralNorm)
        for buffer in module._buffers
    }


def _refuse_changed(model: nn.Module, before: dict[str, Tensor]) -> None:
    data_free = _data_free(model)
    for name, buffer in model.named_buffers():
        if name not in data_free and not torch.equal(torch.nan_to_num(buffer), torch.nan_to_num(before[name])):
            with torch.no_grad():
                buffer.copy_(before[name])
            raise Refusal(
                f"the forward pass writes to buffer {name!r}: what it stores about private samples would leave with the "
                "model; stop the update, for instance with .eval() on its module"
            )


def _changed(batch: Any, i: int, factor: float) -> Any:
    """The batch with record i made very different."""

    def change(leaf: Tensor) -> Tensor:
        result = leaf.clone()
        if leaf.dtype == torch.bool:
            result[i] = ~leaf[i]
        elif leaf.is_floating_point():
            result[i] = 3 + factor * leaf[i]
        else:
            result[i] = leaf[i - 1]  # another record's own value is always a legal label or token
        return result

    return tree_map(change, batch)
