"""Refuses forward passes that write: what they store about records would leave with the model.

They are looked for on made-up input first, because data-dependent initialisation must be found before a private record
has been seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm

from sordino.per_sample.batch_structure import map_tensors
from sordino.refusal import Refusal


def make_up_batch(batch: Any) -> Any:
    """Returns a made-up batch for a forward pass that may write: the same shapes and types, and nothing of the records,
    noise for numbers, else zeros.

    The noise lies between 0 and 1, which most losses take: targets of a binary cross-entropy, probabilities, counts.
    """
    generator = torch.Generator().manual_seed(0)

    def invent(leaf: Tensor) -> Tensor:
        if leaf.is_floating_point():
            return torch.rand(leaf.shape, generator=generator).to(leaf)
        return torch.zeros_like(leaf)

    return map_tensors(invent, batch)


def refuse_written(model: nn.Module, run: Callable[[Any], object], invented: Any) -> None:
    """Refuses a forward pass that writes: that sets parameters or buffers by what it sees, as data-dependent
    initialisation does.
    """
    # Remember every tensor of the model with its version.
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    versions = {name: tensor._version for name, tensor in held.items()}
    before = {name: tensor.detach().clone() for name, tensor in held.items()}
    data_free = _data_free_buffers(model)
    try:
        run(invented)
    except Exception:
        return  # a stranger's code may want other numbers; its own records come next
    finally:
        # Whatever happened, look for a tensor that was written, put it back and refuse.
        for name, tensor in held.items():
            now = tensor.detach()
            if name in data_free:
                continue
            if tensor._version != versions[name] or not torch.equal(now.nan_to_num(), before[name].nan_to_num()):
                with torch.no_grad():
                    tensor.copy_(before[name])
                kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
                raise Refusal(
                    f"the forward pass writes to {kind} {name!r}.\n"
                    "What it stores about private samples would leave with the model.\n"
                    "Initialise it on public or made-up input first, and stop the update, for instance with .eval() "
                    "on its module."
                )


def _data_free_buffers(model: nn.Module) -> set[str]:
    """Returns the buffers to which a forward pass may write, because they follow from the weights alone: the vectors of
    a spectral normalisation.
    """
    return {
        f"{name}.{buffer}"
        for name, module in model.named_modules()
        if isinstance(module, _SpectralNorm)
        for buffer in module._buffers
    }


def refuse_changed(model: nn.Module, before: dict[str, Tensor]) -> None:
    """Refuses a forward pass that writes: after which a buffer is not what it was."""
    data_free = _data_free_buffers(model)
    for name, buffer in model.named_buffers():
        if name not in data_free and not torch.equal(torch.nan_to_num(buffer), torch.nan_to_num(before[name])):
            with torch.no_grad():
                buffer.copy_(before[name])
            raise Refusal(
                f"the forward pass writes to buffer {name!r}.\n"
                "What it stores about private samples would leave with the model.\n"
                "Stop the update, for instance with .eval() on its module."
            )
