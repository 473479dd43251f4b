"""Runs one direction of one LSTM layer over time, with its gate gradients.

    (i, f, z, o) = act(x W_ihᵀ + b + h W_hhᵀ),  c ← f c + i z,  h ← o tanh(c)

The gradient at the gates' pre-activations, (T, B, 4H), is all that the four parameters need. A step works on buffers
that stay in the cache and writes where its results belong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sordino.kernels.lstm import Recurrence, Trace, Weights
from sordino.per_sample.formulas.workspace import Workspace


class LSTMLayer(torch.autograd.Function):
    """Maps gate inputs (T, B, 4H) to hidden states (T, B, H) and the last cell state (B, H), in torch."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, h0: Tensor, c0: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Steps an LSTM layer through time in torch; activations overwrite a copy of the gate inputs."""
        # Gates are laid out as torch has them: input, forget, cell, output.
        steps, b, wide = gates.shape
        n = wide // 4
        acts = gates.clone()
        hidden = gates.new_empty((steps, b, n))
        cells = gates.new_empty((steps + 1, b, n))
        cells[0] = c0
        turned, h, buffer = weight.t(), h0, torch.empty_like(c0)
        # c_t = f ⊙ c_{t−1} + i ⊙ g and h_t = o ⊙ tanh(c_t).
        for t in range(steps):
            a = acts[t].addmm_(h, turned)
            torch.sigmoid_(a[:, : 2 * n])
            torch.tanh_(a[:, 2 * n : 3 * n])
            torch.sigmoid_(a[:, 3 * n :])
            c = torch.mul(a[:, n : 2 * n], cells[t], out=cells[t + 1])
            c.addcmul_(a[:, :n], a[:, 2 * n : 3 * n])
            h = torch.mul(a[:, 3 * n :], torch.tanh(c, out=buffer), out=hidden[t])
        ctx.save_for_backward(acts, cells, weight)
        return hidden, cells[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dhidden: Tensor, dlast: Tensor) -> tuple[Tensor | None, ...]:
        """Steps an LSTM layer back through time and returns the gradient at the gate inputs and the first states."""
        acts, cells, weight = ctx.saved_tensors
        steps, _, wide = acts.shape
        n = wide // 4
        dgates = torch.empty_like(acts)
        slope, through, spare = (torch.empty_like(cells[0]) for _ in range(3))
        dh, dc = dhidden[-1], dlast.clone()
        for t in range(steps - 1, -1, -1):  # all of a step stays in the cache
            # The gradient at the output gate, and what reaches the cell state through it.
            a, out = acts[t], dgates[t]
            i, f, z, o = a[:, :n], a[:, n : 2 * n], a[:, 2 * n : 3 * n], a[:, 3 * n :]
            torch.tanh(cells[t + 1], out=spare)
            torch.addcmul(o, o, o, value=-1, out=slope)  # o(1−o)
            torch.mul(slope.mul_(spare), dh, out=out[:, 3 * n :])
            torch.addcmul(o, o.mul(spare), spare, value=-1, out=through)  # dc/dh = o(1−tanh²)
            dc.addcmul_(dh, through)
            # The gradients at the input gate, the forget gate and the cell's input, and what the step before gets.
            torch.addcmul(i, i, i, value=-1, out=slope)
            torch.mul(slope.mul_(z), dc, out=out[:, :n])
            torch.addcmul(f, f, f, value=-1, out=slope)
            torch.mul(slope.mul_(cells[t]), dc, out=out[:, n : 2 * n])
            torch.addcmul(i, i.mul(z), z, value=-1, out=slope)  # i(1−z²)
            torch.mul(slope, dc, out=out[:, 2 * n : 3 * n])
            dc.mul_(f)
            dh = torch.addmm(dhidden[t - 1], out, weight) if t else out @ weight
        return dgates, dh, dc, None


@dataclass(slots=True)
class HeldByLSTM:
    """Holds what the backward pass of the compiled layer leaves for the parameters' gradients."""

    read: Tensor | None = None  # (T, B, d + H): what each step read
    sums: Tensor | None = None  # (B, 4H): the biases' gradients


class Port(torch.autograd.Function):
    """Gives the gradient at the gates' inputs, which are no tensor in the compiled layer, a place in the graph.

    Its value is never read and takes no memory; it hangs on x, so that a backward pass towards x comes by.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int, wide: int) -> Tensor:
        """Returns one number that looks like (rows, wide)."""
        return torch.empty_strided((rows, wide), (0, 0), dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, None, None]:
        """Returns nothing: the layer itself gives the gradient at x."""
        return None, None, None


class CompiledLSTMLayer(torch.autograd.Function):
    """Maps x (T, B, d) to hidden states (T, B, H) and the last cell state (B, H), compiled.

    The gradient at the gates goes to the port.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        port: Tensor,
        h0: Tensor,
        c0: Tensor,
        kernel: Recurrence,
        weights: Weights,
        held: HeldByLSTM,
        workspace: Workspace,
    ) -> tuple[Tensor, Tensor]:
        """Runs all steps of an LSTM layer by the compiled kernel."""
        # The trace holds what the backward pass reads: inputs and hidden states, gates, and cells.
        out, trace = kernel.forward(x, h0, c0, weights, torch.get_num_threads(), workspace.allocate_rows)
        ctx.kernel, ctx.weights, ctx.held, ctx.room, ctx.spent = kernel, weights, held, workspace.allocate_rows, False
        ctx.save_for_backward(trace.read, trace.gates, trace.cells)
        return out, trace.cells[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dhidden: Tensor, dlast: Tensor) -> tuple[Any, ...]:
        """Runs all steps of an LSTM layer back by the compiled kernel.

        The gates are overwritten; a second pass over a graph that was kept computes them again.
        """
        trace, kernel, threads = Trace(*ctx.saved_tensors), ctx.kernel, torch.get_num_threads()
        d = ctx.weights.w_ih.shape[1]
        if ctx.spent:
            read, cells = trace.read, trace.cells
            trace = kernel.forward(read[:, :, :d], read[0, :, d:], cells[0], ctx.weights, threads, ctx.room)[1]
        ctx.spent = True
        back = kernel.backward(trace, ctx.weights, dhidden, dlast, threads, ctx.room, inner=ctx.needs_input_grad[0])
        ctx.held.read, ctx.held.sums = trace.read, back.sums
        return back.dx, trace.gates.flatten(0, 1), back.dh0, back.dc0, None, None, None, None
