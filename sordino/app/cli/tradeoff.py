"""`sordino tradeoff`: shows the best attack's true-positive rate at small false-positive rates."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sordino.app.cli.accounting_options import NoiseName, SamplingName, event_of_flags, print_result
from sordino.app.cli.help_page import HelpPage


@dataclass(frozen=True)
class Command:
    """Trade-off curve (f-DP) of a training run."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            (
                "What the best attack can do against a run:",
                "sordino tradeoff --rate 0.01 --multiplier 1.1 --steps 6000",
            ),
        ),
        groups={
            "The run": ("rate", "multiplier", "steps", "sampling", "noise", "dataset_size"),
            "Output": ("plot", "json"),
        },
    )
    rate: float
    """Sampling rate."""
    multiplier: float
    """Noise multiplier."""
    steps: int
    """Number of noisy steps."""
    sampling: SamplingName = "poisson"
    """How batches are drawn."""
    noise: NoiseName = "gaussian"
    """Kind of noise."""
    dataset_size: int | None = None
    """Number of records, for fixed-size batches."""
    plot: Path | None = None
    """Write a picture there (SVG, PDF or PNG)."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Carries out `sordino tradeoff`: computes the trade-off curve of a training run and prints it; returns the
        exit code.
        """
        from sordino.accounting import Unsupported, tradeoff

        # The curve is computed from the event, without a detour over one (ε, δ).
        event = event_of_flags(self.rate, self.multiplier, self.steps, self.sampling, self.noise, self.dataset_size)
        try:
            curve = tradeoff(event)
        except Unsupported as error:
            print(f"sordino tradeoff: {error}", file=sys.stderr)
            return 2
        # Low false-positive rates matter most: there an attack is sure of a few people.
        rates = [1e-4, 1e-3, 1e-2, 0.05, 0.1, 0.5]
        power = [float(curve.power(alpha)) for alpha in rates]
        result = {"mu": curve.mu, "false_positive_rate": rates, "largest_true_positive_rate": power}
        lines = [f"Gaussian-DP parameter mu = {curve.mu:.4g}", "no attack does better than:"]
        lines += [
            f"  true-positive rate {beta:.4f} at false-positive rate {alpha:g}"
            for alpha, beta in zip(rates, power, strict=True)
        ]
        if self.plot is not None:
            from sordino.app.cli.privacy_figures import draw_tradeoff

            draw_tradeoff(event, curve, self.plot)
            result["plot"] = str(self.plot)
        print_result(result, self.json, lines)
        return 0
