"""Model inversion: an input that a network takes for a class, by gradient ascent (Fredrikson, Jha & Ristenpart 2015).

    x ← x + η ∂/∂x (ln p_k(x) − a ‖x − x₀‖² − b TV(x))           TV: total variation, which keeps neighbours alike

What comes out is what the network thinks of the class, an average over many records. Differential privacy does not promise
that nothing is learnt of a class: that is what training is for. It bounds what is learnt of one record.

Privacy: it asks a released network, and costs nothing.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from sordino.attack.membership import target

_STEPS = 200
_RATE = 0.05
_LENGTH, _VARIATION = 1e-3, 3e-3

SENTENCE = (
    "These are pictures of classes, not of persons. Differential privacy does not hide what a class looks like, it bounds "
    "what the network tells about any one record; pictures that fade under noise are a side effect, not the promise."
)


def invert(folder: str | Path) -> Tensor:
    """One input for every class, (classes, height, width), by a run whose network sees pixels."""
    of = target(folder, most=1)
    if of.x.dim() != 4:
        raise ValueError(
            f"{of.evidence.folder}: its network sees features, not pixels; need a recipe with features='none'"
        )
    model = of.model
    for p in model.parameters():
        p.requires_grad_(False)
    low, high = -1.0, 1.0
    start = torch.zeros(of.classes, *of.x.shape[1:])
    x = start.clone().requires_grad_(True)
    label = torch.arange(of.classes)
    optimizer = torch.optim.Adam([x], lr=_RATE)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        fit = torch.nn.functional.cross_entropy(model(x), label, reduction="sum")
        across = (x[..., 1:] - x[..., :-1]).abs().sum() + (x[..., 1:, :] - x[..., :-1, :]).abs().sum()
        (fit + _LENGTH * (x - start).square().sum() + _VARIATION * across).backward()
        optimizer.step()
        with torch.no_grad():
            x.clamp_(low, high)
    return x.detach().mean(dim=1)
