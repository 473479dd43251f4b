"""`sordino calibrate`: finds the noise, the steps or the rate that meets a privacy target."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sordino.app.cli.accounting_options import AccountantName, NoiseName, SamplingName, accountant, run_event, show
from sordino.events import Event


@dataclass(frozen=True)
class Command:
    """Find the one of --multiplier, --steps, --rate that is left out, for a target epsilon."""

    epsilon: float
    """Target ε."""
    delta: float = 1e-5
    """Target δ."""
    rate: float | None = None
    """Sampling rate."""
    multiplier: float | None = None
    """Noise multiplier."""
    steps: int | None = None
    """Number of noisy steps."""
    accountant: AccountantName = "pld"
    """Method."""
    sampling: SamplingName = "poisson"
    """How batches are drawn."""
    noise: NoiseName = "gaussian"
    """Kind of noise."""
    dataset_size: int | None = None
    """Number of records, for fixed-size batches."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Finds the missing parameter and prints it; returns the exit code."""
        from sordino.accounting import Unsupported, calibrate

        # Exactly one parameter may be missing.
        given = {"rate": self.rate, "multiplier": self.multiplier, "steps": self.steps}
        missing = [name for name, value in given.items() if value is None]
        if len(missing) != 1:
            raise ValueError("leave out exactly one of --rate, --multiplier, --steps: that one is found")
        (name,) = missing
        method = accountant(self.accountant)
        event_of: Callable[[Any], Event] = lambda x: run_event(  # noqa: E731
            **{**given, name: x},
            sampling=self.sampling,
            noise=self.noise,
            dataset_size=self.dataset_size,
        )
        # The result is accounted for again, so that the printed ε belongs to the printed value.
        try:
            found = calibrate(event_of, method, self.epsilon, self.delta, whole=name == "steps")
            reached = method.epsilon(event_of(found), self.delta)
        except Unsupported as error:
            print(f"sordino calibrate: {error}", file=sys.stderr)
            return 2
        result = {"parameter": name, "value": found, "epsilon": reached, "delta": self.delta, "accountant": method.name}
        shown = f"{found}" if name == "steps" else f"{found:.6g}"
        show(
            result,
            self.json,
            [f"{name} = {shown}", f"gives epsilon = {reached:.6g} <= {self.epsilon:g} by {method.name}"],
        )
        return 0
