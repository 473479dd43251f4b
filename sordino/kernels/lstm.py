"""Binding of the compiled LSTM layer: all steps of one direction, forward and backward.

It makes one product of [x_t, h_{t-1}] with both weights per step, and one pass over the gates (kernels/lstm.c). torch
gives the same up to rounding (lstm_layer.py), and is compared with on a small case before the library is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from sordino.kernels import build
from sordino.kernels.abi import (
    INT,
    POINTER,
    SIZE,
    STEP,
    address_of,
    are_close,
    load_verified,
    make_struct,
    run_in_parts,
)
from sordino.kernels.kernel_tensors import Room, allocate, are_cpu_floats

FUNCTIONS = dict.fromkeys(("sordino_lstm_forward", "sordino_lstm_backward"), (INT, INT, POINTER, SIZE, SIZE))
_SPLIT = 1 << 20  # multiplications; fewer are not worth a second thread

_Layer = make_struct(
    "layer_t",
    steps=SIZE, batch=SIZE, width=SIZE, hidden=SIZE,
    x=POINTER, x_step=STEP, x_sample=STEP,
    w_ih=POINTER, w_hh=POINTER, bias=POINTER, h0=POINTER, c0=POINTER,
    read=POINTER, gates=POINTER, cells=POINTER, out=POINTER,
    dout=POINTER, dout_step=STEP, dout_sample=STEP,
    dlast=POINTER, dx=POINTER, dh0=POINTER, dc0=POINTER, sums=POINTER,
)  # fmt: skip


@dataclass(frozen=True)
class Weights:
    """Holds the weights of one direction: (4H, d), (4H, H), and the sum of both biases (4H), all dense."""

    w_ih: Tensor
    w_hh: Tensor
    bias: Tensor

    def make_layer_struct(self, steps: int, batch: int) -> ctypes.Structure:
        """Returns the struct of a layer that the compiled LSTM kernel is handed: sizes and weights; all else is NULL."""
        made = _Layer(steps, batch, self.w_ih.shape[1], self.w_hh.shape[1])
        made.w_ih, made.w_hh, made.bias = self.w_ih.data_ptr(), self.w_hh.data_ptr(), self.bias.data_ptr()
        return made


@dataclass(frozen=True)
class Trace:
    """Holds what a forward pass leaves for the backward one."""

    read: Tensor  # (T, B, d + H): x_t and h_{t-1}
    gates: Tensor  # (T, B, 4H): i, f, z, o; the backward pass overwrites it with the gradients at their inputs
    cells: Tensor  # (T + 1, B, H)


@dataclass(frozen=True)
class Back:
    """Holds what a backward pass gives."""

    dx: Tensor | None  # (T, B, d)
    dh0: Tensor  # (B, H)
    dc0: Tensor
    sums: Tensor  # (B, 4H): gradients at the gates' inputs, added up over time


def _with_dense_rows(x: Tensor) -> Tensor:
    """Returns x with dense rows."""
    return x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()


@dataclass(frozen=True)
class Recurrence:
    """Calls the library's functions at one level of the processor's abilities."""

    library: ctypes.CDLL
    level: int

    def forward(
        self, x: Tensor, h0: Tensor, c0: Tensor, weights: Weights, threads: int = 1, room: Room = allocate
    ) -> tuple[Tensor, Trace]:
        """Returns the hidden states (T, B, H) by the compiled LSTM kernel from x (T, B, d), h0 and c0 (B, H), and the
        trace that its backward pass needs.

        `room` makes what the trace is kept in.
        """
        # What the kernel reads must be dense, and the trace is what its backward pass reads again.
        x, h0, c0 = _with_dense_rows(x), h0.contiguous(), c0.contiguous()
        (steps, b, d), n = x.shape, h0.shape[1]
        trace = Trace(room((steps, b, d + n), x), room((steps, b, 4 * n), x), room((steps + 1, b, n), x))
        out, layer = x.new_empty((steps, b, n)), weights.make_layer_struct(steps, b)
        # Addresses and strides only; the tensors are held by this frame until the call returns.
        layer.x, layer.x_step, layer.x_sample = x.data_ptr(), x.stride(0), x.stride(1)
        layer.h0, layer.c0, layer.out = h0.data_ptr(), c0.data_ptr(), out.data_ptr()
        self._run(self.library.sordino_lstm_forward, layer, trace, threads)
        return out, trace

    def backward(
        self,
        trace: Trace,
        weights: Weights,
        dout: Tensor,
        dlast: Tensor,
        threads: int = 1,
        room: Room = allocate,
        *,
        inner: bool = True,
    ) -> Back:
        """Returns the gradients at the inputs by the compiled LSTM kernel, from those at the hidden states (T, B, H)
        and the last cell state (B, H).

        `inner` asks for the gradient at x too.
        """
        # The kernel reads dense rows; the gradients that it makes are fresh memory.
        dout, dlast = _with_dense_rows(dout), dlast.contiguous()
        (steps, b, n), d = dout.shape, weights.w_ih.shape[1]
        dx = room((steps, b, d), dout) if inner else None
        back = Back(dx, dlast.new_empty((b, n)), dlast.new_empty((b, n)), dlast.new_empty((b, 4 * n)))
        # The struct holds addresses only. The tensors above keep that memory alive during the call.
        layer = weights.make_layer_struct(steps, b)
        layer.dout, layer.dout_step, layer.dout_sample = dout.data_ptr(), dout.stride(0), dout.stride(1)
        layer.dlast, layer.dx = dlast.data_ptr(), address_of(dx)
        layer.dh0, layer.dc0, layer.sums = back.dh0.data_ptr(), back.dc0.data_ptr(), back.sums.data_ptr()
        self._run(self.library.sordino_lstm_backward, layer, trace, threads)
        return back

    def _run(self, function: Callable[..., int], layer: ctypes.Structure, trace: Trace, threads: int) -> None:
        """Runs the forward or backward function of the compiled LSTM kernel over all samples, divided among threads."""
        layer.read, layer.gates, layer.cells = trace.read.data_ptr(), trace.gates.data_ptr(), trace.cells.data_ptr()

        work = trace.gates.numel() * trace.read.shape[2]
        leading_arguments, several = (self.level, ctypes.addressof(layer)), 1 if work < _SPLIT else threads
        run_in_parts(function, leading_arguments, (), layer.batch, several, short="a copy of an LSTM's weights")


def is_usable(*tensors: Tensor) -> bool:
    """Returns whether all are float32 on the CPU, and not to be cast to anything else."""
    return are_cpu_floats(*tensors) and not torch.is_autocast_enabled("cpu")


@cache
def load_recurrence() -> Recurrence | None:
    """Returns the kernel that is used, or None: without vector instructions torch's products are faster."""
    return load_verified(build.LSTM, FUNCTIONS, Recurrence, agrees_with_torch, least=1, halved=True)


