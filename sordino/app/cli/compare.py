"""`sordino compare`: compares runs, and shows where they begin to differ from the first one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from sordino.app.cli.help_page import HelpPage


@dataclass(frozen=True)
class Command:
    """Compare runs: claim, accuracy, loss, time, where each begins to differ from the first. Runs with --trace say more."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            (
                "Two runs side by side, and a page about them:",
                "sordino compare runs/first runs/second --out compared.html",
            ),
        ),
    )
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Two or more run directories, or folders of `sordino train --seeds`, which are drawn as means with their spread; the
    first is the reference."""
    out: Path | None = None
    """Write a page there (NAME.html), and a picture beside it (NAME.png)."""
    accuracy: float = 0.01
    """Accuracies are different when they differ by more than this."""
    loss: float = 0.05
    """Losses are different when they differ by more than this share of the reference's."""
    parameters: float = 0.1
    """Parameters are different when they differ by more than this share of the way the reference has gone."""
    predictions: float = 0.01
    """Predictions are different when they differ on more than this share of the test records."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Carries out `sordino compare`: compares runs, prints the result, and writes a page if asked; returns the exit
        code.
        """
        from sordino.app.report.compare_runs import CHOOSING, compare_runs, describe_difference, write
        from sordino.app.report.difference import Amounts

        # Refused before the runs are compared, which takes a while.
        if self.out is not None and self.out.suffix != ".html":
            raise ValueError(f"out={str(self.out)!r}: must end in .html; the picture is written beside it")
        comparison = compare_runs(self.runs, Amounts(self.accuracy, self.loss, self.parameters, self.predictions))
        written: list[Path] = []
        if self.out is not None:
            try:
                written = write(comparison, self.out)
            except OSError as error:
                raise ValueError(f"out={str(self.out)!r}: cannot be written ({error.strerror})") from error
        if self.json:
            print(json.dumps(comparison.table() | {"written": [str(path) for path in written]}))
            return 0
        # The table first, then how each run differs from the first, and last what choosing costs.
        _print_table(comparison.rows())
        for number, label in enumerate(comparison.labels[1:], 1):
            print(f"\n{label}, beside {comparison.labels[0]}")
            for sentence in describe_difference(comparison, number):
                print(f"  {sentence}")
        print(f"\n{CHOOSING}")
        for path in written:
            print(path)
        return 0


def _with_deviation(value: object, deviation: object, form: str) -> str:
    """Returns a number for the table of `sordino compare`, formatted by `form`, with its standard deviation over seeds
    if it has one.
    """
    if not isinstance(value, float):
        return "–"
    return form.format(value) + (f" ± {form.format(deviation)}" if isinstance(deviation, float) else "")


def _print_table(rows: list[dict[str, object]]) -> None:
    """Prints the table of runs that `sordino compare` compares, as wide as the terminal, or as wide as needed in a
    pipe.
    """
    from rich.console import Console
    from rich.table import Table

    # Numbers to the right, so that they can be compared; names to the left.
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "method", "claim", "test accuracy", "test loss", "steps", "seconds"):
        table.add_column(name, justify="left" if name in ("run", "method", "claim") else "right")
    for row in rows:
        accuracy, loss, seconds = row["test_accuracy"], row["test_loss"], row["seconds"]
        table.add_row(
            str(row["name"]),
            str(row["method"]),
            f"ε = {row['epsilon']} at δ = {row['delta']:g}" if row["epsilon"] else f"no guarantee: {row['reason']}",
            _with_deviation(accuracy, row["accuracy_deviation"], "{:.2%}"),
            _with_deviation(loss, row["loss_deviation"], "{:.4g}"),
            f"{row['steps']:,}",
            f"{seconds:.1f}" if isinstance(seconds, float) else "–",
        )
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table, markup=False)
