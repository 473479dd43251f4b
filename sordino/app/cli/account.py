"""`sordino account`: computes ε of a training run and shows what looser methods would say."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
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
from sordino.events import Event, Gaussian, to_json
from sordino.events.training import lots_in_a_pass, training_event
from sordino.ledger.claims import describe_event
from sordino.number_format import round_up_to

_LOOSER = ("basic", "advanced", "strong", "moments", "rdp", "pld", "clt")


def _word_result(statement: str, number: str, method: Any) -> str:
    """Returns a bound worded as a privacy statement; an estimate is worded as a number that guarantees nothing."""
    return f"{statement} by {method.name}" if method.is_bound else f"{number} by {method.name}: estimate, no guarantee"


@dataclass(frozen=True)
class Command:
    """Account for a training run: epsilon at a delta (or delta at an epsilon)."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            (
                "ε of 60 epochs on 60,000 records in lots of 600:",
                "sordino account --rate 0.01 --multiplier 1.1 --steps 6000 --delta 1e-5",
            ),
            (
                "Noise of 16 bands, which later steps cancel a part of:",
                "sordino account --rate 0.002 --sigma 1.4 --steps 2000 --sampling cyclic-poisson --bands 16",
            ),
            ("What other methods would say:", "sordino account --rate 0.01 --sigma 1.1 --steps 6000 --explain"),
        ),
        groups={
            "The run": ("rate", "multiplier", "steps", "sampling", "noise", "bands", "dataset_size", "max_batch"),
            "What is asked": ("delta", "epsilon", "accountant"),
            "Output": ("explain", "plot", "json"),
        },
    )
    rate: float
    """Sampling rate: expected batch / dataset size."""
    multiplier: float
    """Noise multiplier: noise std / clip bound (for laplace: scale / L1 bound)."""
    steps: int
    """Number of noisy steps."""
    delta: float = 1e-5
    """δ of the guarantee."""
    epsilon: float | None = None
    """Give ε and get δ instead."""
    accountant: AccountantName = "pld"
    """Method; pld is the tightest, clt no bound."""
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
    explain: bool = False
    """Say how the number came about, and what each other method says."""
    plot: Path | None = None
    """Write a picture of δ(ε) there (SVG, PDF or PNG)."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Carries out `sordino account`: accounts for a training run and prints the result; returns the exit code."""
        from sordino.accounting import Unsupported

        # The flags become an event, the same as that of a run, and the rest follows from it.
        event = event_of_phase_flags(
            self.rate,
            self.multiplier,
            self.steps,
            self.sampling,
            self.noise,
            self.dataset_size,
            self.bands,
            self.max_batch,
        )
        try:
            result, lines = self._compute_result(event)
        except Unsupported as error:
            print(f"sordino account: {error}", file=sys.stderr)
            return 2
        if self.plot is not None:
            from sordino.app.cli.privacy_figures import draw_privacy_profile

            # The picture is drawn from the event, so that it belongs to the numbers above it.
            draw_privacy_profile(event, self.delta, self.plot)
            result["plot"] = str(self.plot)
            lines.append(f"picture: {self.plot}")
        print_result(result, self.json, lines)
        return 0

    def _compute_result(self, event: Event) -> tuple[dict[str, Any], list[str]]:
        """Returns the result of `sordino account` as a table and as lines to print."""
        from sordino import accounting

        method = accountant_by_name(self.accountant)
        result: dict[str, Any] = {"accountant": method.name, "is_bound": method.is_bound, "event": to_json(event)}
        # δ at the given ε, or ε at the given δ.
        if self.epsilon is not None:
            result_value = method.delta(event, self.epsilon)
            result |= {"epsilon": self.epsilon, "delta": result_value}
            lines = [
                _word_result(
                    f"({self.epsilon:g}, {_round_up_for_print(result_value)})-DP", f"delta = {result_value:.4g}", method
                )
            ]
            if result_value >= 1:
                lines = [f"no delta below 1 at epsilon={self.epsilon:g} by {method.name}"]
        else:
            result_value = method.epsilon(event, self.delta)
            result |= {"epsilon": result_value, "delta": self.delta}
            lines = [
                _word_result(
                    f"({_round_up_for_print(result_value)}, {self.delta:g})-DP", f"epsilon = {result_value:.4g}", method
                )
            ]
            if math.isinf(result_value):
                lines = [f"no finite epsilon at delta={self.delta:g} by {method.name}"]
        # A number means nothing without its neighbouring relation.
        relation = accounting.relation_of(event)
        result["relation"] = str(relation)
        lines.append(f"neighbours: {relation}")
        # PLD also certifies a lower bound, which shows how tight the figure is.
        if isinstance(method, accounting.PLD) and self.epsilon is None:
            low, _ = method.bounds(event, self.delta)
            result["certified_lower"] = low
            lines.append(f"certified: {low:.6g} <= epsilon <= {round_up_to(6, result_value)}")
        # Shuffled batches have no proved amplification: the figure is shown beside a lower bound.
        if self.sampling == "shuffle":
            result["shuffle"] = shuffled = self._compare_with_shuffling()
            least = f"an attack proves epsilon >= {shuffled['lower_bound']:.4g}"
            lines.append(f"shuffled batches: {least}; the figure above")
            lines.append(f"uses no amplification. Poisson sampling would have {shuffled['poisson']:.4g}: not yours.")
        if self.explain:
            result["methods"] = self._compute_by_every_method(event)
            lines += ["", *self._explain_result(event, result["methods"])]
        return result, lines

    def _compare_with_shuffling(self) -> dict[str, float]:
        """Returns, for `sordino account`, a proved lower bound for shuffled batches, and the ε that Poisson sampling
        would have.
        """
        from sordino import accounting

        # Shuffled lots come in whole passes.
        lots = lots_in_a_pass(self.rate)
        passes = math.ceil(self.steps / lots)
        lower = accounting.shuffle_lower_bound(self.multiplier, lots, passes, self.delta)
        by_coins = training_event(self.rate, Gaussian(self.multiplier), self.steps)
        poisson = accounting.PLD().epsilon(by_coins, self.delta)
        return {"lower_bound": lower, "poisson": poisson}

    def _compute_by_every_method(self, event: Event) -> list[dict[str, Any]]:
        """Returns ε by every accountant that `sordino account` compares, or why one has no theorem for this event."""
        from sordino.accounting import Strong, Unsupported

        # The loosest first. A method without a theorem for this event says so instead of a number.
        rows = []
        for method in [accountant_by_name(name) for name in _LOOSER] + [Strong(valid=True)]:  # type: ignore[arg-type]
            try:
                rows.append(
                    {"method": method.name, "epsilon": method.epsilon(event, self.delta), "is_bound": method.is_bound}
                )
            except Unsupported as error:
                rows.append({"method": method.name, "epsilon": math.nan, "is_bound": False, "why": str(error)})
        return rows

    def _explain_result(self, event: Event, rows: list[dict[str, Any]]) -> list[str]:
        """Returns the lines with which `sordino account` describes the event, the result of each method, and how PLD
        works.
        """
        # From the loosest bound to the tightest, so that the gain is seen.
        lines = [f"event: {describe_event(event)}", f"every method at delta={self.delta:g}:"]
        for row in rows:
            mark = "" if row["is_bound"] else "   (no bound)"
            epsilon = "no theorem" if math.isnan(row["epsilon"]) else _round_up_for_print(row["epsilon"])
            lines.append(f"  {epsilon:>12}  {row['method']}{mark}")
        lines += [
            "PLD composes the distribution of the privacy loss itself: one release is put on a lattice of losses so",
            "that its delta can only grow, all steps are convolved by one Fourier transform, adding and removing a",
            "record apart, and truncation, aliasing and rounding are charged. The lower bound bins outputs instead.",
        ]
        return lines


def _round_up_for_print(value: float) -> str:
    return round_up_to(4, value)
