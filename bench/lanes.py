"""Compares kernels with eight and with sixteen floats to a vector on this processor.

    python -m bench.lanes

CPU time on one thread, the best of interleaved runs. Where a processor computes sixteen in halves (Zen 4) they save
instructions and nothing else, and what is no multiple of sixteen is lost; `trusted(…, halved=True)` in a binding says that
they pay all the same. Prints, and writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sordino.kernels import affine, convolution, correlation, gram, lstm, product, winograd, winograd_rows
from sordino.kernels.abi import LEVELS, KernelWindow

_ROUNDS = 25
_WIDTHS = tuple(map(LEVELS.index, ("AVX2", "AVX-512")))
Case = tuple[str, Any, Callable[[Any], object]]
"""A name, a kernel, and what is asked of it."""


def _last(*shape: int) -> Tensor:
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


def recurrent(b: int) -> Iterator[Case]:
    """Returns the kernels of an LSTM layer of `bench.models`: 50 steps, 64 inputs, 128 states."""
    x, zero, w = torch.randn(50, b, 64), torch.zeros(b, 128), torch.randn(512, 192) * 0.1
    weights, made = (
        lstm.Weights(w[:, :64].contiguous(), w[:, 64:].contiguous(), torch.zeros(512)),
        lstm.load_recurrence(),
    )
    assert made is not None, "it was compiled"
    yield f"LSTM forward ({b})", made, lambda k: k.forward(x, zero, zero, weights)
    trace, slopes = made.forward(x, zero, zero, weights)[1], torch.randn(50, b, 128)
    yield f"LSTM backward ({b})", made, lambda k: k.backward(trace, weights, slopes, zero)
    g, a = torch.randn(50, b, 512).transpose(0, 1), torch.randn(50, b, 192).transpose(0, 1)
    yield f"Gram sums ({b})", gram.load_grams(), lambda k: k(g, [a[:, :, :64], a[:, :, 64:]])


def linear() -> Iterator[Case]:
    """Returns the kernels for sums, rows and passes of linear maps."""
    made, maps = product.load_products(), affine.load_affines()
    g, a, w, out = torch.randn(64, 256), torch.randn(64, 784), torch.rand(64), torch.empty(256, 784)
    yield "weighted sum 256 × 784", made, lambda k: k.add(g, a, w, out, 0)
    x, y, room = torch.randn(8, 128, 256), torch.randn(8, 128, 1024), torch.empty(8, 1024, 256)
    yield "rows 1024 × 256", made, lambda k: k.rows(y, x, room)
    weight = torch.randn(1024, 256)
    yield "affine 256 to 1024", maps, lambda k: k(x.flatten(0, 1), weight.t())


def convolutions() -> Iterator[Case]:
    """Returns the kernels for the MNIST CNN's second layer and for 3×3 convolutions."""
    strided, x, g, w = KernelWindow((4, 4), (2, 2)), _last(64, 16, 13, 13), _last(64, 32, 5, 5), _last(32, 16, 4, 4)
    yield "strided forward", correlation.load_correlations(), lambda k: k.forward(x, w, None, strided)
    yield "strided input gradient", correlation.load_correlations(), lambda k: k.backward(x.shape, g, w, strided)
    yield "strided rows", convolution.load_gradients(), lambda k: k.rows(x, g, strided, torch.empty(64, 32, 16, 16))
    same = KernelWindow((3, 3), (1, 1), (1, 1))
    for c in (16, 64):
        a, s, v = _last(32, c, 32, 32), _last(32, 64, 32, 32), _last(64, c, 3, 3)
        yield f"Winograd forward, {c} channels", winograd.load_passes(), lambda k, a=a, v=v: k.forward(a, v, None, same)  # type: ignore[misc]
        yield (
            f"Winograd rows, {c} channels",
            winograd_rows.load_gradients(),
            lambda k, a=a, s=s, c=c: k.rows(a, s, same, torch.empty(32, 64, 9, c)),  # type: ignore[misc]
        )


def main() -> None:
    """Measures and prints."""
    torch.set_num_threads(1)
    for name, kernel, run in (*recurrent(64), *recurrent(256), *linear(), *convolutions()):
        if kernel is None:
            raise SystemExit("the kernels are not compiled: python sordino/kernels/build.py")
        ways = [replace(kernel, level=level) for level in _WIDTHS]
        best = [float("inf")] * len(ways)
        for _ in range(_ROUNDS):
            for i, way in enumerate(ways):
                start = time.process_time()
                run(way)
                best[i] = min(best[i], time.process_time() - start)
        print(f"{name}: {1e3 * best[0]:.2f} ms with eight, {1e3 * best[1]:.2f} with sixteen, {best[1] / best[0]:.2f}")  # noqa: T201


if __name__ == "__main__":
    with torch.no_grad():
        main()
