"""Model inversion: finds an input that a network takes for a class (Fredrikson et al. 2015).

    x ← x + η ∂/∂x (z_k(x) − mean of the other z(x) − a ‖x‖² − b TV(x))

z: the logits, which do not saturate as ln p does; TV: the total variation, which keeps neighbouring pixels alike. The
result shows what the network thinks of the class, an average over many records. Differential privacy does not promise
that nothing is learnt of a class: that is what training is for. It bounds what is learnt of one record.

Privacy: the attack asks a released network and costs nothing.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from sordino.app.attacks.membership_inference import load_target

_STEPS = 200
_RATE = 0.05
_LENGTH, _VARIATION = 1e-2, 3e-2

SENTENCE = (
    "These are pictures of classes, not of persons. Differential privacy does not hide what a class looks like, it bounds "
    "what the network tells about any one record; pictures that fade under noise are a side effect, not the promise."
)


def invert_classes(folder: str | Path) -> Tensor:
    """Carries out model inversion: returns one input for every class, (classes, height, width), in [0, 1]; the run's
    network must see pixels.
    """
    attack_target = load_target(folder, largest_number=1)
    if attack_target.x.dim() != 4:
        raise ValueError(
            f"{attack_target.evidence.folder}: its network sees features, not pixels; need a recipe with features='none'"
        )
    # Only the inputs are optimised; the network is fixed.
    model = attack_target.model
    for p in model.parameters():
        p.requires_grad_(False)
    # The inputs stay within the range of real ones.
    low, high = float(attack_target.x.min()), float(attack_target.x.max())
    generator = torch.Generator().manual_seed(0)  # not from 0 exactly: there a network of ReLUs may be flat
    x = (
        (0.1 * torch.randn(attack_target.classes, *attack_target.x.shape[1:], generator=generator))
        .clamp_(low, high)
        .requires_grad_(True)
    )
    # Each input is pushed towards its own class and away from all others alike.
    one_hot_classes = torch.eye(attack_target.classes)
    class_directions = one_hot_classes - (1 - one_hot_classes) / max(1, attack_target.classes - 1)
    optimizer = torch.optim.Adam([x], lr=_RATE)
    # Gradient ascent on the class's logit, with the penalties of the formula above.
    for _ in range(_STEPS):
        optimizer.zero_grad()
        fit = -(model(x) * class_directions).sum()
        total_variation = (x[..., 1:] - x[..., :-1]).abs().sum() + (x[..., 1:, :] - x[..., :-1, :]).abs().sum()
        (fit + _LENGTH * x.square().sum() + _VARIATION * total_variation).backward()
        optimizer.step()
        with torch.no_grad():
            x.clamp_(low, high)
    # Colours are averaged, because the figure is grey.
    grey_images = x.detach().mean(dim=1)
    return (grey_images - low) / max(high - low, 1e-12)
