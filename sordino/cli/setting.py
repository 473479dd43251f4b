"""What the accounting commands share: the run they speak about, accountants by name, how results are printed."""

from __future__ import annotations

import json
import math
from typing import Any, Literal

from sordino.events import BallsInBins, Event, FixedSize, Gaussian, Laplace, Poisson, Repeat, Shuffle

AccountantName = Literal["pld", "rdp", "moments", "advanced", "basic", "strong", "clt"]
SamplingName = Literal["poisson", "shuffle", "balls-in-bins", "fixed-size"]
NoiseName = Literal["gaussian", "laplace"]


def accountant(name: AccountantName) -> Any:
    """The accountant of that name."""
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


def run(
    rate: float, multiplier: float, steps: int, sampling: SamplingName, noise: NoiseName, dataset_size: int | None
) -> Event:
    """Training of so many steps; with passes over the data, steps must make whole passes of 1/rate batches."""
    release: Event = Gaussian(multiplier) if noise == "gaussian" else Laplace(multiplier)
    if sampling == "poisson":
        return Repeat(Poisson(rate, release), steps)
    if sampling == "fixed-size":
        if dataset_size is None:
            raise ValueError("--dataset-size: needed for fixed-size batches")
        return Repeat(FixedSize(max(1, math.ceil(rate * dataset_size)), dataset_size, release), steps)
    if not 0 < rate <= 1:
        raise ValueError(f"rate={rate}: must lie in (0, 1]")
    batches = batches_of(rate)
    passes = math.ceil(steps / batches)
    if sampling == "shuffle":
        return Repeat(Shuffle(Repeat(release, batches)), passes)
    return Repeat(BallsInBins(batches, release), passes)


def batches_of(rate: float) -> int:
    """Whole batches in a pass at this rate, as far as a printed decimal can tell."""
    return math.floor(1 / rate * (1 + 1e-6))


def show(result: dict[str, Any], as_json: bool, lines: list[str]) -> None:
    """Print a result once: as JSON, or as lines."""
    print(json.dumps(_finite(result)) if as_json else "\n".join(lines))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "inf" if value > 0 else "nan"
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return value


def up(value: float, digits: int = 4) -> str:
    """A number rounded up for print: what is claimed must not be smaller than what was computed."""
    if not math.isfinite(value) or value == 0:
        return str(value)
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(abs(value))))
    return f"{math.ceil(value * scale - 1e-9) / scale:.{digits}g}"
