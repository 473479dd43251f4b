"""Noise made on the device that it is added on, by the Triton kernel of kernels/triton_noise.py.

The kernel is used only after a self-test: in this process, on this device, its first 2¹⁶ values and a draw of an odd length
were those of the CPU, bit by bit. With anything else, a missing Triton, a compiler that fails, one bit that differs, noise
is made on the host (`release/noise.py`).

Privacy: the values are a function of the run's key alone, by ChaCha20. PyTorch's own generators of devices are never used.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.rng import normals
from sordino.rng.chacha_stream import ChaChaStream

KINDS = ("cuda",)
"""Kinds of devices that Triton compiles for and that the kernel was compiled for ahead of time (sm_80, sm_90)."""

SELF_TEST_VALUES = 1 << 16
"""Values that are compared with the CPU's; more than half of all such draws hold a radius of the rare branch."""

_ODD_LENGTH = 5003
_SELF_TEST_KEY, _SELF_TEST_DRAW, _SELF_TEST_SCALE = bytes(range(32)), 2**60 + 5, 1.5


def make_normals(device: torch.device, stream: ChaChaStream, n: int, scale: float) -> Tensor | None:
    """Returns n values N(0, scale²) of a key stream, made on a device without waiting for it; None if it cannot."""
    return None if find_device_noise_fault(device) is not None else _launch(device, stream, n, scale)


@cache
def find_device_noise_fault(device: torch.device) -> str | None:
    """Returns in words why a device does not make noise itself; None if it does, after a self-test that runs once."""
    if device.type not in KINDS:
        return f"{device.type} is not a kind of device that the noise kernel was compiled for"
    if os.environ.get("SORDINO_KERNELS") == "0":
        return "SORDINO_KERNELS=0"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    return compare_with_cpu(lambda stream, n, scale: _launch(device, stream, n, scale).cpu())


def compare_with_cpu(make: Callable[[ChaChaStream, int, float], Tensor]) -> str | None:
    """Returns in words how a way of making noise on a device differs from the CPU's; None if it gives the same bits."""
    for n in (SELF_TEST_VALUES, _ODD_LENGTH):
        expected = normals.normals_at(_self_test_stream(), n, 0, n, _SELF_TEST_SCALE)
        try:
            made = make(_self_test_stream(), n, _SELF_TEST_SCALE).numpy()
        except Exception as error:  # a compiler or a driver may fail in any way, and noise is then made on the host
            return f"the noise kernel failed ({type(error).__name__})"
        # Bits, not values: equal values may differ in the sign of zero.
        wrong = int(np.count_nonzero(made.view(np.uint32) != expected.view(np.uint32)))
        if wrong:
            return f"{wrong} of the first {n} values of the noise kernel are not those of the CPU"
    return None


def _self_test_stream() -> ChaChaStream:
    return ChaChaStream(_SELF_TEST_KEY, _SELF_TEST_DRAW)


def _launch(device: torch.device, stream: ChaChaStream, n: int, scale: float) -> Tensor:
    """Returns noise that the device makes itself of a key stream, by the compiled kernel: whole blocks by one launch,
    the rest by another.
    """
    from sordino.kernels.triton_noise import normals_kernel

    values = torch.empty(n, dtype=torch.float32, device=device)
    key = _copy_key(stream, device)
    whole = n - n % normals.BLOCK
    with _current(device):
        for first, count in ((0, whole), (whole, n - whole)):
            if not count:
                continue
            half = (min(count, normals.BLOCK) + 1) // 2
            rows = _rows_of_tile(half)
            grid = (-(-half // (16 * rows)), -(-count // normals.BLOCK))
            normals_kernel[grid](
                values,
                key,
                first,
                count,
                scale,
                ROWS=rows,
                ALIGNED=half % 16 == 0,
                BLOCK=normals.BLOCK,
                enable_fp_fusion=False,  # a fused multiply-add would round otherwise than the CPU does
            )
    return values


def _copy_key(stream: ChaChaStream, device: torch.device) -> Tensor:
    """Returns the words that the noise kernel reads key and number of the draw from, copied without waiting."""
    words = torch.from_numpy(np.array(stream.key_words(), dtype=np.uint32).view(np.int32))
    return words if device.type == "cpu" else words.pin_memory().to(device, non_blocking=True)


def _rows_of_tile(pairs: int) -> int:
    """Returns how many ChaCha20 blocks a program of the noise kernel takes: few on a device, all in the interpreter."""
    from sordino.kernels.triton_noise import ROWS

    if os.environ.get("TRITON_INTERPRET") != "1":
        return ROWS
    return 1 << max(0, (-(-pairs // 16) - 1).bit_length())


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Returns a context in which the noise kernel is launched on this device."""
    if device.type == "cpu":
        return nullcontext()
    made: AbstractContextManager[Any] = torch.get_device_module(device).device(device)
    return made
