"""`sordino budget`: creates, shows and spends the privacy budget of a dataset.

The exit code is 3 if the budget is exceeded.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from tyro.conf import Positional

from sordino.app.cli.accounting_options import NoiseName, SamplingName, event_of_flags, print_result
from sordino.app.cli.help_page import HelpPage
from sordino.ledger.claims import describe_event

_EXHAUSTED = 3


@dataclass(frozen=True)
class Command:
    """Create a budget, show what is left, or enter a run before it starts."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            ("A budget for a dataset:", "sordino budget create people.jsonl --epsilon 3 --delta 1e-5"),
            ("A run within it:", "sordino train --data people.csv --target income --epsilon 1 --budget people.jsonl"),
            ("What is left:", "sordino budget show people.jsonl"),
        ),
        groups={
            "Of create": ("epsilon", "delta"),
            "Of spend": ("rate", "multiplier", "steps", "sampling", "noise", "dataset_size", "name"),
            "Output": ("json",),
        },
    )
    action: Positional[Literal["create", "show", "spend"]]
    """What to do."""
    path: Positional[Path]
    """The budget file."""
    epsilon: float | None = None
    """Limit, for create."""
    delta: float | None = None
    """δ of the limit, for create."""
    rate: float | None = None
    """Sampling rate of the run, for spend."""
    multiplier: float | None = None
    """Noise multiplier of the run, for spend."""
    steps: int | None = None
    """Steps of the run, for spend."""
    sampling: SamplingName = "poisson"
    """How the run draws batches."""
    noise: NoiseName = "gaussian"
    """Kind of noise."""
    dataset_size: int | None = None
    """Number of records, for fixed-size batches."""
    name: str = ""
    """What to call the run."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Carries out `sordino budget`: creates, shows or spends a privacy budget and prints it; returns
        the exit code.
        """
        from sordino.accounting.accountant import Unsupported
        from sordino.accounting.budget import Budget, BudgetExhausted

        try:
            # A budget is created once and never overwritten.
            if self.action == "create":
                if self.epsilon is None or self.delta is None:
                    raise ValueError("create: needs --epsilon and --delta")
                # A budget without a δ would mean nothing.
                budget = Budget.create(self.path, self.epsilon, self.delta)
            else:
                budget = Budget(self.path)
            # A run is entered before it starts, or refused.
            if self.action == "spend":
                if self.rate is None or self.multiplier is None or self.steps is None:
                    raise ValueError("spend: needs --rate, --multiplier and --steps")
                event = event_of_flags(
                    self.rate, self.multiplier, self.steps, self.sampling, self.noise, self.dataset_size
                )
                budget.spend(event, self.name)
        except BudgetExhausted as error:
            print(f"sordino budget: {error}", file=sys.stderr)
            return _EXHAUSTED
        except FileExistsError:
            print(f"sordino budget: {self.path} exists; a budget is never overwritten", file=sys.stderr)
            return 2
        except Unsupported as error:
            print(f"sordino budget: {error}", file=sys.stderr)
            return 2
        self._print_budget(budget)
        return 0

    def _print_budget(self, budget: Any) -> None:
        """Prints, for `sordino budget`, the limit, what is spent and left, and the runs."""
        # What is spent is the ε of all runs together, at the budget's own δ.
        epsilon, delta = budget.limit
        entries, spent = budget.entries(), budget.spent_epsilon()
        result = {
            "epsilon": epsilon,
            "delta": delta,
            "spent": spent,
            "left": max(0.0, epsilon - spent),
            "runs": [{"name": entry.name, "time": entry.time, "event": entry.event.to_json()} for entry in entries],
        }
        lines = [
            f"limit ({epsilon:g}, {delta:g}); spent {spent:.4g} in {len(entries)} runs; "
            f"left {max(0.0, epsilon - spent):.4g}"
        ]
        lines += [f"  {entry.time}  {entry.name or '(unnamed)'}  {describe_event(entry.event)}" for entry in entries]
        print_result(result, self.json, lines)
