"""Computes a scenario's numbers: noise, claim, what an attack can do, a command and code.

**Privacy:** ε is the claim that the run itself would print, made by the same function from the same event; a noise that
was solved for is rounded up, which can only lower ε.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sordino.accounting import PLD, calibrate, meaning
from sordino.app.planner.copyable import code, command
from sordino.app.planner.scenario import Scenario
from sordino.ledger.claims import Guarantee, NoGuarantee, claim, describe, rounded_up
from sordino.number_format import rounded_up_to

_TRIES, _MORE = 20, 1e-4
"""How often, and by how much, noise is raised until a claim meets the target."""
_DIGITS = 5
"""Of a noise that was solved for."""


@lru_cache(maxsize=256)
def noise(scenario: Scenario) -> float:
    """Returns the multiplier given, or the smallest one that meets the target, rounded up."""
    if scenario.multiplier is not None:
        return float(scenario.multiplier)
    assert scenario.epsilon is not None
    # Rounding up can only lower ε.
    found = calibrate(scenario.event, PLD(), scenario.epsilon, scenario.delta)
    multiplier = float(rounded_up_to(_DIGITS, found))
    for _ in range(
        _TRIES
    ):  # a claim keeps some of δ for the end of the noise, which counts where there is little noise
        said = claim(scenario.event(multiplier), scenario.delta, PLD())
        if not isinstance(said, Guarantee) or said.epsilon <= scenario.epsilon:
            break
        multiplier = float(rounded_up_to(_DIGITS, multiplier * (1 + _MORE)))
    return multiplier


@lru_cache(maxsize=256)
def answer(scenario: Scenario) -> dict[str, Any]:
    """Returns what the page shows at once.

    >>> said = answer(Scenario(60_000, 256, 15, 1e-5, multiplier=1.1))
    >>> said["epsilon_shown"], said["lots"], said["tier"]
    ('1.134', 3516, 'reasonable protection (ε ≤ 10)')
    """
    multiplier = noise(scenario)
    event = scenario.event(multiplier)
    said = claim(event, scenario.delta, PLD())
    # Without a guarantee the page gets a reason and no ε.
    result: dict[str, Any] = {
        "multiplier": multiplier,
        "rate": scenario.rate,
        "lots": scenario.lots,
        "lots_per_epoch": scenario.dataset_size / scenario.batch,
        "event": describe(event),
        "command": command(scenario, multiplier),
        "code": code(scenario, multiplier),
        "notes": _notes(scenario),
    }
    if isinstance(said, NoGuarantee):
        return result | {"epsilon": None, "reason": said.reason}
    coin = (1 + PLD().delta(event, 0.0)) / 2
    return result | {
        "epsilon": said.epsilon,
        "epsilon_shown": rounded_up(said.epsilon),
        "claim": str(said),
        "tier": meaning.tier(said.epsilon),
        "words": str(meaning.Attack(coin, (), 0.0)),
    }


def _notes(scenario: Scenario) -> list[str]:
    """Returns warnings about a δ that is too large or lots that are too small."""
    notes = []
    if scenario.delta * scenario.dataset_size >= 1:
        notes.append(
            f"δ = {scenario.delta:g} is not below 1/N = {1 / scenario.dataset_size:.2g}: a mechanism that publishes a "
            "random record outright could meet it. Take a smaller δ."
        )
    if scenario.batch < 1:
        notes.append("Fewer than one record is expected in a lot: most steps are noise alone.")
    return notes
