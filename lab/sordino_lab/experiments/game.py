"""The attacker–oracle game: how often the best attacker guesses the coin, against ε.

source     001, F2.1, lines 241–252
setting    the attacker chooses two neighbouring datasets, the oracle flips a coin and answers
reduced    fewer rounds
"""

from __future__ import annotations

import numpy as np

from sordino.app.report.panels import Panel, Series
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench


def won(rng: np.random.Generator, epsilon: float, rounds: int) -> float:
    """Share of rounds won against Lap(1/ε) on a count of 0 or 1, by the best attacker, who compares with one half."""
    coin = rng.integers(0, 2, rounds)
    answer = coin + rng.laplace(0, 1 / epsilon, rounds)
    return float(((answer > 0.5) == coin).mean())


def responded(rng: np.random.Generator, epsilon: float, rounds: int) -> float:
    """The same against randomised response, which tells the truth with probability e^ε/(1 + e^ε)."""
    coin = rng.integers(0, 2, rounds)
    truth = rng.random(rounds) < np.exp(epsilon) / (1 + np.exp(epsilon))
    return float(truth.mean()) if len(coin) else 0.0


def run(bench: Workbench) -> Outcome:
    """Two mechanisms and the bound."""
    rng, rounds = bench.rng(6), bench.pick(200, 40_000, 200_000, 1_000_000)
    epsilons = np.linspace(0.1, 5, 15)
    laplace = [won(rng, float(e), rounds) for e in epsilons]
    response = [responded(rng, float(e), rounds) for e in epsilons]
    bound = np.exp(epsilons) / (1 + np.exp(epsilons))
    slack = 4 * 0.5 / np.sqrt(rounds)
    kept = bool(np.all(np.asarray(laplace) <= bound + slack) and np.all(np.asarray(response) <= bound + slack))
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
                "the attacker's probability to guess right is bounded by e^ε",
                "001:249",
                bench.judged(kept),
                "true, and empty for ε ≥ 0 as a bound on a probability; the bound that says something is e^ε/(1 + "
                "e^ε), "
                "which randomised response attains",
            ),
        ],
    )


EXPERIMENT = Experiment(
    id="game",
    source="001",
    figure="F2.1",
    lines="241–252",
    title="Differential privacy as a game",
    shows="no attacker wins the game more often than e^ε/(1 + e^ε)",
    setting="the attacker chooses two neighbouring datasets, the oracle flips a coin and answers",
    reduced="fewer rounds",
    nouns=("Laplace",),
    terms="Angreifer-Orakel-Spiel",
    seconds=0.6,
    run=run,
)
