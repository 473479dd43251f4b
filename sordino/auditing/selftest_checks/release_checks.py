"""Release and accountant checks: facts of arithmetic, tested exactly on made-up numbers.

release   value + multiplier × promise × (1 + rounding) × the stream's values, Gaussian and Laplace
choose    the largest of ε u / 2Δ + Gumbel values of the stream, and the same on a line
account   closed forms: one Gaussian, many as one, a choice, a draw of everybody
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.accounting import PLD
from sordino.auditing.verdict import SelftestFinding
from sordino.events import Event, Exponential, Poisson, Repeat
from sordino.events import Gaussian as GaussianEvent
from sordino.events import Laplace as LaplaceEvent
from sordino.privacy_loss.gaussian import gaussian_delta, gaussian_epsilon
from sordino.release.noise import Gaussian, Laplace
from sordino.release.release import Steps, choose, choose_between, release
from sordino.release.sealed import Sealed
from sordino.release.sensitivity import Sensitivity
from sordino.rng.streams import Rng

_STREAMS = 48
_RELATIVE = 1e-5
_SEED = 7


def check_release() -> list[SelftestFinding]:
    """Runs all checks of the release and of the accountant and returns their findings."""
    return [_check_scale(), _check_choose(), _check_choose_between(), _check_accountant()]


def _check_scale() -> SelftestFinding:
    """Checks the function `release` on made-up numbers: its noise has the declared scale and the event says so."""
    right = True
    for noise, event in (
        (Gaussian(1.3), GaussianEvent(1.3)),
        (Laplace(1.7), LaplaceEvent(1.7)),
    ):
        # A known key makes the noise known, so value and stream can be compared to the last digits.
        promise = Sensitivity(l2=0.7, l1=0.4, rounding=0.25)
        made = release(Sealed({"a": torch.zeros(40, 25)}), promise, noise, Rng.from_seed(_SEED), divide_by=8.0)
        stream = Rng.from_seed(_SEED)
        values = stream.normal(1000).double() if isinstance(noise, Gaussian) else stream.laplace(1000)
        scale = noise.multiplier * (0.7 if isinstance(noise, Gaussian) else 0.4) * 1.25 / 8.0
        far = (made.value["a"].double().reshape(-1) - scale * values).norm() / (scale * values).norm()
        right = right and float(far) <= _RELATIVE and made.event == event
    words = "noise is multiplier × promise × rounding × the stream's values, and so is its event"
    return SelftestFinding("release", words if right else f"not so: {words}", holds=right)


def _gumbel_values(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    w = (words.astype(np.float64) + 0.5) * 2.0**-64
    return np.asarray(-np.log(-np.log1p(-np.minimum(w, 1 - 2.0**-53))))


def _check_choose() -> SelftestFinding:
    """Checks the release by `choose` on streams of which many decide otherwise at any other ε.

    The scores are one to six apart, at ε = ½ and Δ = 2.
    """
    # Scores far apart and close together, so that a wrong ε changes some of the choices.
    scores, epsilon, reach = np.array([0.0, 6.0, 11.0, 15.0, 18.0]), 0.5, 2.0
    right = True
    for seed in range(_STREAMS):
        made, event = choose(Sealed(torch.from_numpy(scores)), reach, epsilon, Rng.from_seed(seed))
        expected = int(
            np.argmax(epsilon * scores / (2 * reach) + _gumbel_values(Rng.from_seed(seed).words(len(scores))))
        )
        right = right and made == expected and event == Exponential(epsilon)
    words = "an index is chosen with probability ∝ exp(ε u / 2Δ), and its event is ε"
    return SelftestFinding("choose", words if right else f"not so: {words}", holds=right)


def _check_choose_between() -> SelftestFinding:
    """Checks the release by `choose_between` against Gumbel noise from the same stream."""
    # Intervals of different widths: the width is part of the weight.
    edges, heights = np.array([0.0, 1.0, 3.0, 4.0, 9.0]), np.array([0.0, 9.0, 16.0, 4.0])
    epsilon, reach, right = 0.5, 2.0, True
    for seed in range(_STREAMS):
        steps = Steps(torch.from_numpy(edges), torch.from_numpy(heights))
        made, event = choose_between(Sealed(steps), reach, epsilon, Rng.from_seed(seed))
        weights = np.log(np.diff(edges)) + epsilon * heights / (2 * reach)
        i = int(np.argmax(weights + _gumbel_values(Rng.from_seed(seed).words(len(heights)))))
        right = right and edges[i] - 1e-4 <= made <= edges[i + 1] + 1e-4 and event == Exponential(epsilon)
    words = "a place is chosen with density ∝ exp(ε u / 2Δ), and its event is ε"
    return SelftestFinding("choose between", words if right else f"not so: {words}", holds=right)


def _check_accountant() -> SelftestFinding:
    """Checks the accountant, by which releases are charged, against closed forms."""
    # Closed forms for one Gaussian, many, sampled ones and a choice.
    exact = PLD()
    single = gaussian_epsilon(1.0, 1e-5)
    known: list[tuple[Event, float, float]] = [
        (GaussianEvent(1.0), 1e-5, single),
        (Repeat(GaussianEvent(4.0), 16), 1e-5, single),
        (Repeat(Poisson(1.0, GaussianEvent(4.0)), 16), 1e-5, single),
        (Exponential(0.75), 0.0, 0.75),
        # one draw at rate q: δ_q(log(1 + q(e^ε − 1))) = q δ(ε), the theorem of Poisson amplification (Balle et al. 2018)
        (Poisson(0.3, GaussianEvent(1.0)), 0.3 * gaussian_delta(1.0, 2.0), math.log1p(0.3 * math.expm1(2.0))),
    ]
    far = max(abs(exact.epsilon(event, delta) / epsilon - 1) for event, delta, epsilon in known)
    return SelftestFinding("account", f"closed forms are met to {far:.1e}", holds=far <= 1e-3)
