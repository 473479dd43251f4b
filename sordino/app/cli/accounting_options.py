"""Shared parts of the accounting commands: the event of the flags, accountants, and printing."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Literal

from sordino.events import Event, Gaussian, Laplace
from sordino.events.training import DRAWN, training_event

AccountantName = Literal["pld", "rdp", "moments", "advanced", "basic", "strong", "clt"]
NoiseName = Literal["gaussian", "laplace"]
if TYPE_CHECKING:
    SamplingName = str
else:
    SamplingName = Literal[DRAWN]


def accountant_by_name(name: AccountantName) -> Any:
    """Returns the accountant that an option of the accounting commands names."""
    from sordino import accounting

    return {
        "pld": accounting.PLD,
        "rdp": accounting.RDP,
        "moments": accounting.Moments,
        "advanced": accounting.Advanced,
        "basic": accounting.Basic,
        "strong": accounting.Strong,
        "clt": accounting.GaussianCLT,
    }[name]()


def event_of_flags(
    rate: float, multiplier: float, steps: int, sampling: SamplingName, noise: NoiseName, dataset_size: int | None
) -> Event:
    """Returns the event of the run that the options of an accounting command describe."""
    release: Event = Gaussian(multiplier) if noise == "gaussian" else Laplace(multiplier)
    return training_event(rate, release, steps, sampling, dataset_size)


def print_result(result: dict[str, Any], as_json: bool, lines: list[str]) -> None:
    """Prints a result once, as JSON or as lines."""
    print(json.dumps(_replace_infinities(result)) if as_json else "\n".join(lines))


def _replace_infinities(value: Any) -> Any:
    """Returns a value that an accounting command prints with infinite and undefined numbers replaced by text, which
    JSON can hold.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "inf" if value > 0 else "nan"
    if isinstance(value, dict):
        return {key: _replace_infinities(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replace_infinities(inner) for inner in value]
    return value
