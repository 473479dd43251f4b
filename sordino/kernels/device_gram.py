"""Gram sums on a device by the Triton kernel of kernels/triton_gram.py, two launches and no T × T matrix.

Torch's own products take six launches and a T × T matrix for every sample at a time. Whether the kernel is faster has been
measured on no GPU yet, so it is off unless SORDINO_DEVICE_GRAM=1 is set; `python -m bench.gpu` times both. Even then it
is used only after a self-test: in this process, on this device, its sums were those of float64 up to the rounding that
norms are raised by. With anything else, a missing Triton, a compiler that fails, a sum that is further off, torch's
products are used.

Privacy: norms are raised for rounding as those of torch's products on a device are (`device_rounding_factor` in
per_sample/formulas/matrix_product.py). The kernel adds d + p products for an element of the two Gram matrices, as torch
does, in float32 without TF32.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable
from functools import cache, wraps
from typing import TypeAlias

import torch
from torch import Tensor

GramSums: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Returns the Gram sums of a (B, T, d) and g (B, T, p), and the part of each on the diagonal."""

KINDS = ("cuda",)
"""Kinds of devices that Triton compiles for and that the kernel was compiled for ahead of time (sm_80, sm_90)."""

SWITCH = "SORDINO_DEVICE_GRAM"
_SHAPES = ((2, 70, 45, 33), (3, 1, 5, 4), (1, 33, 16, 80))
"""Samples, positions and widths of the self-test: whole tiles, parts of them, and one position."""


def accelerate_gram_sums(plain: GramSums) -> GramSums:
    """Returns the function that computes Gram sums on a device by a kernel of ours where it is switched on, and else by
    torch.
    """

    @wraps(plain)
    def compute_gram_sums(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the Gram sums of a device's tensors, Σ_ts (a_t·a_s)(g_t·g_s), and their diagonal part, each (b,)."""
        # Tensors of the CPU are the usual case, and cost one look.
        if a.is_cpu or a.dtype is not torch.float32 or g.dtype is not torch.float32:
            return plain(a, g)
        return plain(a, g) if find_device_gram_fault(a.device) is not None else launch(a, g)

    return compute_gram_sums


@cache
def find_device_gram_fault(device: torch.device) -> str | None:
    """Returns in words why a device does not use the Gram kernel; None if it does, after a self-test that runs once."""
    if os.environ.get(SWITCH) != "1":
        return f"{SWITCH}=1 is not set"
    if os.environ.get("SORDINO_KERNELS") == "0":
        return "SORDINO_KERNELS=0"
    if device.type not in KINDS:
        return f"{device.type} is not a kind of device that the Gram kernel was compiled for"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    return compare_with_float64(launch, device)


def compare_with_float64(compute: GramSums, device: torch.device) -> str | None:
    """Returns in words how far a device's way of computing Gram sums is from float64; None if it is within what norms
    are raised by for rounding.
    """
    generator = torch.Generator().manual_seed(0)
    for b, t, d, p in _SHAPES:
        a, g = (torch.randn(b, t, width, generator=generator) for width in (d, p))
        g[:, t - t // 2 :] = -g[:, : t // 2]  # where there are several positions, terms cancel
        try:
            found = [sums.double().cpu() for sums in compute(a.to(device), g.to(device))]
        except Exception as error:  # a compiler or a driver may fail in any way, and torch's products are then used
            return f"the Gram kernel failed ({type(error).__name__})"
        # The sums as they are defined, and the square of what their terms come to without cancelling.
        a, g = a.double(), g.double()
        product = (a @ a.transpose(1, 2)) * (g @ g.transpose(1, 2))
        expected = product.sum((1, 2)), product.diagonal(dim1=1, dim2=2).sum(1)
        allowed = gram_rounding(d + p) * (a.norm(dim=2) * g.norm(dim=2)).sum(1).square()
        for one, right in zip(found, expected, strict=True):
            if not bool(((one - right).abs() <= allowed).all()):
                return f"Gram sums of the kernel differ from float64 by up to {float((one - right).abs().max()):.1e}"
    return None


def gram_rounding(additions: int) -> float:
    """Returns the share of (Σ_t ‖a_t‖‖g_t‖)² that a device's Gram sum in float32 may be off by, where so many products
    are added up for an element of its matrices (Higham and Mary 2019, doi:10.1137/18M1226312).
    """
    return 4 * torch.finfo(torch.float32).eps * (1 + math.sqrt(additions))


def launch(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Launches the Gram kernel on a device and returns the Gram sums of a (B, T, d) and g (B, T, p), and their diagonal
    part.
    """
    from sordino.kernels.triton_gram import TILE, WIDTH, gram_kernel

    b, t, d = a.shape
    tiles = -(-t // TILE)
    parts = torch.empty(b, tiles, tiles, 2, dtype=torch.float32, device=a.device)
    gram_kernel[(tiles, tiles, b)](parts, a, g, t, d, g.shape[2], *a.stride(), *g.stride(), TILE=TILE, WIDTH=WIDTH)
    squared, diagonal = parts.flatten(1, 2).sum(1).unbind(1)
    return squared, diagonal
