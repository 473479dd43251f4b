"""Scattering against its formula computed point by point, and the properties the theory promises."""

import math

import numpy as np
import pytest
import torch

from sordino.nn import scattering
from sordino.nn.scattering import ANGLES, CHANNELS, Scattering, make_morlet


def reflected(i, n):
    """The index that a point beyond the border stands for."""
    i = abs(i)
    return 2 * (n - 1) - i if i >= n else i


def convolved(x, kernel, stride):
    """Σ_v x(u − v) k(v) at every stride-th point u, one at a time."""
    height, width = x.shape
    radius = kernel.shape[0] // 2
    out = np.zeros((len(range(0, height, stride)), len(range(0, width, stride))), dtype=np.complex128)
    for a, row in enumerate(range(0, height, stride)):
        for b, column in enumerate(range(0, width, stride)):
            for i in range(-radius, radius + 1):
                for j in range(-radius, radius + 1):
                    value = x[reflected(row - i, height), reflected(column - j, width)]
                    out[a, b] += value * kernel[i + radius, j + radius]
    return out


def slow(x, paths):
    """The channels of some paths (angles by scale, None where a scale is not met), from the definition."""

    def low_pass(maps, step):
        line = scattering.make_gaussian(1.6 / step, 6 // step).numpy()
        return convolved(maps, np.outer(line, line), 4 // step).real

    def modulus(maps, scale, angle):
        return np.abs(convolved(maps, make_morlet(scale, math.pi * angle / ANGLES).numpy(), 1 + scale))

    result = []
    for fine, coarse in paths:
        maps = x if fine is None else modulus(x, 0, fine)
        result.append(low_pass(maps, 1) if coarse is None else low_pass(modulus(maps, 1, coarse), 2))
    return np.stack(result)


def test_every_order_is_the_formula():
    x = np.random.default_rng(0).normal(size=(12, 16))
    paths = {(None, None): 0, (3, None): 1 + 3, (None, 5): 1 + 8 + 5, (2, 6): 1 + 16 + 2 * 8 + 6, (7, 0): 1 + 16 + 56}
    fast = Scattering()(torch.tensor(x, dtype=torch.float32)[None, None])[0].numpy()
    expected = slow(x, paths)
    assert np.abs(fast[list(paths.values())] - expected).max() < 1e-5 * np.abs(expected).max()


def test_shapes_of_digits_and_photographs():
    assert CHANNELS == 81
    assert Scattering()(torch.rand(2, 1, 28, 28)).shape == (2, 81, 7, 7)
    colours = torch.rand(2, 3, 32, 32)
    both = Scattering()(colours)
    assert both.shape == (2, 243, 8, 8)
    assert torch.allclose(both[:, 81:162], Scattering()(colours[:, 1:2]), atol=1e-6)


@pytest.mark.parametrize("scale", [0, 1])
def test_a_wavelet_has_no_mean_and_one_frequency(scale):
    wavelet = make_morlet(scale, 0.0)
    assert wavelet.sum().abs() < 1e-12
    spectrum = torch.fft.fft2(wavelet, s=(128, 128)).abs()
    peak = divmod(int(spectrum.argmax()), 128)
    assert peak[0] == 0
    assert 2 * math.pi * peak[1] / 128 == pytest.approx(0.75 * math.pi / 2**scale, rel=0.1)


def test_a_constant_image_has_only_order_zero():
    out = Scattering()(torch.full((1, 1, 28, 28), 0.7))
    assert torch.allclose(out[:, 0], torch.tensor(0.7), atol=1e-6)
    assert out[:, 1:].abs().max() < 1e-6


def test_features_are_not_further_apart_than_images():
    """Littlewood–Paley: |φ̂|² + ½Σ(|ψ̂(ω)|² + |ψ̂(−ω)|²) ≤ 1 + a few percent, so the cascade does not expand (Mallat 2012)."""
    size = 64
    line = scattering.make_gaussian(1.6, 6)
    total = torch.fft.fft2(torch.outer(line, line), s=(size, size)).abs().square()
    for scale in (0, 1):
        for k in range(ANGLES):
            power = torch.fft.fft2(make_morlet(scale, math.pi * k / ANGLES), s=(size, size)).abs().square()
            total += (power + power.flip(0, 1).roll((1, 1), (0, 1))) / 2
    largest = float(total.max())
    assert largest < 1.1
    generator = torch.Generator().manual_seed(0)
    pairs = torch.zeros(2, 8, 1, 48, 48)
    pairs[..., 16:32, 16:32] = torch.randn(2, 8, 1, 16, 16, generator=generator)  # far from the borders
    first, second = Scattering()(pairs[0]), Scattering()(pairs[1])
    apart = (first - second).square().sum((1, 2, 3)).sqrt() * 4  # each coarse point stands for 4 × 4
    assert (apart <= largest**1.5 * (pairs[0] - pairs[1]).square().sum((1, 2, 3)).sqrt()).all()


def test_a_small_shift_moves_features_little():
    generator = torch.Generator().manual_seed(0)
    image = torch.nn.functional.avg_pool2d(torch.randn(1, 1, 52, 52, generator=generator), 5, 1, 2)
    here, there = image[..., 8:44, 8:44], image[..., 8:44, 9:45]
    scattered = Scattering()(here), Scattering()(there)
    features = (scattered[0] - scattered[1]).norm() / scattered[0].norm()
    assert features < 0.5 * (here - there).norm() / here.norm()


@pytest.mark.parametrize("shape", [(30, 30), (28, 27), (4, 4)])
def test_sides_that_do_not_fit_are_refused(shape):
    with pytest.raises(ValueError, match="multiples of 4 and at least 8"):
        Scattering()(torch.zeros(1, 1, *shape))


def test_folded_features_do_not_tell_an_image_from_its_mirror_image():
    """Mirrored where the coarse grid is: about column 22, the middle of 0, 4, … 44."""
    image = torch.zeros(2, 2, 32, 48)
    image[..., 8:24, 16:29] = torch.rand(2, 2, 16, 13, generator=torch.Generator().manual_seed(0))
    mirrored = torch.zeros_like(image)
    mirrored[..., 8:24, 16:29] = image[..., 8:24, 16:29].flip(3)
    whole, other = Scattering()(image), Scattering()(mirrored)
    here, there = scattering.fold_mirror(whole), scattering.fold_mirror(other)
    assert here.shape == (2, 162, 8, 6)
    assert torch.allclose(here, there, atol=1e-6)
    assert (whole - other).abs().max() > 0.1


def test_a_linear_model_on_folded_features_is_one_without_left_and_right():
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(3, 81, 7, 7, generator=generator)
    here = scattering.fold_mirror(whole)
    assert here.shape == (3, 81, 7, 4)
    channel = 1 + 16 + 8 * 2 + 7  # angles 2 and 7; mirrored 6 and 1
    other = 1 + 16 + 8 * 6 + 1
    assert torch.allclose(here[:, channel, :, 1], (whole[:, channel, :, 1] + whole[:, other, :, 5]) / 2)
    with pytest.raises(ValueError, match="need"):
        scattering.fold_mirror(torch.zeros(2, 80, 7, 7))
