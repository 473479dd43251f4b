"""The private means of the textbooks: how far to clip, how much noise, what error to expect.

For n records with E‖x‖² ≤ σ². Clipping at τ biases the mean by at most E(‖x‖ − τ)₊ ≤ σ²/4τ, so the squared error is at
most

    σ²/n  (the data)  +  σ⁴/16τ²  (clipping)  +  the variance of the noise

    binary   x ∈ {0, 1}         Lap(1/nε)                                     error p(1−p)/n + 2/n²ε²
    scalar   τ = σ√(nε)/2       Lap(2τ/nε)                                    error ≤ σ²/n + 9σ²/4nε
    vector   τ = σ√(nε)/d^¼     N(0, ρ²) each, ρ = 2τ ln(2/δ)/nε              error ≤ σ²/n + σ²√d (4 ln²(2/δ) + 1/16)/nε

The second and third replace one record by another, which moves a sum by 2τ; their noise is scaled to that, so about one
record added or removed they cost half of ε. Ask `Ledger.claim` with PLD(relation=Relation.REPLACE) for the textbook's.

Privacy: each is `Mean`; these are rules for its numbers. σ must be known, not estimated from the records.
"""

from __future__ import annotations

import math

from sordino import validate
from sordino.release.noise import Gaussian, Laplace
from sordino.statistics.mean import Mean


def binary_mean(epsilon: float) -> Mean:
    """Returns the ε-DP mean of x ∈ {0, 1} by the textbook rule: the mean plus Laplace noise.

    >>> binary_mean(0.5)
    Mean(bound=1.0, noise=Laplace(multiplier=2.0))
    """
    return Mean(1.0, Laplace(1 / validate.positive("epsilon", epsilon)))


def scalar_mean(sigma: float, n: int, epsilon: float) -> Mean:
    """Returns the private mean of numbers with E x² ≤ σ² by the textbook rule: clipped at τ = σ√(nε)/2, with Laplace
    noise.

    >>> scalar_mean(1.0, n=400, epsilon=1.0)
    Mean(bound=10.0, noise=Laplace(multiplier=2.0))
    """
    return Mean(scalar_bound(sigma, n, epsilon), Laplace(2 / epsilon))


def vector_mean(sigma: float, n: int, dimension: int, epsilon: float, delta: float) -> Mean:
    """Returns the private mean of vectors with E‖x‖² ≤ σ² by the textbook rule: clipped at τ = σ√(nε)/d^¼, with
    Gaussian noise.

    Args:
        sigma: E‖x‖² ≤ σ².
        n: records.
        dimension: d.
        epsilon: of the release.
        delta: of the release.

    Returns:
        A `Mean`, to be asked.

    Examples:
        >>> round(vector_mean(1.0, 1000, 16, 1.0, 1e-5).bound, 2)
        15.81

    """
    delta = validate.fraction("delta", delta)
    return Mean(vector_bound(sigma, n, dimension, epsilon), Gaussian(2 * math.log(2 / delta) / epsilon))


def scalar_bound(sigma: float, n: int, epsilon: float) -> float:
    """Returns the bound that the textbook rule clips numbers at for a private mean, τ = σ√(nε)/2.

    Args:
        sigma: E x² ≤ σ².
        n: records.
        epsilon: of the release.

    Returns:
        Where to clip.

    Examples:
        >>> round(scalar_bound(1.0, 1000, 1.0), 2)
        15.81

    """
    return vector_bound(sigma, n, 1, epsilon) / 2


def vector_bound(sigma: float, n: int, dimension: int, epsilon: float) -> float:
    """Returns the bound that the textbook rule clips vectors at for a private mean, τ = σ√(nε)/d^¼.

    Args:
        sigma: E‖x‖² ≤ σ².
        n: records.
        dimension: d.
        epsilon: of the release.

    Returns:
        Where to clip.

    Examples:
        >>> round(vector_bound(1.0, 1000, 16, 1.0), 2)
        15.81

    """
    n, d = validate.count("n", n), validate.count("dimension", dimension)
    sigma, epsilon = validate.positive("sigma", sigma), validate.positive("epsilon", epsilon)
    return sigma * math.sqrt(n * epsilon) / math.pow(d, 0.25)


def binary_error(p: float, n: int, epsilon: float) -> float:
    """Returns the error E(μ̃ − p)² of the binary mean by the textbook rule, exactly.

    Args:
        p: the true mean.
        n: records.
        epsilon: of the release.

    Returns:
        The expected squared error.

    Examples:
        >>> f"{binary_error(0.5, 1000, 1.0):.2e}"
        '2.52e-04'

    """
    p, n, epsilon = validate.probability("p", p), validate.count("n", n), validate.positive("epsilon", epsilon)
    return p * (1 - p) / n + 2 / (n * epsilon) ** 2


def scalar_error(sigma: float, n: int, epsilon: float) -> float:
    """Returns the most that the error E(μ̃ − μ)² of the scalar mean by the textbook rule can be.

    Args:
        sigma: E x² ≤ σ².
        n: records.
        epsilon: of the release.

    Returns:
        The bound on the error.

    Examples:
        >>> f"{scalar_error(1.0, 1000, 1.0):.2e}"
        '3.25e-03'

    """
    return sigma**2 / n + 9 * sigma**2 / (4 * n * epsilon)


def vector_error(sigma: float, n: int, dimension: int, epsilon: float, delta: float) -> float:
    """Returns the most that the error E‖μ̃ − μ‖² of the vector mean by the textbook rule can be.

    Args:
        sigma: E‖x‖² ≤ σ².
        n: records.
        dimension: d.
        epsilon: of the release.
        delta: of the release.

    Returns:
        The bound on the error.

    Examples:
        >>> f"{vector_error(1.0, 1000, 16, 1.0, 1e-5):.2e}"
        '2.39e+00'

    """
    private = 4 * math.log(2 / delta) ** 2 + 1 / 16
    return sigma**2 / n + sigma**2 * math.sqrt(dimension) * private / (n * epsilon)
