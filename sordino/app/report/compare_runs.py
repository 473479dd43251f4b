"""Compares runs: what each claims, reaches and costs, and where it departs from the first one.

**Privacy:** comparing costs nothing, all of it is released; choosing the best of several private runs does, and the
claim of each covers that run alone. The table says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from sordino.app.report import svg_figures
from sordino.app.report.difference import Amounts, Difference, difference
from sordino.app.report.evidence import Evidence, read
from sordino.app.report.svg_figures import Line
from sordino.app.report.templates import environment
from sordino.app.runs import atomic_files
from sordino.app.runs.directory import Row
from sordino.app.runs.recipe import PLAIN, described
from sordino.ledger import claims
from sordino.ledger.claims import rounded_up

CHOOSING = (
    "The claim of a run covers that run. To choose among private runs by looking at them all is to release them all: "
    "together they cost more than the one that is kept."
)


@dataclass(frozen=True)
class Comparison:
    """The runs in the order given, and how each differs from the first, which is the reference."""

    runs: tuple[Evidence, ...]
    labels: tuple[str, ...]
    differences: tuple[Difference, ...]
    amounts: Amounts

    def rows(self) -> list[dict[str, Any]]:
        """Returns one table row for each run."""
        return [_row(label, run) for label, run in zip(self.labels, self.runs, strict=True)]

    def table(self) -> dict[str, Any]:
        """Returns the comparison as JSON holds it."""
        return {
            "runs": [
                {**row, "claim": claims.table(run.claim), "folder": str(run.folder)}
                for row, run in zip(self.rows(), self.runs, strict=True)
            ],
            "reference": self.labels[0],
            "differ_by": asdict(self.amounts),
            "differences": [asdict(difference) for difference in self.differences],
            "note": CHOOSING,
        }


def compare(folders: Sequence[str | Path], amounts: Amounts | None = None) -> Comparison:
    """Reads the runs and finds where they begin to differ."""
    if len(folders) < 2:
        raise ValueError(f"{len(folders)} run given: need two or more to compare")
    runs = tuple(read(folder) for folder in folders)
    used = Amounts() if amounts is None else amounts
    return Comparison(runs, _labels(runs), tuple(difference(runs[0], other, used) for other in runs[1:]), used)


def write(comparison: Comparison, page: Path) -> list[Path]:
    """Writes the page, and its main figure as a PNG file beside it."""
    picture = page.with_suffix(".png")
    lines, label, _, step = _curves(comparison)[0]
    svg_figures.compared(lines, "steps", label, lambda made: svg_figures.png(made, picture), mark=step)
    values = {
        "rows": comparison.rows(),
        "differences": comparison.differences,
        "labels": comparison.labels,
        "amounts": comparison.amounts,
        "choosing": CHOOSING,
        "figures": [(Markup(svg), caption) for svg, caption in _figures(comparison)],
        "sentences": [sentences(comparison, number + 1) for number in range(len(comparison.differences))],
    }
    atomic_files.write(page, environment().get_template("compare.html.jinja").render(values))
    return [page, picture]


Curves = tuple[list[Line], str, str, int | None]


def _curves(comparison: Comparison) -> list[Curves]:
    """Returns the curves of accuracy, if there is any, and of loss against steps.

    Each has the lines, the label of its axis, its name, and the first step at which the runs differ.
    """

    def drawn(of: Callable[[Row], float | None]) -> list[Line]:
        return [
            Line(label, [row.step for row in run.rows], [float(of(row) or 0.0) for row in run.rows], number)
            for number, (label, run) in enumerate(zip(comparison.labels, comparison.runs, strict=True))
            if run.rows and all(of(row) is not None for row in run.rows)
        ]

    def first(steps: Iterable[int | None]) -> int | None:
        return min((step for step in steps if step is not None), default=None)

    accuracy = drawn(lambda row: None if row.test_accuracy is None else 100 * row.test_accuracy)
    at = first(one.accuracy_step for one in comparison.differences)
    there: list[Curves] = [(accuracy, "test accuracy, %", "Test accuracy", at)] if accuracy else []
    at = first(one.loss_step for one in comparison.differences)
    return [*there, (drawn(lambda row: row.test_loss), "test loss", "Test loss", at)]


def _figures(comparison: Comparison) -> list[tuple[str, str]]:
    """Returns the drawings of a comparison with their captions."""

    def drawn(lines: list[Line], xlabel: str, ylabel: str, name: str, about: str, at: float | None = None) -> str:
        return str(
            svg_figures.compared(lines, xlabel, ylabel, lambda made: svg_figures.svg(made, name, about), mark=at)
        )

    # Accuracy and loss against steps.
    found = [
        (
            drawn(lines, "steps", label, f"steps{number}", f"{name} of each run against steps", at),
            f"{name} against steps",
        )
        for number, (lines, label, name, at) in enumerate(_curves(comparison))
    ]
    (lines, label, name, _), *_ = _curves(comparison)
    # Against ε only runs with a guarantee are drawn, because the others have no ε.
    spent = [[row.epsilon for row in run.rows] if run.guarantee else [None] for run in comparison.runs]
    private = [
        replace(line, x=[float(value) for value in spent[line.look] if value is not None])
        for line in lines
        if None not in spent[line.look]
    ]
    if private:
        about = f"{name} of each private run against the privacy spent"
        found.append((drawn(private, "ε spent", label, "spent", about), f"{name} against ε spent"))
    # Distances and disagreements, if both runs kept their networks.
    for field, ylabel, caption in (
        ("distances", "relative distance", f"Distance of the networks from that of {comparison.labels[0]}"),
        ("disagreements", "share", f"Test records put in another class than by {comparison.labels[0]}"),
    ):
        lines = [
            Line(label, list(values), list(values.values()), number)
            for number, (label, difference) in enumerate(
                zip(comparison.labels[1:], comparison.differences, strict=True), 1
            )
            if (values := getattr(difference, field))
        ]
        if lines:
            found.append((drawn(lines, "steps", ylabel, field, caption), caption))
    return found


def sentences(comparison: Comparison, number: int) -> list[str]:
    """Returns, in words, how run `number`, counted from 1, differs from the reference."""
    difference, other = comparison.differences[number - 1], comparison.runs[number]
    amounts, said = comparison.amounts, []
    # What the runs have in common.
    start = {True: "the same initial network", False: "another initial network", None: "an unknown initial network"}
    said.append(f"from {start[difference.same_start]}")
    seed = comparison.runs[0].get("options", "seed")
    if seed is not None and seed == other.get("options", "seed"):
        said.append(f"by the same seed {seed}: the same lots and noise, where both methods draw them alike")
    said.append(
        # Where their curves part.
        f"accuracies differ by more than {100 * amounts.accuracy:g} percentage points "
        + (
            f"from step {difference.accuracy_step}"
            if difference.accuracy_step is not None
            else "at no evaluation that both made"
        )
    )
    where = "at no evaluation that both made" if difference.loss_step is None else f"from step {difference.loss_step}"
    said.append(f"losses differ by more than {100 * amounts.loss:g} % {where}")
    if difference.distances:
        said.append(
            _from_step("parameters", f"{100 * amounts.parameters:g} % of the way gone", difference.parameters_step)
        )
    if difference.disagreements:
        said.append(
            _from_step(
                "predictions", f"{100 * amounts.predictions:g} % of the test records", difference.predictions_step
            )
        )
    # How far apart they end.
    if difference.distance is not None:
        relative = "" if difference.relative is None else f", {100 * difference.relative:.3g} % of the reference's way"
        said.append(f"final networks lie {difference.distance:.4g} apart{relative}")
    if difference.cosine is not None:
        said.append(f"cosine of the total updates {difference.cosine:.4f}")
    if difference.agreement is not None:
        said.append(
            f"they agree on {100 * difference.agreement:.2f} % of the test records; only the reference is right on "
            f"{difference.only_reference_right}, only this one on {difference.only_this_right}"
        )
    return said + difference.notes


def _from_step(what: str, amount: str, step: int | None) -> str:
    where = f"from step {step}" if step is not None else "at no step that both kept"
    return f"{what} differ by more than {amount} {where}"


def _row(label: str, run: Evidence) -> dict[str, Any]:
    """Returns the table row of a run; without a guarantee it has a reason and no ε."""
    guarantee, last = run.guarantee, run.last
    return {
        "name": label,
        "method": _method(run),
        "epsilon": rounded_up(guarantee.epsilon) if guarantee else None,
        "delta": guarantee.delta if guarantee else None,
        "reason": None if guarantee else getattr(run.claim, "reason", ""),
        "test_accuracy": None if last is None else last.test_accuracy,
        "test_loss": None if last is None else last.test_loss,
        "steps": run.steps,
        "seconds": None if last is None else last.seconds,
        "status": run.status,
    }


def _method(run: Evidence) -> str:
    """Returns the private gradient of a run in words."""
    said = described(table) if isinstance(table := run.config.get("recipe"), Mapping) else "unknown"
    if not run.get("options", "non_private"):
        return said
    return "non-private" if said == PLAIN else f"non-private, {said}"


def _labels(runs: Sequence[Evidence]) -> tuple[str, ...]:
    """Returns the folder names, made unique where two are equal."""
    names = [run.name for run in runs]
    return tuple(
        name if names.count(name) == 1 else f"{run.folder.resolve().parent.name}/{name} ({number})"
        for number, (name, run) in enumerate(zip(names, runs, strict=True), 1)
    )
