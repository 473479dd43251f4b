"""Rényi divergences of single releases, as functions of the order.

Mironov 2017; Mironov, Talwar & Zhang 2019 (Poisson-sampled Gaussian); Wang, Balle & Kasiviswanathan 2019, theorem 27
(fixed-size subsets); Canonne, Kamath & Steinke 2020 (discrete Gaussian); Papernot & Steinke 2022 (random stopping).

**Privacy:** every curve is an upper bound at every order. The Poisson-sampled Gaussian uses E_Q[(1−q+qr)^α], which is
the larger of both directions: exact at whole orders, by quadrature between. Where no formula is known, the divergence
of the connect-the-dots pair is used: it dominates, hence its divergence is larger too.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from sordino.privacy_loss.composed_bounds import round_up_phases
from sordino.privacy_loss.lattice import Mesh, Sampled
from sordino.privacy_loss.pairs import Array, GaussianPair
from sordino.privacy_loss.tilted_windows import Cumulant

_QUADRATURE_STEP = 0.2
_REACH = 13.0  # standard deviations around each peak
_WHOLE_ABOVE = 64.0  # larger orders are rounded up to whole ones
_EXACT_SUBSET = 256  # theorem 27 with all its terms, up to this order
_MESH_CELLS = 60.0
_SHARP, _SHARP_SUBSET = 30.0, 10.0  # μ beyond which whole orders, and the plain terms of theorem 27, are as good


def sampled_curve(sampled: Sampled, orders: Array) -> Array:
    """Returns the Rényi curve of one sampled release: its Rényi divergence at each order > 1."""
    if isinstance(sampled.pair, GaussianPair) and sampled.rate < 1 and not sampled.subset:
        return np.array(_sampled_gaussian(sampled.rate, sampled.pair.mu, tuple(float(order) for order in orders)))
    return np.array([_divergence(sampled, float(order)) for order in orders])


@lru_cache(maxsize=200_000)
def _divergence(sampled: Sampled, order: float) -> float:
    """Returns the Rényi divergence of a sampled release at one order: in closed form where the pair has one, else on a
    lattice that dominates.
    """
    pair, rate = sampled.pair, sampled.rate
    if rate == 1.0:
        closed_form = pair.renyi_divergence(order)
        if closed_form is not None:
            return closed_form
    elif isinstance(pair, GaussianPair):
        return _subset_gaussian(rate, pair.mu, order)
    return _divergence_on_lattice(sampled, order)


@lru_cache(maxsize=4096)
def _sampled_gaussian(rate: float, mu: float, orders: tuple[float, ...]) -> tuple[float, ...]:
    """Returns the Rényi divergences of a Poisson-sampled Gaussian, log E_Q[(1−q+qr)^α]/(α−1): a binomial sum at whole
    α, quadrature between, large α rounded up.
    """
    # Large orders are rounded up to whole ones, because a divergence grows with its order.
    asked = np.array([math.ceil(a) if a > _WHOLE_ABOVE else a for a in orders])
    result = np.zeros(len(asked))
    whole = asked == np.floor(asked)
    for k in np.flatnonzero(whole):
        result[k] = _divergence_at_whole_order(rate, mu, int(asked[k]))
    if mu > _SHARP:
        # a quadrature would need more points than there is memory; log-moments are convex in the order
        for k in np.flatnonzero(~whole):
            result[k] = _divergence_between_whole_orders(rate, mu, float(asked[k]))
    elif not whole.all():
        part = asked[~whole]
        # trapezoid over z: doubly exponentially precise; poles of the integrand lie π/μ off the real line
        step = min(_QUADRATURE_STEP, 0.4 / mu)
        z = np.arange(-_REACH, float(part.max()) * mu + _REACH + step, step)
        loss = np.logaddexp(math.log1p(-rate), math.log(rate) + mu * z - mu**2 / 2)
        exponent = part[:, None] * loss - z**2 / 2
        top = exponent.max(axis=1)
        total = top + np.log(np.exp(exponent - top[:, None]).sum(axis=1)) + math.log(step / math.sqrt(2 * math.pi))
        result[~whole] = np.maximum(total, 0.0) / (part - 1)
    return tuple(result)


def _divergence_between_whole_orders(rate: float, mu: float, order: float) -> float:
    """Returns an upper bound on the Rényi divergence of a sampled Gaussian between two whole orders: the chord of
    (α−1)·divergence, which lies above it.
    """
    low = math.floor(order)
    share = order - low
    below = (low - 1) * _divergence_at_whole_order(rate, mu, low) if low > 1 else 0.0
    return ((1 - share) * below + share * low * _divergence_at_whole_order(rate, mu, low + 1)) / (order - 1)


def _divergence_at_whole_order(rate: float, mu: float, order: int) -> float:
    """Returns the Rényi divergence of a Poisson-sampled Gaussian at a whole order, by the binomial sum."""
    k = np.arange(order + 1)
    table = _log_factorials(1 << (order + 1).bit_length())
    log_choose = table[order] - table[: order + 1] - table[order::-1]
    terms = log_choose + k * math.log(rate) + (order - k) * math.log1p(-rate) + k * (k - 1.0) * mu**2 / 2
    top = float(terms.max())
    return max(0.0, top + math.log(float(np.exp(terms - top).sum()))) / (order - 1)


@lru_cache(maxsize=32)
def _log_factorials(size: int) -> Array:
    """Returns log k! for k = 0 … size − 1; one table serves many orders."""
    return np.asarray(gammaln(np.arange(1.0, size + 1)))


def _subset_gaussian(rate: float, mu: float, order: float) -> float:
    """Returns the Rényi divergence of a Gaussian on a fixed-size subset; between whole orders, the chord of the
    log-moment.
    """
    low, high = math.floor(order), math.ceil(order)
    share = order - low
    log_moment = (1 - share) * _subset_log_moment(rate, mu, low) + (
        share * _subset_log_moment(rate, mu, high) if share else 0.0
    )
    return log_moment / (order - 1)


@lru_cache(maxsize=20_000)
def _subset_log_moment(rate: float, mu: float, order: int) -> float:
    """Returns the Rényi log-moment (α−1)·divergence of a Gaussian on a fixed-size subset at whole α; μ already speaks
    about replacing.
    """
    if order <= 1:
        return 0.0

    def cumulant(x: float) -> float:
        return x * (x + 1) * mu**2 / 2

    # The terms j = 2 … α of theorem 27 of Wang, Balle & Kasiviswanathan (2019).
    i = np.arange(2, order + 1)
    log_choose = gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)
    # Two bounds per term, of which the smaller is used: a general one, and a sharper one for the second term.
    bound = math.log(2) + i * (i - 1) * mu**2 / 2
    second = mu**2 + (math.log(-math.expm1(-(mu**2))) if mu**2 > 1e-300 else -math.inf)
    bound[0] = min(math.log(4) + second, mu**2 + math.log(2))
    # The sharpest bound comes from forward differences, where μ and α are small enough to compute them.
    if 2 < order <= _EXACT_SUBSET and mu <= _SHARP_SUBSET:
        differences = _forward_differences(mu, order + 1)
        for n in range(3, order + 1):
            low, high = differences[2 * (n // 2) - 1], differences[2 * math.ceil(n / 2) - 1]
            bound[n - 2] = min(bound[n - 2], math.log(4) + 0.5 * (low + high))
    terms = log_choose + i * math.log(rate) + bound
    return float(np.logaddexp(0.0, logsumexp(terms)))


@lru_cache(maxsize=64)
def _forward_differences(mu: float, most: int) -> tuple[float, ...]:
    """Returns the terms of a fixed-size subset's Rényi moment: logarithms of the n-th forward difference of x ↦
    e^{x(x+1)μ²/2} from −1, which is E_Q[(r−1)^{n}], n = 1 … most.

    For even n the moment is positive; it is computed by quadrature, without the cancellation of the alternating sum.
    """
    # The expectation E_Q[|r − 1|ⁿ] by the trapezoidal rule, whose error falls exponentially for such integrands.
    step = min(_QUADRATURE_STEP, 0.4 / mu)
    z = np.arange(-_REACH, most * mu + _REACH + step, step)
    ratio = mu * z - mu**2 / 2
    # log |e^ratio − 1| in the form that keeps its digits on either side of 1.
    with np.errstate(divide="ignore", over="ignore"):
        log_size = np.where(
            ratio > 1,
            ratio + np.log1p(-np.exp(-np.maximum(ratio, 1.0))),
            np.log(np.abs(np.expm1(np.minimum(ratio, 1.0)))),
        )
    scale = math.log(step / math.sqrt(2 * math.pi))
    return tuple(float(logsumexp(n * log_size - z**2 / 2)) + scale for n in range(1, most + 1))


def _divergence_on_lattice(sampled: Sampled, order: float) -> float:
    """Returns the Rényi divergence of a release's connect-the-dots pair on a lattice, the larger of both directions."""
    worst = 0.0
    for add in (False,) if sampled.symmetric else (False, True):
        cumulant, infinite = _mesh_cumulant(sampled, add)
        if infinite > 0:
            return math.inf
        worst = max(worst, cumulant(order - 1) / (order - 1))
    return worst


@lru_cache(maxsize=256)
def _mesh_cumulant(sampled: Sampled, add: bool) -> tuple[Cumulant, float]:
    """Returns the cumulant K of a release, from which its Rényi divergence follows, rounded up on a fine mesh, and the
    mass at infinite loss.
    """
    native = sampled.native_losses(add, 0.0)
    mesh = Mesh(native.std / _MESH_CELLS, 2 * _MESH_CELLS, 0.0)
    parts, infinite = round_up_phases(((sampled, 1),), add, mesh)
    return Cumulant(parts, mesh.step), infinite if infinite > 1e-290 else 0.0