def agrees_with_torch(made: Recurrence) -> bool:
    """Returns whether the compiled LSTM kernel gives the values and gradients of torch's own layer."""
    # Odd sizes, so that the ends of vectors and tiles are exercised too.
    rng = torch.Generator().manual_seed(0)
    steps, b, d, n = 3, 7, 5, 9
    given = [(steps, b, d), (b, n), (b, n), (4 * n, d), (4 * n, n), (4 * n,), (steps, b, n), (b, n)]
    x, h0, c0, w_ih, w_hh, bias, dout, dlast = (torch.randn(shape, generator=rng) for shape in given)
    weights = Weights(w_ih, w_hh, bias)
    # The kernel's values and gradients, and those of the same steps by autograd.
    out, trace = made.forward(x, h0, c0, weights)
    back = made.backward(trace, weights, dout, dlast)
    with torch.enable_grad():
        leaves = [t.clone().requires_grad_() for t in (x, h0, c0, bias)]
        h, c, wanted = leaves[1], leaves[2], []
        for t in range(steps):
            i, f, z, o = (leaves[0][t] @ w_ih.t() + h @ w_hh.t() + leaves[3]).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * z.tanh()
            h = o.sigmoid() * c.tanh()
            wanted.append(h)
        slopes = torch.autograd.grad([torch.stack(wanted), c], leaves, [dout, dlast])
    assert back.dx is not None, "asked for"
    # The gates' gradients are summed over time and samples as the bias's gradient is.
    found = (out, back.dx, back.dh0, back.dc0, back.sums.sum(0))
    return are_close(*zip(found, (torch.stack(wanted).detach(), *slopes), strict=True))
