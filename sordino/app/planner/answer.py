"""Computes a scenario's numbers: noise, claim, what an attack can do, a command and code.

**Privacy:** ε is the claim that the run itself would print, made by the same function from the same event; a noise that
was solved for is rounded up, which can only lower ε.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sordino.accounting import PLD, calibrate, meaning
from sordino.app.planner.copyable import format_code, format_command
from sordino.app.planner.scenario import Scenario
from sordino.ledger.claims import Guarantee, NoGuarantee, describe_event, make_claim, round_up
from sordino.number_format import round_up_to

_TRIES, _MORE = 20, 1e-4
"""How often, and by how much, noise is raised until a claim meets the target."""
_DIGITS = 5
"""Of a noise that was solved for."""


@lru_cache(maxsize=256)
def find_noise(scenario: Scenario) -> float:
    """Returns the noise in a planner's answer: the multiplier that the scenario gives, or the smallest one that meets
    the target, rounded up.
    """
    if scenario.multiplier is not None:
        return float(scenario.multiplier)
    assert scenario.epsilon is not None
    # Rounding up can only lower ε.
    calibrated = calibrate(scenario.event, PLD(), scenario.epsilon, scenario.delta)
    multiplier = float(round_up_to(_DIGITS, calibrated))
    for _ in range(
        _TRIES
    ):  # a claim keeps some of δ for the end of the noise, which counts where there is little noise
        claim_made = make_claim(scenario.event(multiplier), scenario.delta, PLD())
        if not isinstance(claim_made, Guarantee) or claim_made.epsilon <= scenario.epsilon:
            break
        multiplier = float(round_up_to(_DIGITS, multiplier * (1 + _MORE)))
    return multiplier


@lru_cache(maxsize=256)
def answer(scenario: Scenario) -> dict[str, Any]:
    """Returns the planner's answer to a scenario: the numbers, command and code that the page shows at once.

    >>> said = answer(Scenario(60_000, 256, 15, 1e-5, multiplier=1.1))
    >>> said["epsilon_shown"], said["lots"], said["tier"]
    ('1.134', 3516, 'reasonable protection (ε ≤ 10)')
    """
    # The noise is given, or follows from the target ε.
    multiplier = find_noise(scenario)
    event = scenario.event(multiplier)
    claim_made = make_claim(event, scenario.delta, PLD())
    # Without a guarantee the page gets a reason and no ε.
    result: dict[str, Any] = {
        "multiplier": multiplier,
        "rate": scenario.rate,
        "lots": scenario.lots,
        "lots_per_epoch": scenario.dataset_size / scenario.batch,
        "event": describe_event(event),
        "command": format_command(scenario, multiplier),
        "code": format_code(scenario, multiplier),
        "notes": _warnings_of(scenario),
    }
    if isinstance(claim_made, NoGuarantee):
        return result | {"epsilon": None, "reason": claim_made.reason}
    # With a fair coin the best attacker is right with probability (1 + δ(0))/2.
    guessing_accuracy = (1 + PLD().delta(event, 0.0)) / 2
    return result | {
        "epsilon": claim_made.epsilon,
        "epsilon_shown": round_up(claim_made.epsilon),
        "claim": str(claim_made),
        "tier": meaning.tier(claim_made.epsilon),
        "words": str(meaning.Attack(guessing_accuracy, (), 0.0)),
    }


def _warnings_of(scenario: Scenario) -> list[str]:
    """Returns the warnings in a planner's answer about a δ that is too large or lots that are too small."""
    notes = []
    if scenario.delta * scenario.dataset_size >= 1:
        notes.append(
            f"δ = {scenario.delta:g} is not below 1/N = {1 / scenario.dataset_size:.2g}: a mechanism that publishes a "
            "random record outright could meet it. Take a smaller δ."
        )
    if scenario.batch < 1:
        notes.append("Fewer than one record is expected in a lot: most steps are noise alone.")
    return notes
