"""Runs nn.MaxPool2d with channels last by a compiled kernel: the same bits for less time.

It has no parameter, so nothing is recorded: only the price differs. A small network with pooling spends more time there
than in its products, by torch's code. `F.max_pool2d` called in a forward of one's own stays torch's: it cannot be seen.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sordino.kernels.abi import KernelWindow
from sordino.kernels.pool import Pools, can_run, load_pools
from sordino.per_sample.recording.layer_accelerations import StandIn
from sordino.per_sample.recording.tape import Rule, Tape


def is_plain_max_pool(module: nn.Module) -> bool:
    """Returns whether a module is a max pooling whose forward was not replaced."""
    return type(module) is nn.MaxPool2d and "forward" not in module.__dict__


def run_max_pool(tape: Tape, module: Any, original: Rule, x: Tensor) -> Any:
    """Runs a max pooling layer compiled, to accelerate it, or by its own code where anything is unusual."""
    kernel = load_pools()
    # Options that the kernel does not know go to torch.
    plain = not (module.return_indices or module.ceil_mode) and module.dilation in (1, (1, 1))
    if kernel is None or not plain or tape.idle or tape.shapes_only or type(x) is not Tensor:
        return original(x)
    if tape.follower is not None:  # operations are followed, and this one would not be seen
        return original(x)
    # Without a backward pass there is nothing to save.
    if not x.requires_grad or not torch.is_grad_enabled() or x.is_inference():
        return original(x)
    window = KernelWindow(_to_pair(module.kernel_size), _to_pair(module.stride), _to_pair(module.padding))
    if not can_run(x, window):
        return original(x)
    return _MaxPool.apply(x, window, kernel)  # type: ignore[no-untyped-call]


def _to_pair(given: Any) -> tuple[int, ...]:
    """Returns one number for each of two dimensions."""
    return (given, given) if isinstance(given, int) else tuple(given)


class _MaxPool(torch.autograd.Function):
    """Pools by the compiled kernel, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: KernelWindow, kernel: Pools) -> Tensor:
        """Returns the maxima of an accelerated max pooling and keeps which tap of each window they came from."""
        y, taps = kernel.forward(x, window)
        ctx.save_for_backward(taps)
        ctx.size, ctx.window, ctx.kernel = x.shape, window, kernel
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        """Sends each gradient of an accelerated max pooling to the pixel that was the maximum."""
        (taps,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # by create_graph: what follows must be differentiable too
            return _backward_by_torch(ctx.size, g, taps, ctx.window), None, None
        return ctx.kernel.backward(ctx.size, g, taps, ctx.window), None, None


def _backward_by_torch(size: torch.Size, g: Tensor, taps: Tensor, window: KernelWindow) -> Tensor:
    """Computes the gradient of a max pooling by torch's own operation, which wants places in the image and can be
    differentiated.
    """
    (_, across), rows, columns = window.kernel, *g.shape[2:]
    tap = taps.long()
    # From the place of a maximum in its window to its place in the image.
    top = torch.arange(rows).mul(window.stride[0]).sub(window.padding[0]).view(-1, 1)
    left = torch.arange(columns).mul(window.stride[1]).sub(window.padding[1])
    places = (top + tap // across) * size[3] + left + tap % across
    options = (*window[:3], window.dilation, False)
    image = torch.zeros_like(g.new_empty(1).expand(size), memory_format=torch.channels_last)  # only its shape is read
    found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(g, image, *options, places)
    return found


MAX_POOLING = StandIn(is_plain_max_pool, run_max_pool)
