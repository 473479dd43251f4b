"""`sordino calibrate`: finds the noise, the steps or the rate that meets a privacy target."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from sordino.app.cli.accounting_options import (
    AccountantName,
    NoiseName,
    PhaseSamplingName,
    accountant_by_name,
    event_of_phase_flags,
    print_result,
)
from sordino.app.cli.help_page import HelpPage
from sordino.events import Event


@dataclass(frozen=True)
class Command:
    """Find the one of --multiplier, --steps, --rate that is left out, for a target epsilon."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            ("The noise that gives ε = 3:", "sordino calibrate --epsilon 3 --rate 0.01 --steps 6000"),
            ("The steps that fit:", "sordino calibrate --eps 3 --rate 0.01 --sigma 1.1"),
        ),
        groups={
            "Target": ("epsilon", "delta"),
            "The run; leave out the one that is to be found": (
                "rate",
                "multiplier",
                "steps",
                "sampling",
                "noise",
                "bands",
                "dataset_size",
                "max_batch",
            ),
            "Method and output": ("accountant", "json"),
        },
    )
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
    sampling: PhaseSamplingName = "poisson"
    """How batches are drawn."""
    noise: NoiseName = "gaussian"
    """Kind of noise."""
    dataset_size: int | None = None
    """Number of records, for fixed-size and truncated batches."""
    bands: int = 1
    """Bands of correlated noise, with cyclic-poisson (which has as many groups) and fixed-order; 1 is independent noise."""
    max_batch: int | None = None
    """Largest batch, for truncated-poisson."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Carries out `sordino calibrate`: finds the missing parameter for a privacy target and prints it; returns the
        exit code.
        """
        from sordino.accounting import Unsupported, calibrate

        # Exactly one parameter may be missing.
        given = {"rate": self.rate, "multiplier": self.multiplier, "steps": self.steps}
        missing = [name for name, value in given.items() if value is None]
        if len(missing) != 1:
            raise ValueError("leave out exactly one of --rate, --multiplier, --steps: that one is found")
        (name,) = missing
        method = accountant_by_name(self.accountant)
        # The event of the run as a function of the one parameter that is missing.
        event_of: Callable[[Any], Event] = lambda x: event_of_phase_flags(  # noqa: E731
            **{**given, name: x},
            sampling=self.sampling,
            noise=self.noise,
            dataset_size=self.dataset_size,
            bands=self.bands,
            max_batch=self.max_batch,
        )
        # The result is accounted for again, so that the printed ε belongs to the printed value.
        try:
            solution = calibrate(event_of, method, self.epsilon, self.delta, whole=name == "steps")
            reached_epsilon = method.epsilon(event_of(solution), self.delta)
        except Unsupported as error:
            print(f"sordino calibrate: {error}", file=sys.stderr)
            return 2
        # What is printed is what was reached, not what was asked for.
        result = {
            "parameter": name,
            "value": solution,
            "epsilon": reached_epsilon,
            "delta": self.delta,
            "accountant": method.name,
        }
        # Steps are whole; other parameters are shown with six digits.
        formatted_solution = f"{solution}" if name == "steps" else f"{solution:.6g}"
        print_result(
            result,
            self.json,
            [
                f"{name} = {formatted_solution}",
                f"gives epsilon = {reached_epsilon:.6g} <= {self.epsilon:g} by {method.name}",
            ],
        )
        return 0
