"""Lower triangular Toeplitz matrices, each given by its first column, which is a power series.

    C[i, j] = c[i − j]        (C D)[:, 0] = c ∗ d        C⁻¹ = the series 1 / c

The square root of the matrix of prefix sums, (1 − x)^(−1/2), has the coefficients 1, 1/2, 3/8, 5/16, …, and its inverse
(1 − x)^(1/2) has 1, −1/2, −1/8, −1/16, … (Fichtenberger, Henzinger & Upadhyay 2023, arXiv:2202.11205).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]


def square_root_coefficients(count: int) -> Series:
    """Returns the first `count` coefficients of the Toeplitz matrix of (1 − x)^(−1/2), the square root of prefix sums:
    c_k = c_{k−1} (2k − 1) / 2k.

    >>> square_root_coefficients(4).tolist()
    [1.0, 0.5, 0.375, 0.3125]
    """
    k = np.arange(1, count, dtype=np.float64)
    return np.concatenate(([1.0], np.cumprod((2 * k - 1) / (2 * k))))[:count]


def inverse_square_root_coefficients(count: int) -> Series:
    """Returns the first `count` coefficients of the Toeplitz matrix of (1 − x)^(1/2), which inverts the square root of
    prefix sums: a_k = a_{k−1} (2k − 3) / 2k.

    >>> inverse_square_root_coefficients(4).tolist()
    [1.0, -0.5, -0.125, -0.0625]
    """
    k = np.arange(1, count, dtype=np.float64)
    return np.concatenate(([1.0], np.cumprod((2 * k - 3) / (2 * k))))[:count]


def invert_series(coefficients: Series, count: int) -> Series:
    """Returns the first `count` coefficients of the inverse 1 / c of a Toeplitz matrix, by the recursion w_t = (δ_t −
    Σ_{k≥1} c_k w_{t−k}) / c_0.
    """
    # The most recent values stand last, so that the sum is one product.
    reversed_tail, held = coefficients[:0:-1], len(coefficients) - 1
    padded = np.zeros(held + count)  # w before the first step is zero
    for t in range(count):
        past = reversed_tail @ padded[t : t + held]
        padded[held + t] = ((t == 0) - past) / coefficients[0]
    return padded[held:]


def toeplitz_matrix(coefficients: Series, steps: int) -> NDArray[np.float64]:
    """Returns the lower triangular Toeplitz matrix of `steps` rows whose first column begins with the coefficients."""
    column = np.zeros(steps)
    column[: min(steps, len(coefficients))] = coefficients[:steps]
    lag = np.subtract.outer(np.arange(steps), np.arange(steps))
    return np.where(lag >= 0, column[np.maximum(lag, 0)], 0.0)
