"""Adam with the noise taken out of its second moment, DP-AdamBC (Tang et al. 2023).

Tang, Shpilevskiy & Lécuyer 2023, arXiv:2312.14334.

The gradient that DP-SGD writes is g + z, z ~ N(0, s²) on every coordinate, s = σC/L. Adam divides by √v̂, and v̂
estimates g² + s²: under much noise every coordinate is divided by about s, and Adam becomes SGD with momentum. s is
public, so

    m ← β₁m + (1−β₁)g̃,   v ← β₂v + (1−β₂)g̃²,   θ ← θ − η · m̂ / √max(v̂ − s², floor)

Privacy: post-processing of released gradients and public numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sordino import validate
from sordino.schedules import Constant, Schedule


class AdamCorrected(Optimizer):
    """Adam for noisy gradients, with the variance of the noise subtracted from its second moment.

    `noise` is the standard deviation of the noise on each coordinate of `.grad`: multiplier × bound / expected batch,
    as `noise_scale(query, expected_batch)` says, or a schedule of it where the bound changes. `floor` is the least that
    v̂ − s² may be; the paper calls it γ′. `weight_decay` is decoupled.

    Privacy:
        Post-processing of released gradients: free.

    Examples:
        >>> p = torch.nn.Parameter(torch.zeros(2))
        >>> AdamCorrected([p], lr=0.001, noise=1.1 * 1.0 / 250).param_groups[0]["floor"]
        5e-08

    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        *,
        noise: float | Schedule,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float = 5e-8,
        weight_decay: float = 0.0,
    ) -> None:
        # All numbers are checked before the parameters are taken.
        betas = tuple(validate.sequence("betas", betas, "two numbers"))
        if len(betas) != 2:
            raise ValueError(f"betas={betas!r}: must be two numbers")
        for name, beta in zip(("betas[0]", "betas[1]"), betas, strict=True):
            if not 0 <= validate.number(name, beta) < 1:
                raise ValueError(f"{name}={beta!r}: must lie in [0, 1)")
        self.noise: Schedule = noise if callable(noise) else Constant(validate.non_negative("noise", noise))
        defaults = {
            "lr": validate.non_negative("lr", lr),
            "betas": betas,
            "floor": validate.positive("floor", floor),
            "weight_decay": validate.non_negative("weight_decay", weight_decay),
        }
        need = "parameters, as model.parameters() gives them, or groups of them"
        given = validate.sequence("params", params, need)
        if not given or not all(isinstance(one, Tensor | dict) for one in given):
            raise TypeError(f"params={validate.shorten(params)}: must be {need}")
        super().__init__(given, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Takes one step of corrected Adam from the gradients as they are."""
        # A closure would compute gradients of its own, without noise.
        if closure is not None:
            raise TypeError("step(closure): gradients come from private.backward; call step() without one")
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update_parameter(p, group)

    def _update_parameter(self, p: Tensor, group: dict[str, Any]) -> None:
        """Updates one parameter and its two moments by Adam, corrected for the noise in the second."""
        assert p.grad is not None, "asked before"
        state, (beta1, beta2) = self.state[p], group["betas"]
        # Both moments begin at 0; dividing by 1 − βᵗ takes out what that pulls them down by.
        if not state:
            state["step"] = 0
            state["first"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["second"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        # s² of this step is asked for before the count goes up, because schedules count from 0.
        variance = self.noise(state["step"]) ** 2
        state["step"] += 1
        first, second, t = state["first"], state["second"], state["step"]
        # m ← β₁m + (1−β₁)g̃ and v ← β₂v + (1−β₂)g̃²
        first.lerp_(p.grad, 1 - beta1)
        second.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
        # √max(v / (1 − β₂ᵗ) − s², floor)
        root = second.div(1 - beta2**t).sub_(variance).clamp_(min=group["floor"]).sqrt_()
        # Decoupled weight decay, then θ ← θ − η · m̂ / root.
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.addcdiv_(first, root, value=-group["lr"] / (1 - beta1**t))
