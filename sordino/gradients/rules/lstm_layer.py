"""One direction of one LSTM layer over time, with its gate gradients.

    (i, f, z, o) = act(x W_ihᵀ + b + h W_hhᵀ),  c ← f c + i z,  h ← o tanh(c)

The gradient at the gates' pre-activations, (T, B, 4H), is all that the four parameters need. Everything that does not
depend on the carried gradients is computed for all T at once, so a backward step is one small product and five passes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class LSTMLayer(torch.autograd.Function):
    """From gate inputs (T, B, 4H) to hidden states (T, B, H) and the last cell state (B, H)."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, h0: Tensor, c0: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Step through time; activations overwrite a copy of the gate inputs."""
        steps, b, wide = gates.shape
        n = wide // 4
        acts = gates.clone()
        hidden = gates.new_empty((steps, b, n))
        cells = gates.new_empty((steps + 1, b, n))
        cells[0] = c0
        turned, h, buffer = weight.t(), h0, torch.empty_like(c0)
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
        """Step back through time."""
        acts, cells, weight = ctx.saved_tensors
        steps, b, wide = acts.shape
        n = wide // 4
        i, f, z, o = acts.split(n, 2)
        tanh = cells[1:].tanh()
        slope = torch.empty_like(acts).view(steps, b, 4, n)  # d gate pre-activation / d (c, c, c, h)
        torch.mul(z, i - i * i, out=slope[:, :, 0])
        torch.mul(cells[:-1], f - f * f, out=slope[:, :, 1])
        torch.mul(i, 1 - z * z, out=slope[:, :, 2])
        torch.mul(tanh, o - o * o, out=slope[:, :, 3])
        through = tanh.square_().neg_().add_(1).mul_(o)  # d c / d h
        dgates = torch.empty_like(acts)
        dh, dc = dhidden[-1], dlast.clone()
        for t in range(steps - 1, -1, -1):
            dc.addcmul_(dh, through[t])
            out = dgates[t].view(b, 4, n)
            torch.mul(slope[t, :, :3], dc.unsqueeze(1), out=out[:, :3])
            torch.mul(slope[t, :, 3], dh, out=out[:, 3])
            dc.mul_(f[t])
            dh = torch.addmm(dhidden[t - 1], dgates[t], weight) if t else dgates[t] @ weight
        return dgates, dh, dc, None
