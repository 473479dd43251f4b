"""DP-PCA: plain PCA without noise, the noise as declared, and one claim with the training that follows."""

import pytest
import torch

import sordino as sd
from sordino.accounting import PLD
from sordino.app.data import load
from sordino.events import Repeat, compose
from sordino.statistics import PCA, ask, dry_ask


def records(n=200, d=6):
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([3.0, 2.0, 1.0, 0.5, 0.2, 0.1], dtype=torch.float64)
    return torch.randn(n, d, generator=generator, dtype=torch.float64) * scale[:d]


def test_without_noise_it_is_the_singular_vectors_of_the_unit_rows():
    x = records()
    x[7] = 0  # a zero row stays zero
    found = ask(PCA(3, sd.Gaussian(0.0)), x.view(200, 2, 3), ledger=sd.Ledger(), physical_batch=17)
    unit = torch.nn.functional.normalize(x, dim=1)
    _, singular, right = torch.linalg.svd(unit, full_matrices=False)
    torch.testing.assert_close(found.eigenvalues.double(), singular.square(), rtol=1e-6, atol=0)
    same = (found.basis.double() * right[:3].mT).sum(0).abs()  # up to sign
    torch.testing.assert_close(same, torch.ones(3, dtype=torch.float64), rtol=1e-6, atol=0)
    torch.testing.assert_close(found(x.float()), x.float() @ found.basis)


def test_the_noise_is_on_every_entry_and_symmetrising_halves_it_off_the_diagonal():
    """With no records the eigenvalues are those of the noise: Σλ² = Σ of squared entries, d σ² + d(d−1) σ²/2."""
    d, sigma = 200, 3.0
    zero = ask(PCA(1, sd.Gaussian(sigma)), torch.zeros(4, d), ledger=sd.Ledger(), seed=0)
    squares = zero.eigenvalues.double().square().sum().item()
    # A sum of d(d−1)/2 values 2·(σ²/2)·χ² and d values σ²·χ²: its relative standard error is 0.7 %.
    assert squares == pytest.approx(sigma**2 * (d + d * (d - 1) / 2), rel=0.03)


def test_huge_and_tiny_rows_count_as_one_each():
    x = records(5)
    wild = x * torch.tensor([1e-300, 1e-160, 1.0, 1e160, 1e300], dtype=torch.float64).unsqueeze(1)
    one, other = (ask(PCA(2, sd.Gaussian(0.0)), rows, ledger=sd.Ledger()) for rows in (x, wild))
    torch.testing.assert_close(one.eigenvalues, other.eigenvalues)


@pytest.mark.parametrize(
    ("sigma", "sigma_p", "alone", "together", "coarse"),
    [(8, 16, 0.437, 0.493, (0.462, 0.515)), (4, 7, 0.947, 1.100, (0.960, 1.111)), (2, 4, 2.163, 2.412, (2.170, 2.418))],
)
def test_pca_and_training_in_one_claim_at_the_settings_of_abadi(sigma, sigma_p, alone, together, coarse):
    """60 directions of MNIST, lots of 600, 100 epochs, δ = 1e-5.

    dp_accounting says the same with steps of 1e-4; with steps of 1e-3 it says `coarse`, an upper bound too.
    """
    step = sd.dry_run(sd.NoisySum(sd.Flat(4.0), sd.Gaussian(sigma)), sd.Poisson(0.01), 60_000, 1)
    train, pca = Repeat(step, 10_000), dry_ask(PCA(60, sd.Gaussian(sigma_p)))
    for event, figure, above in ((train, alone, coarse[0]), (compose([pca, train]), together, coarse[1])):
        lower, upper = PLD().bounds(event, 1e-5)
        assert upper == pytest.approx(figure, abs=6e-4)
        assert lower <= upper < above


def test_pca_on_a_draw_is_amplified_by_it():
    ledger = sd.Ledger()
    ask(PCA(2, sd.Gaussian(4.0)), records(), ledger=ledger, sampler=sd.Poisson(0.1))
    assert ledger.event() == sd.events.Poisson(0.1, sd.events.Gaussian(4.0))


def energy(sigma, rate, tolerance, figure):
    mnist = load("mnist")
    train, test = (part.images.flatten(1).float() / 255 for part in (mnist.train, mnist.test))
    found = ask(PCA(60, sd.Gaussian(sigma)), train, ledger=sd.Ledger(), sampler=sd.Poisson(rate), seed=0)
    assert (found(test).square().sum() / test.square().sum()).item() == pytest.approx(figure, abs=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "figure"), [(0.0, 0.914), (4.0, 0.890), (7.0, 0.860), (16.0, 0.793)])
def test_the_share_of_mnist_that_sixty_directions_hold(sigma, figure):
    """Captured energy of the test images; the figures were computed beforehand by another program."""
    energy(sigma, 1.0, 0.003, figure)


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "figure"), [(4.0, 0.690), (7.0, 0.626), (16.0, 0.528)])
def test_the_share_that_directions_of_a_tenth_of_mnist_hold(sigma, figure):
    """As above; one draw is one sample of directions, and two draws differ by about 0.005."""
    energy(sigma, 0.1, 0.015, figure)


def test_refusals():
    with pytest.raises(ValueError, match="components=9: the records have only 6 numbers each"):
        ask(PCA(9, sd.Gaussian(1.0)), records(), ledger=sd.Ledger())
    with pytest.raises(TypeError, match="Laplace noise needs an L1 bound"):
        PCA(2, sd.Laplace(1.0))
