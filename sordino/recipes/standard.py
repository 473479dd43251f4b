"""Standardise: features with mean 0 and variance 1 in each channel, by moments released once with noise.

    v_i = (mean over places of x_i, mean over places of x_i²)        one vector a record, 2 × channels
    released: Σ_i v_i · min(1, B/‖v_i‖) + N(0, (σB)² I), divided by the public number of records

Tramèr & Boneh 2021, *Differentially private learning needs better features*, normalise scattering features so.

**Privacy:** one record moves the sum by at most B, so this is one Gaussian mechanism on the whole data, and the ledger
is charged with it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino import validate
from sordino.ledger import Ledger
from sordino.noise import Gaussian, Sensitivity
from sordino.refusal import Refusal
from sordino.release import release
from sordino.rng import Rng
from sordino.sealed import Sealed

_CHUNK = 2000
_LEAST_VARIANCE = 1e-6  # noise can make a variance negative


class Standardise(nn.Module):
    """(x − mean) · scale by channel, in float32; the identity until it is fitted."""

    mean: Tensor
    scale: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("scale", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, …) to the same."""
        shape = (-1,) + (1,) * (x.dim() - 2)
        return (x.to(self.mean.dtype) - self.mean.view(shape)) * self.scale.view(shape)


def standardise(
    model: nn.Module, train: TensorDataset, multiplier: float, ledger: Ledger, rng: Rng, *, bound: float = 1.0
) -> None:
    """Fit the model's `Standardise` layer on the private records and charge the ledger; without one, do nothing."""
    layers = [module for module in model.modules() if isinstance(module, Standardise)]
    if not layers:
        return
    if len(layers) > 1:
        raise Refusal(f"the model has {len(layers)} Standardise layers: need one, fitted to the data as it comes in")
    x = train.tensors[0]
    sums = Sealed({"moments": _clipped_moments(x, validate.positive("bound", bound))}, ledger)
    released = release(sums, Sensitivity(l2=bound), Gaussian(multiplier), rng)
    ledger.release(released.event)
    mean, square = released.value["moments"].div(len(x)).to(torch.float32)
    layers[0].mean.copy_(mean)
    layers[0].scale.copy_((square - mean.square()).clamp_(min=_LEAST_VARIANCE).rsqrt_())


def _clipped_moments(x: Tensor, bound: float) -> Tensor:
    """Σ_i of the clipped moments, (2, C), in float64: a record that is not finite counts as nothing."""
    total = torch.zeros(2, x.shape[1], dtype=torch.float64)
    for chunk in x.split(_CHUNK):
        flat = chunk.to(torch.float32).flatten(2) if chunk.dim() > 2 else chunk.to(torch.float32).unsqueeze(2)
        moments = torch.stack([flat.mean(2), flat.square().mean(2)], dim=1).to(torch.float64)  # (B, 2, C)
        norms = moments.square().sum(dim=(1, 2)).sqrt()
        weights = torch.where(norms.isfinite(), (bound / norms).clamp(max=1.0), 0.0)
        total += (moments.nan_to_num(0.0, 0.0, 0.0) * weights[:, None, None]).sum(0)
    return total
