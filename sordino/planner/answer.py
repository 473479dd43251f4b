"""A setting's numbers: the noise, the claim, what an attack can do, what to type and what to write.

**Privacy:** ε is the claim that the run itself would print, made by the same function from the same event; a noise that
was solved for is rounded up, which can only lower ε.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sordino.accounting import PLD, calibrate
from sordino.accounting import meaning as words
from sordino.cli.setting import up
from sordino.door.claims import NoGuarantee, claim, describe, rounded_up
from sordino.planner.copyable import code, command
from sordino.planner.setting import Setting

_DIGITS = 5
"""Of a noise that was solved for."""


@lru_cache(maxsize=256)
def noise(setting: Setting) -> float:
    """The multiplier given, or the least one that meets the target, rounded up."""
    if setting.multiplier is not None:
        return float(setting.multiplier)
    assert setting.epsilon is not None
    found = calibrate(setting.event, PLD(), setting.epsilon, setting.delta)
    return float(up(found, _DIGITS))


@lru_cache(maxsize=256)
def answer(setting: Setting) -> dict[str, Any]:
    """What the page shows at once.

    >>> said = answer(Setting(60_000, 256, 15, 1e-5, multiplier=1.1))
    >>> said["epsilon_shown"], said["lots"], said["tier"]
    ('1.134', 3516, 'reasonable protection (ε ≤ 10)')
    """
    multiplier = noise(setting)
    event = setting.event(multiplier)
    said = claim(event, setting.delta, PLD())
    result: dict[str, Any] = {
        "multiplier": multiplier,
        "rate": setting.rate,
        "lots": setting.lots,
        "lots_per_epoch": setting.dataset_size / setting.batch,
        "event": describe(event),
        "command": command(setting, multiplier),
        "code": code(setting, multiplier),
        "notes": _notes(setting),
    }
    if isinstance(said, NoGuarantee):
        return result | {"epsilon": None, "reason": said.reason}
    coin = (1 + PLD().delta(event, 0.0)) / 2
    return result | {
        "epsilon": said.epsilon,
        "epsilon_shown": rounded_up(said.epsilon),
        "claim": str(said),
        "tier": words.tier(said.epsilon),
        "words": str(words.Attack(coin, (), 0.0)),
    }


def _notes(setting: Setting) -> list[str]:
    notes = []
    if setting.delta * setting.dataset_size >= 1:
        notes.append(
            f"δ = {setting.delta:g} is not below 1/N = {1 / setting.dataset_size:.2g}: a mechanism that publishes a "
            "random record outright could meet it. Take a smaller δ."
        )
    if setting.batch < 1:
        notes.append("Fewer than one record is expected in a lot: most steps are noise alone.")
    return notes
