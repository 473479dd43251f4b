"""Agreement with other libraries within their own error, and with brute force where no library has the event."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from sordino import accounting as A
from sordino.events import (
    BallsInBins,
    DiscreteGaussian,
    Exponential,
    FixedSize,
    Gaussian,
    Group,
    Laplace,
    Mixture,
    Poisson,
    Repeat,
    Together,
)
from sordino.privacy_loss.closed_forms import one_release_delta
from sordino.privacy_loss.lattice import Sampled
from sordino.privacy_loss.pairs import GaussianPair

SETTINGS = [(0.02, 1.0, 200, 1e-5), (0.3, 2.0, 50, 1e-6), (0.004, 0.7, 1000, 1e-5), (0.9, 5.0, 20, 1e-4)]


@pytest.mark.parametrize(("q", "sigma", "steps", "delta"), SETTINGS)
def test_dp_accounting_pld_lies_above_our_lower_and_close_to_our_upper(q, sigma, steps, delta):
    from dp_accounting.pld import privacy_loss_distribution as pld

    theirs = pld.from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=1e-4)
    epsilon = theirs.self_compose(steps).get_epsilon_for_delta(delta)
    low, high = A.PLD().bounds(Repeat(Poisson(q, Gaussian(sigma)), steps), delta)
    assert low <= epsilon
    assert high == pytest.approx(epsilon, rel=5e-4)


@pytest.mark.parametrize(("q", "sigma", "steps", "delta"), SETTINGS[:2])
def test_prv_accountant_brackets_us(q, sigma, steps, delta):
    prv = pytest.importorskip("prv_accountant")
    mechanism = prv.PoissonSubsampledGaussianMechanism(noise_multiplier=sigma, sampling_probability=q)
    try:
        accountant = prv.PRVAccountant(
            prvs=[mechanism], max_self_compositions=[steps], eps_error=0.01, delta_error=delta / 1000
        )
        low, _, high = accountant.compute_epsilon(delta, [steps])
    except (AttributeError, TypeError, DeprecationWarning, RuntimeWarning) as error:
        pytest.skip(f"prv_accountant does not run here: {error}")
    ours_low, ours_high = A.PLD().bounds(Repeat(Poisson(q, Gaussian(sigma)), steps), delta)
    assert ours_high >= low
    assert ours_low <= high


@pytest.mark.parametrize("order", [1.5, 2.0, 3.7, 10.9, 32.0])
def test_renyi_of_the_sampled_gaussian_matches_high_precision_quadrature(order):
    mpmath = pytest.importorskip("mpmath")

    q, sigma = 0.05, 0.8
    mpmath.mp.dps = 30

    def integrand(z):
        ratio = mpmath.exp(z / sigma - 1 / (2 * mpmath.mpf(sigma) ** 2))
        return mpmath.npdf(z) * (1 - q + q * ratio) ** order

    exact = mpmath.log(mpmath.quad(integrand, np.linspace(-14, 14 + order / sigma, 40).tolist())) / (order - 1)
    found = A.RDP(orders=(order,)).curve(Poisson(q, Gaussian(sigma)))[0]
    assert found == pytest.approx(float(exact), rel=1e-9)


def test_gaussian_profile_matches_high_precision_far_into_the_tail():
    mpmath = pytest.importorskip("mpmath")

    mpmath.mp.dps = 60
    for mu, epsilon in [(1.0, 1.0), (0.01, 0.05), (5.0, 60.0), (1e-4, 1e-3), (0.5, 12.0)]:
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        exact = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        assert A.gaussian_delta(mu, epsilon) == pytest.approx(float(exact), rel=1e-8, abs=1e-300)


def test_opacus_rdp_agrees_at_its_own_orders():
    pytest.importorskip("opacus")
    try:
        from opacus.accountants.analysis import rdp as oracle
    except Exception as error:  # any failure of the other library to import is not ours
        pytest.skip(f"opacus does not import here: {error}")
    orders = list(A.OPACUS_ORDERS)
    theirs = oracle.compute_rdp(q=0.01, noise_multiplier=1.3, steps=1, orders=orders)
    ours = A.RDP(orders=A.OPACUS_ORDERS).curve(Poisson(0.01, Gaussian(1.3)))
    assert np.allclose(ours, theirs, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("scale", "count"), [(1.0, 10), (3.0, 40)])
def test_laplace_agrees_with_dp_accounting(scale, count):
    from dp_accounting.pld import privacy_loss_distribution as pld

    theirs = pld.from_laplace_mechanism(scale, value_discretization_interval=1e-4).self_compose(count)
    assert A.PLD().epsilon(Repeat(Laplace(scale), count), 1e-5) == pytest.approx(
        theirs.get_epsilon_for_delta(1e-5), rel=1e-3
    )


def test_discrete_gaussian_agrees_with_dp_accounting():
    from dp_accounting.pld import privacy_loss_distribution as pld

    theirs = pld.from_discrete_gaussian_mechanism(3.0, 1, value_discretization_interval=1e-4).self_compose(20)
    assert A.PLD().epsilon(Repeat(DiscreteGaussian(3.0), 20), 1e-6) == pytest.approx(
        theirs.get_epsilon_for_delta(1e-6), rel=1e-3
    )


def test_a_group_of_a_discrete_gaussian_moves_it_by_as_many_steps():
    """δ(ε) = Σ max(0, p(x) − e^ε p(x − 3)) over the integers, for the noise and the noise moved by 3."""
    sigma, size, epsilon = 3.0, 3, 1.0
    x = np.arange(-200, 201)
    weights = np.exp(-(x**2) / (2 * sigma**2))
    moved = np.exp(-((x - size) ** 2) / (2 * sigma**2))
    delta = float(np.maximum(0.0, weights - math.exp(epsilon) * moved).sum() / weights.sum())
    found = A.PLD().epsilon(Group(DiscreteGaussian(sigma), size), delta)
    assert found == pytest.approx(epsilon, rel=1e-3)


def test_a_sampled_group_has_a_coin_for_each_of_its_records():
    """Brute force: of 2 records, j are drawn with probability C(2, j) qʲ (1 − q)²⁻ʲ, and the sum moves by j."""
    q, sigma, epsilon = 0.2, 1.5, 0.7
    x, step = np.linspace(-20.0, 20.0, 400_001, retstep=True)
    at = [np.exp(-((x - j) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi)) for j in range(3)]
    there = (1 - q) ** 2 * at[0] + 2 * q * (1 - q) * at[1] + q**2 * at[2]
    delta = max(
        float(np.maximum(0.0, one - math.exp(epsilon) * other).sum() * step)
        for one, other in ((there, at[0]), (at[0], there))
    )
    found = A.PLD().epsilon(Group(Poisson(q, Gaussian(sigma)), 2), delta)
    assert found == pytest.approx(epsilon, rel=1e-3)


def test_two_sampled_steps_match_brute_force_convolution():
    q, sigma, delta = 0.2, 1.0, 1e-4
    z, width = np.linspace(-9, 10, 2001, retstep=True)
    ratio = 1 - q + q * np.exp(z / sigma - 0.5 / sigma**2)
    base = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * width
    both = np.multiply.outer(ratio, ratio)
    weight = np.multiply.outer(base, base)
    low, high = 0.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if (weight * np.maximum(both - math.exp(middle), 0)).sum() > delta else (low, middle)
    below, above = A.PLD().bounds(Repeat(Poisson(q, Gaussian(sigma)), 2), delta)
    assert below - 1e-5 <= high <= above + 1e-5
    assert above == pytest.approx(high, rel=3e-4)


@pytest.mark.parametrize("epsilon", [0.2, 0.5, 1.0])
def test_balls_in_two_bins_match_brute_force(epsilon):
    sigma = 1.0
    z, width = np.linspace(-9, 10, 2001, retstep=True)
    ratio = np.exp(z / sigma - 0.5 / sigma**2)
    base = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * width
    mean = np.add.outer(ratio, ratio) / 2
    weight = np.multiply.outer(base, base)
    removing = (weight * np.maximum(mean - math.exp(epsilon), 0)).sum()
    adding = (weight * np.maximum(1 - math.exp(epsilon) * mean, 0)).sum()
    low, high = A.PLD().delta_bounds(BallsInBins(2, Gaussian(sigma)), epsilon)
    exact = max(removing, adding)
    assert low <= exact * (1 + 1e-4)
    assert high >= exact * (1 - 1e-4)
    assert high == pytest.approx(exact, rel=5e-3)


def test_one_bin_is_the_plain_release_and_many_passes_are_no_worse_than_poisson():
    assert A.PLD().epsilon(BallsInBins(1, Gaussian(2.0)), 1e-5) == pytest.approx(
        A.PLD().epsilon(Gaussian(2.0), 1e-5), rel=5e-3
    )
    passes = Repeat(BallsInBins(240, Gaussian(1.1)), 30)
    low, high = A.PLD().bounds(passes, 1e-5)
    assert 1.546 <= high <= 1.604
    assert high - low <= 0.005 * high


def test_balls_in_bins_fall_back_on_no_amplification_where_rounding_exceeds_delta():
    passes = Repeat(BallsInBins(100, Gaussian(3.0)), 5)
    assert A.PLD().epsilon(passes, 1e-16) <= A.PLD().epsilon(Repeat(Gaussian(3.0), 5), 1e-16) < math.inf


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.5])
def test_one_fixed_size_draw_has_the_profile_of_both_directions(epsilon):
    # replace-one moves the sum by 2: for ε > 0 the pair ((1−γ)N(0)+γN(2), N(0))
    gamma, sigma = 0.1, 3.0
    exact = one_release_delta(Sampled(GaussianPair(2 / sigma), gamma), epsilon)
    low, high = A.PLD().delta_bounds(FixedSize(10, 100, Gaussian(sigma)), epsilon)
    assert high == pytest.approx(exact, rel=1e-3)
    assert low <= exact * (1 + 1e-6)


def test_fixed_size_pld_lies_below_rdp():
    event = Repeat(FixedSize(10, 1000, Gaussian(1.0)), 1000)
    assert A.PLD().epsilon(event, 1e-5) <= A.RDP().epsilon(event, 1e-5)


def test_several_releases_on_one_draw_are_amplified_once():
    together = Poisson(0.05, Together(Gaussian(2.0), Gaussian(1.5)))
    single = Poisson(0.05, Gaussian((2.0**-2 + 1.5**-2) ** -0.5))
    assert A.PLD().epsilon(Repeat(together, 100), 1e-5) == pytest.approx(
        A.PLD().epsilon(Repeat(single, 100), 1e-5), rel=1e-9
    )
    with_laplace = A.PLD().epsilon(Repeat(Poisson(0.05, Together(Gaussian(2.0), Laplace(1e4))), 100), 1e-5)
    assert with_laplace == pytest.approx(A.PLD().epsilon(Repeat(Poisson(0.05, Gaussian(2.0)), 100), 1e-5), rel=5e-3)


def test_a_mixture_of_equals_is_that_event_and_lost_weight_is_charged():
    plain = A.PLD().epsilon(Repeat(Poisson(0.1, Gaussian(2.0)), 20), 1e-5)
    mixed = Mixture((0.3, 0.7), (Gaussian(2.0), Gaussian(2.0)))
    assert A.PLD().epsilon(Repeat(Poisson(0.1, mixed), 20), 1e-5) == pytest.approx(plain, rel=2e-4)
    lossy = Mixture((1 - 1e-3,), (Gaussian(2.0),))
    assert A.PLD().epsilon(Repeat(lossy, 20), 1e-5) == math.inf


def test_projected_clipping_costs_little_with_many_projections():
    exact = A.PLD().epsilon(Repeat(Poisson(1 / 240, Gaussian(1.1)), 7200), 1e-5)
    jl = [A.PLD().epsilon(Repeat(Poisson(1 / 240, A.projected_clipping(1.1, r)), 7200), 1e-5) for r in (400, 50)]
    assert exact < jl[0] < jl[1] < 1.8
    with pytest.raises(ValueError, match="projections"):
        A.projected_clipping(1.1, 10)


def test_a_thousand_exponential_choices_follow_the_bounded_range_theorem():
    # zCDP with ρ = ε²/8 a choice (Cesar & Rogers 2021) is looser than our curve at every order
    event = Repeat(Exponential(0.02), 1000)
    curve = A.RDP().curve(event)
    orders = np.array(A.RDP().orders)
    assert np.all(curve <= 1000 * orders * 0.02**2 / 8 * (1 + 1e-9))
    low, high = A.PLD().bounds(event, 1e-6)
    assert low <= high <= A.RDP().epsilon(event, 1e-6)


def test_subsampled_tradeoff_is_the_curve_of_one_release():
    alpha = np.linspace(0.001, 0.999, 50)
    exact = A.subsampled_tradeoff(1.0, 0.2, alpha)
    curve = A.tradeoff(Poisson(0.2, Gaussian(1.0)))(alpha)
    assert np.all(curve <= exact + 1e-9)
    assert np.all(exact - curve < 5e-3)
    gauss = A.tradeoff(Gaussian(1.0))
    assert float(gauss(0.1)) == pytest.approx(float(ndtr(1.2815515655446004 - 1.0)), abs=5e-3)
    assert gauss.mu == pytest.approx(1.0, rel=1e-6)
