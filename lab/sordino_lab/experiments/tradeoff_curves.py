"""Type I against type II errors of the best attacker, and a real membership-inference attack's points beside them.

source     003, lines 15, 737–744
setting    ε = 1; (1, 1e-5); Gaussian of the same (ε, δ); the same sampled at q = 0.1; an attack on DP gradient descent
reduced    fewer observations by the attack
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.accounting import epsilon_delta_tradeoff, gaussian_mu, gaussian_tradeoff, subsampled_tradeoff
from sordino.app.report.panels import Panel, Series
from sordino.auditing.bounds.two_worlds import Errors
from sordino.auditing.bounds.two_worlds import gaussian_epsilon_lower_bound as audited_gaussian
from sordino.auditing.bounds.two_worlds import mu_lower_bound as audited_mu
from sordino.privacy_loss.gaussian import gaussian_epsilon
from sordino_lab.descent import descend, query, squared
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

EPSILON, DELTA, NOISE, RATE = 1.0, 1e-5, 1.0, 1e-6


def scores(present: bool, steps: int) -> NDArray[np.float64]:
    """What each release says in the direction of a record that is there or is not; ten others are known.

    One training with a rate of almost nothing: every step asks the same question again, with noise of its own.
    """
    rng = torch.Generator().manual_seed(5)
    x, y = torch.randn(10, 3, generator=rng), torch.zeros(10)
    if present:
        x, y = torch.cat([x, torch.tensor([[0.0, 0.0, 30.0]])]), torch.cat([y, torch.tensor([40.0])])
    path = descend([0.0, 0.0, 0.0], squared, x, y, query(1.0, NOISE), RATE, steps, seed=int(present)).points
    return np.asarray((path[1:, 2] - path[:-1, 2]).double().numpy())


def run(bench: Workbench) -> Outcome:
    """Curves, then the attack on its own curve."""
    alpha = np.linspace(0, 1, 101)
    mu = gaussian_mu(EPSILON, DELTA)
    curves = [
        Series("ε = 1, δ = 0", alpha, epsilon_delta_tradeoff(EPSILON, 0.0, alpha), method="laplace", variant=1),
        Series("ε = 1, δ = 1e-5", alpha, epsilon_delta_tradeoff(EPSILON, DELTA, alpha), method="advanced", variant=2),
        Series(f"Gaussian of the same (ε, δ), μ = {mu:.2f}", alpha, gaussian_tradeoff(mu, alpha), method="gaussian"),
        Series(
            "Gaussian μ = 1, sampled at q = 0.1",
            alpha,
            subsampled_tradeoff(1.0, 0.1, alpha),
            method="threshold",
            variant=3,
        ),
        Series("guessing", [0, 1], [1, 0], method="none", variant=3),
    ]
    trials = bench.pick(15, 400, 2000, 10_000)
    there, away = scores(True, trials), scores(False, trials)
    limit = 1 / NOISE
    cuts = np.quantile(np.concatenate([there, away]), np.linspace(0.05, 0.95, 10))
    false_alarm = np.array([(away >= c).mean() for c in cuts])
    missed = np.array([(there < c).mean() for c in cuts])
    allowed = gaussian_tradeoff(limit, false_alarm)
    spread = 2.6 * np.sqrt(0.25 / trials)  # 99 % of a share, at most
    attack = [
        Series("best attack that the claim allows", alpha, gaussian_tradeoff(limit, alpha), method="gaussian"),
        Series(
            f"the attack, {2 * trials} releases",
            false_alarm,
            missed,
            low=missed - spread,
            high=np.minimum(1, missed + spread),
            method="attack",
            points=True,
        ),
        Series("guessing", [0, 1], [1, 0], method="none", variant=3),
    ]
    worst = float((allowed - missed).max())
    # A rule from the first half of the releases, judged on the others: what the attack proves, whatever the claim says.
    half = trials // 2
    cut = float(np.median(np.concatenate([there[:half], away[:half]])))
    judged = Errors(int((there[half:] < cut).sum()), trials - half, int((away[half:] >= cut).sum()), trials - half)
    proved, proved_epsilon = audited_mu(judged), audited_gaussian(judged, DELTA)
    claimed = gaussian_epsilon(limit, DELTA)
    return Outcome(
        [
            Panel("what ε, δ allow an attacker", "type I error α (false alarm)", "type II error β (missed)", curves),
            Panel(
                f"membership inference on one step of DP-GD, μ = {limit:.2f}",
                "type I error α (false alarm)",
                "type II error β (missed)",
                attack,
            ),
        ],
        findings=[
            Finding(
                "β + (1 − q + qe^ε)α ≥ 1 − δ",
                "003:743",
                bool(np.all(subsampled_tradeoff(1.0, 0.1, alpha) + 1e-9 >= gaussian_tradeoff(1.0, alpha))),
                "the sampled curve lies above the unsampled one everywhere",
            ),
            Finding(
                "no attack is below the curve",
                "003:15",
                bench.judged(worst < 2 * spread),
                f"the attack's errors are below the curve by at most {max(0.0, worst):.3f}, within the error of "
                f"{2 * trials} releases",
            ),
            Finding(
                "a measured lower bound stays below the claim",
                "003:15",
                bench.judged(proved <= limit),
                f"audited, with 95 % confidence: μ ≥ {proved:.2f} where {limit:.2f} is claimed, so ε ≥ "
                f"{proved_epsilon:.2f} of {claimed:.2f} at δ = 1e-5; a low bound would prove nothing",
            ),
        ],
        numbers={
            "alpha": false_alarm.tolist(),
            "beta": missed.tolist(),
            "trials": trials,
            "audited μ, at least": proved,
            "claimed μ": limit,
            "audited ε, at least": proved_epsilon,
            "claimed ε": claimed,
        },
    )


EXPERIMENT = Experiment(
    id="tradeoff-curves",
    source="003",
    figure="Membership inference definition of privacy",
    lines="15, 737–744",
    title="Trade-off curves, and a real attack beside them",
    shows="(ε, δ) is a curve that no attacker gets below; a real attack on DP gradient descent comes close to it",
    setting="ε=1, δ=1e-5, q=0.1",
    reduced="fewer observations by the attack",
    nouns=("gaussian_tradeoff", "subsampled_tradeoff", "tradeoff"),
    seconds=4,
    run=run,
)
