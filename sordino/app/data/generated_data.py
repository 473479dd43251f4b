"""Generated data: digits drawn from strokes, linear data for regression, and points in the plane.

The digits look like digits and are learnt by the same models, and are nothing else: an accuracy on them says nothing about
MNIST.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sordino.app.data.images import Data, Images

# Corners of a digit on a 2 × 3 grid (x right, y down), as polylines.
_STROKES: tuple[tuple[tuple[tuple[float, float], ...], ...], ...] = (
    (((0, 0), (1, 0), (1, 2), (0, 2), (0, 0)),),
    (((0.2, 0.4), (0.6, 0), (0.6, 2)),),
    (((0, 0), (1, 0), (1, 1), (0, 2), (1, 2)),),
    (((0, 0), (1, 0), (0.5, 0.9), (1, 1.4), (0.7, 2), (0, 2)),),
    (((0.8, 2), (0.8, 0), (0, 1.3), (1, 1.3)),),
    (((1, 0), (0, 0), (0, 1), (1, 1), (1, 2), (0, 2)),),
    (((0.9, 0), (0, 1.2), (0, 2), (1, 2), (1, 1.1), (0, 1.2)),),
    (((0, 0), (1, 0), (0.3, 2)),),
    (((0, 0), (1, 0), (0, 2), (1, 2), (0, 0)),),
    (((1, 0.9), (0, 0.9), (0, 0), (1, 0), (1, 1), (0.6, 2)),),
)
_SIZE = 28
_SAMPLES = 24


def digits(train: int = 10_000, test: int = 2_000, *, seed: int = 0) -> Data:
    """Returns generated data: digits drawn from strokes, 28 × 28."""
    generator = torch.Generator().manual_seed(seed)
    classes = tuple("0123456789")
    return Data("digits", _draw_digits(train, generator), _draw_digits(test, generator), classes, generated=True)


def _draw_digits(n: int, generator: torch.Generator) -> Images:
    """Draws n digits of generated data with random classes, each distorted a little."""
    # Classes are drawn first, and the images of a class together, which is faster.
    labels = torch.randint(10, (n,), generator=generator)
    images = torch.zeros(n, 1, _SIZE, _SIZE, dtype=torch.uint8)
    grid = torch.arange(_SIZE, dtype=torch.float32)
    for label, strokes in enumerate(_STROKES):
        rows = (labels == label).nonzero().squeeze(1)
        points = torch.cat([_sample_stroke(stroke) for stroke in strokes])  # (K, 2)
        # Ink is a sum of Gaussians along the strokes, with some noise on the pixels.
        for batch_rows in rows.split(500):
            placed = _distort_strokes(points, len(batch_rows), generator)  # (B, K, 2)
            across = (grid - placed[..., :1]).square()  # (B, K, 28)
            down = (grid - placed[..., 1:]).square()
            width = 1.0 + torch.rand(len(batch_rows), 1, 1, generator=generator)
            ink = torch.einsum("bky,bkx->byx", (-down / width).exp(), (-across / width).exp()).clamp(max=1)
            ink += 0.05 * torch.randn(ink.shape, generator=generator)
            images[batch_rows, 0] = ink.clamp(0, 1).mul(255).to(torch.uint8)
    return Images(images, labels)


def _sample_stroke(stroke: Sequence[tuple[float, float]]) -> Tensor:
    """Returns points along a polyline, a stroke of a generated digit."""
    corners = torch.tensor(stroke)
    steps = torch.linspace(0, 1, _SAMPLES).unsqueeze(1)
    return torch.cat([a + (b - a) * steps for a, b in pairwise(corners)])


def _distort_strokes(points: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Returns the strokes of generated digits with random size, slant, rotation and position, (n, K, 2)."""

    def normal_variation(scale: float) -> Tensor:
        return scale * torch.randn(n, 1, generator=generator)

    # Distortions are around the middle of a digit, so that it stays in the picture.
    x, y = points[:, 0] - 0.5, points[:, 1] - 1.0
    wide, tall, slant, turn = (
        10 + normal_variation(1.2),
        8 + normal_variation(0.8),
        normal_variation(0.2),
        normal_variation(0.15),
    )
    # Size and slant first, then rotation and position.
    x = (x * wide) + slant * tall * y
    y = (y * tall).expand_as(x)
    centre = _SIZE / 2
    return torch.stack(
        [
            x * turn.cos() - y * turn.sin() + centre + normal_variation(1.2),
            x * turn.sin() + y * turn.cos() + centre + normal_variation(1.2),
        ],
        dim=2,
    )


def linear(weights: Sequence[float], n: int = 1000, *, noise: float = 1.0, seed: int = 0) -> TensorDataset:
    """Returns generated linear data for regression: y = ⟨w, x⟩ + noise·N(0, 1) for standard normal x, with shapes (n,
    d) and (n, 1).
    """
    generator = torch.Generator().manual_seed(seed)
    w = torch.tensor(list(weights), dtype=torch.float32)
    x = torch.randn(n, len(w), generator=generator)
    return TensorDataset(x, (x @ w + noise * torch.randn(n, generator=generator)).unsqueeze(1))


def cloud(n: int = 1000, *, spread: float = 0.1, seed: int = 0) -> TensorDataset:
    """Returns generated data: points around 0 in the plane with targets of zeros, both of shape (n, 2)."""
    generator = torch.Generator().manual_seed(seed)
    x = spread * torch.randn(n, 2, generator=generator)
    return TensorDataset(x, torch.zeros(n, 2))
