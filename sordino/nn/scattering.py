"""Scattering: frozen image features from two layers of Morlet wavelets (Bruna & Mallat 2013).

The maps are 2² times coarser than the image (arXiv:1203.1513).

    S₀ = x ⋆ φ        S₁ = |x ⋆ ψ_{j,θ}| ⋆ φ        S₂ = ||x ⋆ ψ_{0,θ}| ⋆ ψ_{1,θ'}| ⋆ φ
    ψ_{j,θ}(u) = e^{−(u∥² + s²u⊥²)/2σ_j²} (e^{iξ_j u∥} − β) · s/2πσ_j²        σ_j = 0.8·2ʲ,  ξ_j = ¾π/2ʲ,  s = 4/L

with J = 2 scales, L = 8 angles: 1 + 16 + 64 = 81 channels. φ is a Gaussian of deviation 0.8·2^{J−1}; images are
reflected at their borders. Tramèr & Boneh 2021 (arXiv:2011.11660) put it before private training: a few good features
are worth more than many learnt ones.

`fold_mirror` adds to each feature the one at the mirrored place and angles, and keeps the left half:

    F(r, c, θ, θ') = ½ (S(r, c, θ, θ') + S(r, W − 1 − c, −θ, −θ'))

A linear model on F is one on S whose weights do not tell left from right, as training on every image and its mirror
image would make them; it has half the weights, so a private run adds half the (squared) noise.

`take_logarithm` takes log(1 + 4 S/a) with a the channel's typical size, as log-scattering does: energies are spread over
decades, and what tells classes apart is their ratio.

**Privacy:** the filters are fixed by the formula above; each image is mapped by itself.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SCALES = 2
ANGLES = 8
CHANNELS = 1 + SCALES * ANGLES + ANGLES * ANGLES
TYPICAL = (0.3,) + (0.03,) * ANGLES + (0.05,) * ANGLES + (0.005,) * ANGLES**2
"""Root mean square of each channel on the generated digits of `sordino.app.data`, to one figure: public numbers."""
VERSION = 1
"""A number that goes up when the features change, so that cached ones are not mistaken for them."""

_SIGMA = 0.8
_FREQUENCY = 3 * math.pi / 4
_SLANT = 4 / ANGLES
_RADII = (4, 7)  # of ψ by scale: over 4 deviations along the wave, over 2 across it
_LOW_PASS_RADIUS = 3  # of φ on the grid of scale 1, about 4 deviations
_COARSE = 2**SCALES


def make_morlet(scale: int, angle: float) -> Tensor:
    """Returns the Morlet wavelet ψ of a scattering at a scale and an angle, complex128, on a square grid of odd width;
    its sum is 0.
    """
    sigma, frequency = _SIGMA * 2**scale, _FREQUENCY / 2**scale
    # Coordinates along and across the wave, turned by its angle.
    axis = torch.arange(-_RADII[scale], _RADII[scale] + 1, dtype=torch.float64)
    down, across = torch.meshgrid(axis, axis, indexing="ij")
    along = across * math.cos(angle) + down * math.sin(angle)
    beside = down * math.cos(angle) - across * math.sin(angle)
    # e^{−(u∥² + s²u⊥²)/2σ²} and e^{iξu∥}
    envelope = (-(along.square() + _SLANT**2 * beside.square()) / (2 * sigma**2)).exp()
    wave = torch.polar(torch.ones_like(along), frequency * along)
    # β makes the sum of the wavelet zero, so that a constant image has no response.
    beta = (envelope * wave).sum() / envelope.sum()
    wavelet: Tensor = envelope * (wave - beta) * (_SLANT / (2 * math.pi * sigma**2))
    return wavelet


def make_gaussian(sigma: float, radius: int) -> Tensor:
    """Returns the Gaussian low-pass filter of a scattering on a line, float64, of sum 1."""
    axis = torch.arange(-radius, radius + 1, dtype=torch.float64)
    values = (-axis.square() / (2 * sigma**2)).exp()
    return values / values.sum()


class Scattering(nn.Module):
    """Maps (B, C, H, W) to (B, 81·C, H/4, W/4); sides are multiples of 4, from 8 on. It has no parameters.

    >>> Scattering()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 81, 7, 7])
    """

    fine: Tensor
    coarse: Tensor

    def __init__(self) -> None:
        super().__init__()
        for scale, name in enumerate(("fine", "coarse")):
            wavelets = torch.stack([make_morlet(scale, math.pi * k / ANGLES) for k in range(ANGLES)])
            parts = torch.cat([wavelets.real, wavelets.imag]).unsqueeze(1)  # (2L, 1, w, w)
            # Convolution, and torch's conv2d is correlation: turn the filters round.
            self.register_buffer(name, parts.flip(2, 3).to(torch.float32), persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Returns the scattering features of images; channels of one input channel lie together, by order, scale and
        angles.
        """
        images, channels, height, width = x.shape
        least = _RADII[1] + 1  # reflection needs more than the radius
        if height % _COARSE or width % _COARSE or min(height, width) < least:
            raise ValueError(
                f"images of {height} × {width}: sides must be multiples of {_COARSE} and at least {least}; pad or resize"
            )
        # Moduli of both scales: of the image, and at the coarse scale also of the fine moduli.
        x = x.to(self.fine.dtype).reshape(-1, 1, height, width)  # (N, 1, H, W)
        first = _wavelet_modulus(x, self.fine, 1)  # (N, L, H, W)
        second = _wavelet_modulus(torch.cat([x, first], 1).reshape(-1, 1, height, width), self.coarse, 2)
        grid = (height // 2, width // 2)
        second = second.view(len(x), (1 + ANGLES) * ANGLES, *grid)  # first those of x, then of each |x ⋆ ψ₀|
        sides = (height // _COARSE, width // _COARSE)
        # Smooth everything down to the same coarse grid.
        full = _low_pass(torch.cat([x, first], 1), 2 * _SIGMA, 2 * _LOW_PASS_RADIUS, _COARSE)
        half = _low_pass(second, _SIGMA, _LOW_PASS_RADIUS, 2)
        return torch.cat([full, half], 1).view(images, channels * CHANNELS, *sides)


def fold_mirror(x: Tensor) -> Tensor:
    """Returns scattering features (B, 81·C, H, ⌈W/2⌉) from (B, 81·C, H, W): means over left and right, of angles θ and
    π − θ.

    The coarse grid begins at the image's border and ends before it, so the mirror stands 1½ pixels left of the middle.
    """
    if x.dim() != 4 or x.shape[1] % CHANNELS:
        raise ValueError(f"features of shape {tuple(x.shape)}: need (B, {CHANNELS}·C, H, W), as Scattering gives them")
    # Mirroring an image exchanges the angles θ and π − θ.
    mirror = torch.tensor(_MIRROR).repeat(x.shape[1] // CHANNELS)
    mirror += torch.arange(0, x.shape[1], CHANNELS).repeat_interleave(CHANNELS)
    both = (x + x[:, mirror].flip(3)) / 2
    return both[..., : (x.shape[3] + 1) // 2]


def take_logarithm(x: Tensor) -> Tensor:
    """Returns log(1 + 4 x/a) for scattering features x (B, 81·C, H, W), a the typical sizes; 0 below 0, where only
    rounding leads.
    """
    if x.dim() != 4 or x.shape[1] % CHANNELS:
        raise ValueError(f"features of shape {tuple(x.shape)}: need (B, {CHANNELS}·C, H, W), as Scattering gives them")
    typical = torch.tensor(TYPICAL, dtype=x.dtype).repeat(x.shape[1] // CHANNELS)
    return (x / typical.view(-1, 1, 1)).clamp(min=0).mul_(_LOG).log1p_()


_LOG = 4.0
_TURNED = [-k % ANGLES for k in range(ANGLES)]  # a wave at −θ and one at π − θ have the same modulus
_MIRROR = (
    [0]
    + [1 + scale * ANGLES + k for scale in range(SCALES) for k in _TURNED]
    + [1 + SCALES * ANGLES + ANGLES * fine + coarse for fine in _TURNED for coarse in _TURNED]
)


def _wavelet_modulus(x: Tensor, filters: Tensor, stride: int) -> Tensor:
    """Returns |x ⋆ ψ| for every wavelet of a scattering layer, (N, 1, H, W) to (N, L, H', W'), on every second point if
    the stride is 2.
    """
    radius = filters.shape[-1] // 2
    both = F.conv2d(F.pad(x, (radius,) * 4, mode="reflect"), filters, stride=stride)
    real, imaginary = both.chunk(2, dim=1)
    return real.square().addcmul_(imaginary, imaginary).sqrt_()


def _low_pass(x: Tensor, sigma: float, radius: int, stride: int) -> Tensor:
    """Returns x ⋆ φ, the low-pass end of a scattering, on every `stride`-th point, (N, K, H, W) to (N, K, H', W'), as
    one product with φ's matrix.
    """
    down, across = (_low_pass_matrix(side, sigma, radius, stride) for side in x.shape[2:])
    both = torch.kron(down, across).to(x)  # (H'W', HW)
    return (x.flatten(2) @ both.T).view(*x.shape[:2], len(down), len(across))


def _low_pass_matrix(side: int, sigma: float, radius: int, stride: int) -> Tensor:
    """Returns the low pass on a line with reflected ends as a matrix, (side / stride, side)."""
    padded = F.pad(torch.eye(side, dtype=torch.float64).unsqueeze(1), (radius, radius), mode="reflect")
    return F.conv1d(padded, make_gaussian(sigma, radius).view(1, 1, -1), stride=stride).squeeze(1).T
