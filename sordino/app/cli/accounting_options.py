"""Shared parts of the accounting commands: the event of the flags, accountants, and printing."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Literal

from sordino import validate
from sordino.events import Correlated, CyclicPoisson, Event, FixedOrder, Gaussian, Laplace, Repeat, TruncatedPoisson
from sordino.events.training import DRAWN, lots_in_a_pass, training_event

AccountantName = Literal["pld", "rdp", "moments", "advanced", "basic", "strong", "clt"]
NoiseName = Literal["gaussian", "laplace"]
CYCLIC, FIXED_ORDER, TRUNCATED = "cyclic-poisson", "fixed-order", "truncated-poisson"
if TYPE_CHECKING:
    SamplingName = str
    PhaseSamplingName = str
else:
    SamplingName = Literal[DRAWN]
    PhaseSamplingName = Literal[(*DRAWN, CYCLIC, FIXED_ORDER, TRUNCATED)]


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


def event_of_phase_flags(
    rate: float,
    multiplier: float,
    steps: int,
    sampling: PhaseSamplingName,
    noise: NoiseName,
    dataset_size: int | None,
    bands: int,
    max_batch: int | None,
) -> Event:
    """Returns the event that the options of `sordino account` and `calibrate` describe, where noise may be correlated and
    batches may be cut to a largest size.

    `rate` is the expected batch over the dataset size for every way to draw. So with cyclic Poisson draws, which have as
    many groups as bands, a record of the group that is drawn from takes part with probability rate × bands.

    Raises:
        ValueError: if there is no theorem for bands with these draws, or if a number is missing.

    """
    # Correlated noise has a theorem for these draws only, so nothing else is priced.
    if validate.count("bands", bands) > 1 and (sampling not in (CYCLIC, FIXED_ORDER) or noise != "gaussian"):
        raise ValueError(
            f"--bands {bands} with {noise} noise and {sampling} draws has no price: with correlated noise, steps are not "
            f"independent.\nUse Gaussian noise and --sampling {CYCLIC} or {FIXED_ORDER}."
        )
    release: Event = Gaussian(multiplier) if noise == "gaussian" else Laplace(multiplier)
    if sampling in (CYCLIC, FIXED_ORDER) and noise == "gaussian":
        release = Correlated(multiplier, ("banded", bands))
    if sampling == CYCLIC:
        # A lot is drawn from one group, so a group must hold enough records.
        if validate.rate("rate", rate) * bands > 1 + 1e-9:
            raise ValueError(
                f"--rate {rate:g} with --bands {bands}: a group has 1/{bands} of the records, fewer than a batch needs.\n"
                f"Use at most {int(1 / rate)} bands, or smaller batches."
            )
        return CyclicPoisson(min(1.0, rate * bands), bands, steps, release)
    if sampling == FIXED_ORDER:
        return FixedOrder(steps, lots_in_a_pass(rate), release)
    if sampling == TRUNCATED:
        # How often a lot is cut depends on the number of records.
        if dataset_size is None or max_batch is None:
            raise ValueError(f"--sampling {TRUNCATED}: give --dataset-size and --max-batch, which its price depends on")
        return Repeat(TruncatedPoisson(rate, dataset_size, max_batch, release), steps)
    return event_of_flags(rate, multiplier, steps, sampling, noise, dataset_size)


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
