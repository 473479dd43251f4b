"""Drawings of source 001 that train nothing: the game of differential privacy, one step, and two schedules."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.app.report.panels import Panel, Series
from sordino.clipping.clipping_rule import ClippingRule
from sordino.clipping.flat import Flat
from sordino.clipping.scheduled import Scheduled
from sordino.ledger.claims import Guarantee
from sordino.queries.noisy_sum import NoisySum
from sordino.release.noise import Gaussian
from sordino.sampling.poisson import Poisson
from sordino.schedules import Cosine, Epochs, Logarithmic
from sordino_lab.descent import descend, squared_error
from sordino_lab.experiment import Figure, Finding, Outcome
from sordino_lab.training_curves import NOISELESS_LOOKAHEAD
from sordino_lab.workbench import Workbench


def play_against_laplace(rng: np.random.Generator, epsilon: float, rounds: int) -> float:
    """Returns, for the thesis's drawing of the game, the share of rounds that the best attacker wins against Lap(1/ε)
    on a count of 0 or 1.

    The best attacker compares the answer with one half.
    """
    coin = rng.integers(0, 2, rounds)
    answer = coin + rng.laplace(0, 1 / epsilon, rounds)
    return float(((answer > 0.5) == coin).mean())


def play_against_response(rng: np.random.Generator, epsilon: float, rounds: int) -> float:
    """Returns, for the thesis's drawing of the game, the share of rounds won against randomised response, which tells
    the truth with probability e^ε/(1 + e^ε).
    """
    coin = rng.integers(0, 2, rounds)
    truth = rng.random(rounds) < np.exp(epsilon) / (1 + np.exp(epsilon))
    return float(truth.mean()) if len(coin) else 0.0


def draw_game(bench: Workbench) -> Outcome:
    """Draws the thesis's game of differential privacy: how often the best attacker guesses the coin of the oracle, for
    two mechanisms, and the bound.
    """
    # Both attackers play the best rule there is against their mechanism.
    rng, rounds = bench.make_rng(6), bench.pick(200, 40_000, 200_000, 1_000_000)
    epsilons = np.linspace(0.1, 5, 15)
    laplace = [play_against_laplace(rng, float(e), rounds) for e in epsilons]
    response = [play_against_response(rng, float(e), rounds) for e in epsilons]
    bound = np.exp(epsilons) / (1 + np.exp(epsilons))
    most = max(*laplace, *response)
    return Outcome(
        [
            Panel(
                "the game: which of two datasets was it?",
                "ε",
                "rounds won",
                [
                    Series("no attacker wins more: e^ε/(1 + e^ε)", epsilons, bound, method="theory", variant=1),
                    Series("best attacker of Laplace noise", epsilons, laplace, method="laplace", points=True),
                    Series(
                        "best attacker of randomised response",
                        epsilons,
                        response,
                        method="exact",
                        variant=1,
                        points=True,
                    ),
                    Series("guessing", [epsilons[0], epsilons[-1]], [0.5, 0.5], method="none", variant=3),
                ],
                ylim=(0.45, 1.02),
            )
        ],
        findings=[
            Finding(
                "the probability for the attacker to guess right is bounded by e^ε",
                "001:249",
                # No share of rounds is above 1, which e^ε never is below: nothing could come out otherwise.
                None,
                f"no attacker wins more than {100 * most:.0f} % of the rounds; e^ε ≥ 1 bounds every probability, and the "
                "bound that says something is e^ε/(1 + e^ε), which randomised response attains",
            )
        ],
    )


Array = NDArray[np.float64]
OTHER_GRADIENTS = np.array([[1.6, 0.5], [0.5, 1.3], [0.4, 0.6]])
CHALLENGES = {
    "green": (np.array([-0.3, 1.7]), "green-element"),
    "red": (np.array([1.5, -1.2]), "red-element"),
}
"""The two elements that an attacker must tell apart: gradient and colour."""


def clip_to_circle(g: Array) -> Array:
    """Returns gradients clipped to the circle of radius 1."""
    return np.asarray(g * np.minimum(1, 1 / np.linalg.norm(g, axis=-1, keepdims=True)))


def downhill_gradients(theta: Array, centres: Array) -> Array:
    """Returns the downhill gradients of ½‖θ − c‖² for every centre c."""
    return np.asarray(centres - theta)


def look_ahead(centres: Array) -> tuple[Array, Array, Array]:
    """Returns what the thesis's drawing of one step of ProjectedDPSGD shows: the virtual point, and the plain and the
    projected update, for ρ = 2.
    """
    # Half of the plain update leads to the virtual point; the other half is taken there.
    first = clip_to_circle(downhill_gradients(np.zeros(2), centres)).mean(0)
    virtual = first / 2
    second = clip_to_circle(downhill_gradients(virtual, centres)).mean(0)
    return virtual, first, first / 2 + second / 2


def _arrow(label: str, to: Array, method: str) -> Series:
    """Returns an arrow from the origin."""
    return Series(label, [0.0, to[0]], [0.0, to[1]], method=method, arrows=True)


def draw_one_step(bench: Workbench) -> Outcome:
    """Draws one step of DP-SGD with a challenge element in its three parts, gradients, clipping and mean, and one of
    ProjectedDPSGD, as the thesis does.
    """
    angle = np.linspace(0, 2 * np.pi, 80)
    circle = Series("clip bound C", np.cos(angle), np.sin(angle), method="theory", variant=1)
    # First the three gradients that are there in any case, as they are and clipped.
    first, second = (
        [circle, *(_arrow(label if k == 0 else "", g, "none") for k, g in enumerate(some))]
        for label, some in (
            ("gradients of the other three", OTHER_GRADIENTS),
            ("the other three, clipped", clip_to_circle(OTHER_GRADIENTS)),
        )
    )
    third: list[Series] = []
    ahead: list[Series] = []
    means, moved = [], []
    for name, (extra, method) in CHALLENGES.items():
        # The three others and one of the two elements that an attacker must tell apart.
        every = np.vstack([OTHER_GRADIENTS, extra])
        mean = clip_to_circle(every).mean(0)
        means.append(mean)
        first.append(_arrow(f"challenge element, {name}", extra, method))
        second.append(_arrow(f"challenge element, {name}, clipped", clip_to_circle(extra), method))
        third.append(_arrow(f"mean with the {name} element", mean, method))
        # With a look ahead there are two parts of the update; the mean without it is a mark beside them.
        virtual, plain, projected = look_ahead(every)
        moved.append(projected - plain)
        path = np.vstack([np.zeros(2), virtual, projected])
        ahead += [
            Series(
                f"{name}: virtual step, rest",
                path[:, 0],
                path[:, 1],
                method=method,
                hollow=NOISELESS_LOOKAHEAD,
                arrows=True,
            ),
            Series(f"{name}: DPSGD's mean", [plain[0]], [plain[1]], method=method, variant=1, points=True),
        ]
    # Each of four clipped gradients moves the mean by at most C/4, so an exchange moves it by 2C/4.
    longest = max(
        float(np.linalg.norm(clip_to_circle(g))) for g in (*OTHER_GRADIENTS, *(g for g, _ in CHALLENGES.values()))
    )
    gap = float(np.linalg.norm(means[0] - means[1]))
    apart = np.vstack(means)
    third.append(Series(f"{gap:.2f} apart, at most C/2", apart[:, 0], apart[:, 1], method="theory", variant=3))
    axes = ("first parameter", "second parameter")
    return Outcome(
        [
            Panel("DPSGD 1: gradients of a lot of four, C = 1", *axes, first, equal=True),
            Panel("DPSGD 2: clipped to the circle", *axes, second, equal=True),
            Panel("DPSGD 3: the mean of the four", *axes, third, equal=True),
            Panel("ProjectedDPSGD: a look ahead, ρ = 2", *axes, ahead, equal=True),
        ],
        findings=[
            Finding(
                "by clipping, the influence of each single data point is limited by C",
                "001:279",
                bench.judge(longest <= 1 + 1e-12),
                f"no clipped gradient is longer than {longest:.3f} where C = 1; the two means lie {gap:.3f} apart, at most "
                "2C/4 = 0.5",
            )
        ],
        notes=[
            "The virtual point depends on the challenge element, so the second gradients of all others do too: their "
            f"difference is {float(np.linalg.norm(moved[0] - moved[1])):.3f} here and nothing bounds it by C/4."
        ],
    )


COSINE_EPOCHS, COSINE_BATCHES = 30, 240


def draw_lr_cosine(bench: Workbench) -> Outcome:
    """Draws the learning rate of the thesis, half a cosine that is constant within an epoch (equation 2.1)."""
    at = range(COSINE_EPOCHS + 1)
    rates = (0.01, 0.1, 1.0)
    # The library's own schedule, held for an epoch as the thesis does.
    made = [Epochs(Cosine(rate, 0.0, COSINE_EPOCHS), COSINE_BATCHES) for rate in rates]
    return Outcome(
        [
            Panel(
                "lr₀ · ½(1 + cos(πE/30))",
                "epoch E",
                "learning rate",
                [
                    Series(f"lr₀ = {rate:g}", at, [one(e * COSINE_BATCHES) for e in at], method="dpsgd", variant=k)
                    for k, (rate, one) in enumerate(zip(rates, made, strict=True))
                ],
            )
        ],
        notes=["The source gives no number for it: the figure is the formula."],
    )


LOG_PERIOD, LOG_TOP = 240, 5.0


def draw_log_schedule(bench: Workbench) -> Outcome:
    """Draws the logarithmic bound of the thesis that falls within each epoch and starts again, for several slopes
    (equation 4.1).
    """
    # The schedule is a function of the step alone, which is why it keeps the guarantee.
    slopes = (0.1, 0.3, 0.5, 0.8)
    at = range(2 * LOG_PERIOD)
    made = [Logarithmic(LOG_TOP, slope, LOG_PERIOD) for slope in slopes]
    # A run with each schedule, whose claim is compared with that of a fixed bound; data and steps do not matter for it.
    x, y = torch.ones(40, 1), torch.zeros(40)
    rules: list[ClippingRule] = [Flat(LOG_TOP), *(Scheduled(one) for one in made)]
    claims = [
        descend(
            [1.0], squared_error, x, y, NoisySum(rule, Gaussian(1.1)), 0.1, 4, sampler=Poisson(0.1), delta=1e-5
        ).claim
        for rule in rules
    ]
    epsilons = [one.epsilon if isinstance(one, Guarantee) else math.inf for one in claims]
    return Outcome(
        [
            Panel(
                "two epochs of 240 batches, largest bound 5",
                "batches",
                "clip bound C",
                [
                    Series(f"A = {a:g}", at, [one(t) for t in at], method="logarithmic", variant=k)
                    for k, (a, one) in enumerate(zip(slopes, made, strict=True))
                ],
            )
        ],
        findings=[
            Finding(
                "it is determined independently of the data and keeps differential privacy",
                "001:766",
                bench.judge(math.isfinite(epsilons[0]) and len(set(epsilons)) == 1),
                "a function of the batch's number alone: `Scheduled(Logarithmic(…))` has DP-SGD's guarantee on "
                f"Poisson lots, ε = {max(epsilons):.2f} after four steps for a fixed bound and for every slope",
            )
        ],
        notes=[
            "Positive for all batches only if A < top / ln 240 = 0.912 here; larger slopes are refused. A and the "
            "largest bound must not be tuned on the private data without counting the tuning."
        ],
    )


FIGURES = {
    "game": Figure(draw_game),
    "one-step": Figure(draw_one_step),
    "lr-cosine": Figure(draw_lr_cosine),
    "log-schedule": Figure(draw_log_schedule),
}
