"""Compares runs: what each claims, reaches and costs, and where it departs from the first one.

**Privacy:** comparing costs nothing, all of it is released; choosing the best of several private runs does, and the
claim of each covers that run alone. The table says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from sordino.app import atomic_files
from sordino.app.report import svg_figures
from sordino.app.report.difference import Amounts, Difference, find_difference
from sordino.app.report.evidence import Evidence, read
from sordino.app.report.svg_figures import ComparedLines, Line
from sordino.app.report.templates import template_environment
from sordino.app.runs.directory import CONFIG, Row
from sordino.app.runs.recipe import PLAIN, describe_gradient
from sordino.app.runs.several_seeds import SUMMARY, Spread
from sordino.ledger import claims
from sordino.ledger.claims import round_up

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
    seeds: tuple[tuple[Evidence, ...], ...] = ()
    """For each run all seeds of it, where a folder of `sordino train --seeds` was given; else the run alone."""

    def rows(self) -> list[dict[str, Any]]:
        """Returns one table row for each run."""
        return [_row_of(label, seeds) for label, seeds in zip(self.labels, self.seeds, strict=True)]

    def table(self) -> dict[str, Any]:
        """Returns the comparison of runs as JSON holds it."""
        return {
            "runs": [
                {**row, "claim": claims.claim_to_json(run.claim), "folder": str(run.folder)}
                for row, run in zip(self.rows(), self.runs, strict=True)
            ],
            "reference": self.labels[0],
            "differ_by": asdict(self.amounts),
            "differences": [asdict(difference) for difference in self.differences],
            "note": CHOOSING,
        }


def compare_runs(folders: Sequence[str | Path], amounts: Amounts | None = None) -> Comparison:
    """Reads the runs to compare and finds where each begins to differ from the first.

    A folder that `sordino train --seeds` made stands for one run: curves are means over its seeds, and where it differs
    from the others is said of its first seed.
    """
    # The first run is the reference, and every other one is compared with it.
    if len(folders) < 2:
        raise ValueError(f"{len(folders)} run given: need two or more to compare")
    seeds = tuple(_read_seeds(Path(folder)) for folder in folders)
    runs = tuple(several[0] for several in seeds)
    used = Amounts() if amounts is None else amounts
    differences = tuple(find_difference(runs[0], other, used) for other in runs[1:])
    return Comparison(runs, _unique_labels(folders), differences, used, seeds)


def _read_seeds(folder: Path) -> tuple[Evidence, ...]:
    """Returns, for a comparison, the run of a folder, or all runs of a folder of several seeds, in their order.

    Raises:
        ValueError: the folder holds no run, or runs of several seeds of which some were never made.

    """
    several = [path for path in folder.glob("seed-*") if path.is_dir()]
    if not several or (folder / CONFIG).is_file():
        return (read(folder),)
    ordered = sorted(several, key=lambda path: int(path.name.removeprefix("seed-")))
    # The summary is written when all seeds are done; a mean over some of them would look like one over all.
    if not (folder / SUMMARY).is_file():
        raise ValueError(
            f"{str(folder)!r}: not all of its seeds are done (it has no {SUMMARY}); compare single ones, as in {ordered[0]}"
        )
    return tuple(map(read, ordered))


def write(comparison: Comparison, page: Path) -> list[Path]:
    """Writes the page that compares runs, and their accuracies and losses as a PNG file beside it."""
    # Accuracy and loss also go to a file of their own, for slides.
    picture = page.with_suffix(".png")
    panels = [ComparedLines(lines, label, step) for lines, label, _, step in _curves_of(comparison)]
    svg_figures.draw_comparison(panels, "steps", lambda made: svg_figures.write_png(made, picture))
    values = {
        "rows": comparison.rows(),
        "differences": comparison.differences,
        "labels": comparison.labels,
        "amounts": comparison.amounts,
        "choosing": CHOOSING,
        "figures": [(Markup(svg), caption) for svg, caption in _draw_figures(comparison)],
        "sentences": [describe_difference(comparison, number + 1) for number in range(len(comparison.differences))],
    }
    atomic_files.write_file(page, template_environment().get_template("compare.html.jinja").render(values))
    return [page, picture]


Curves = tuple[list[Line], str, str, int | None]


def _curves_of(comparison: Comparison) -> list[Curves]:
    """Returns the curves that compare runs: accuracy, if there is any, and loss against steps.

    Each has the lines, the label of its axis, its name, and the first step at which the runs differ.
    """

    def lines_of(value_of: Callable[[Row], float | None]) -> list[Line]:
        """Returns a line of one number against steps for each compared run that has the number in every evaluation."""
        return [
            _mean_line(f"{label}: {_describe_method(seeds[0])}", seeds, value_of, number)
            for number, (label, seeds) in enumerate(zip(comparison.labels, comparison.seeds, strict=True))
            if all(run.rows and all(value_of(row) is not None for row in run.rows) for run in seeds)
        ]

    def first_step(steps: Iterable[int | None]) -> int | None:
        return min((step for step in steps if step is not None), default=None)

    # Runs on numbers have no accuracy, and then only losses are drawn.
    accuracy = lines_of(lambda row: None if row.test_accuracy is None else 100 * row.test_accuracy)
    # The figure marks where the first of the runs departs from the reference.
    first_difference = first_step(one.accuracy_step for one in comparison.differences)
    accuracy_curves: list[Curves] = (
        [(accuracy, "test accuracy, %", "Test accuracy", first_difference)] if accuracy else []
    )
    first_difference = first_step(one.loss_step for one in comparison.differences)
    return [*accuracy_curves, (lines_of(lambda row: row.test_loss), "test loss", "Test loss", first_difference)]


def _mean_line(label: str, seeds: Sequence[Evidence], value_of: Callable[[Row], float | None], number: int) -> Line:
    """Returns the mean of a compared run's number over its seeds against steps, with one standard deviation
    as a band.
    """
    # Seeds that were stopped are shorter; means are over evaluations that all of them have.
    evaluations = min(len(run.rows) for run in seeds)
    values = [[float(value_of(run.rows[k]) or 0.0) for run in seeds] for k in range(evaluations)]
    means = [statistics.fmean(one) for one in values]
    spread = [statistics.stdev(one) for one in values] if len(seeds) > 1 else []
    # The picture is shown without its page, so the legend says what the band and hollow marks mean.
    averaged = f", mean of {len(seeds)} seeds ± deviation" if spread else ""
    hollow = any(run.guarantee is None for run in seeds)
    return Line(
        f"{label}{averaged}{'; no guarantee' if hollow else ''}",
        [row.step for row in seeds[0].rows[:evaluations]],
        means,
        number,
        low=[mean - deviation for mean, deviation in zip(means, spread, strict=False)],
        high=[mean + deviation for mean, deviation in zip(means, spread, strict=False)],
        hollow=hollow,
    )


def _draw_figures(comparison: Comparison) -> list[tuple[str, str]]:
    """Returns the drawings of the page that compares runs, with their captions."""

    def draw_lines(lines: list[Line], xlabel: str, ylabel: str, name: str, about: str, at: float | None = None) -> str:
        """Returns the lines of all compared runs as one inline SVG figure, with a mark at `at` if it is given."""
        return str(
            svg_figures.draw_comparison(
                [ComparedLines(lines, ylabel, at)], xlabel, lambda made: svg_figures.to_svg(made, name, about)
            )
        )

    # Accuracy and loss against steps.
    figures = [
        (
            draw_lines(lines, "steps", label, f"steps{number}", f"{name} of each run against steps", at),
            f"{name} against steps",
        )
        for number, (lines, label, name, at) in enumerate(_curves_of(comparison))
    ]
    (lines, label, name, _), *_ = _curves_of(comparison)
    # Against ε only runs with a guarantee are drawn, because the others have no ε.
    # Every seed spends the same ε at the same step.
    spent = [
        [row.epsilon for row in seeds[0].rows[: min(len(run.rows) for run in seeds)]] if seeds[0].guarantee else [None]
        for seeds in comparison.seeds
    ]
    private = [
        replace(line, x=[float(value) for value in spent[line.look] if value is not None])
        for line in lines
        if None not in spent[line.look]
    ]
    if private:
        about = f"{name} of each private run against the privacy spent"
        figures.append((draw_lines(private, "ε spent", label, "spent", about), f"{name} against ε spent"))
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
            figures.append((draw_lines(lines, "steps", ylabel, field, caption), caption))
    return figures


def describe_difference(comparison: Comparison, number: int) -> list[str]:
    """Returns, in words for the comparison of runs, how run `number`, counted from 1, differs from the reference."""
    difference, other = comparison.differences[number - 1], comparison.runs[number]
    amounts, sentences = comparison.amounts, []
    # What the runs have in common.
    start = {True: "the same initial network", False: "another initial network", None: "an unknown initial network"}
    # Means have no network and no step of their own at which two runs part.
    if max(len(comparison.seeds[0]), len(comparison.seeds[number])) > 1:
        sentences.append("of several seeds the first is compared:")
    sentences.append(f"from {start[difference.same_start]}")
    seed = comparison.runs[0].get("options", "seed")
    if seed is not None and seed == other.get("options", "seed"):
        sentences.append(f"by the same seed {seed}: the same lots and noise, where both methods draw them alike")
    sentences.append(
        # Where their curves part.
        f"accuracies differ by more than {100 * amounts.accuracy:g} percentage points "
        + (
            f"from step {difference.accuracy_step}"
            if difference.accuracy_step is not None
            else "at no evaluation that both made"
        )
    )
    where = "at no evaluation that both made" if difference.loss_step is None else f"from step {difference.loss_step}"
    sentences.append(f"losses differ by more than {100 * amounts.loss:g} % {where}")
    # Networks on the way are compared only if both runs kept them.
    if difference.distances:
        sentences.append(
            _word_first_step(
                "parameters", f"{100 * amounts.parameters:g} % of the way gone", difference.parameters_step
            )
        )
    if difference.disagreements:
        sentences.append(
            _word_first_step(
                "predictions", f"{100 * amounts.predictions:g} % of the test records", difference.predictions_step
            )
        )
    # How far apart they end.
    if difference.distance is not None:
        relative = "" if difference.relative is None else f", {100 * difference.relative:.3g} % of the reference's way"
        sentences.append(f"final networks lie {difference.distance:.4g} apart{relative}")
    if difference.cosine is not None:
        sentences.append(f"cosine of the total updates {difference.cosine:.4f}")
    if difference.agreement is not None:
        sentences.append(
            f"they agree on {100 * difference.agreement:.2f} % of the test records; only the reference is right on "
            f"{difference.only_reference_right}, only this one on {difference.only_this_right}"
        )
    return sentences + difference.notes


def _word_first_step(what: str, amount: str, step: int | None) -> str:
    where = f"from step {step}" if step is not None else "at no step that both kept"
    return f"{what} differ by more than {amount} {where}"


def _row_of(label: str, seeds: Sequence[Evidence]) -> dict[str, Any]:
    """Returns the row of one run in the table that compares runs; without a guarantee it has a reason and no ε. Of
    several seeds it has means.
    """
    run = seeds[0]
    guarantee, last = run.guarantee, run.last
    # Means are shown only of numbers that every seed has.
    accuracy = Spread.of_values([None if one.last is None else one.last.test_accuracy for one in seeds])
    loss = Spread.of_values([None if one.last is None else one.last.test_loss for one in seeds])
    return {
        "name": label,
        "method": _describe_method(run),
        "epsilon": round_up(guarantee.epsilon) if guarantee else None,
        "delta": guarantee.delta if guarantee else None,
        "reason": None if guarantee else getattr(run.claim, "reason", ""),
        "test_accuracy": None if accuracy is None else accuracy.mean,
        "accuracy_deviation": None if accuracy is None else accuracy.deviation,
        "test_loss": None if loss is None else loss.mean,
        "loss_deviation": None if loss is None else loss.deviation,
        "seeds": len(seeds),
        "steps": run.steps,
        "seconds": None if last is None else last.seconds,
        "status": run.status,
    }


def _describe_method(run: Evidence) -> str:
    """Returns the private gradient of one of the compared runs in words."""
    # The baseline trains by the same words without bound and noise, so both are said.
    said = describe_gradient(table) if isinstance(table := run.config.get("recipe"), Mapping) else "unknown"
    if not run.get("options", "non_private"):
        return said
    return "non-private" if said == PLAIN else f"non-private, {said}"


def _unique_labels(folders: Sequence[str | Path]) -> tuple[str, ...]:
    """Returns the folder names of the compared runs, made unique where two are equal."""
    # Two folders of one name are told apart by the folder above and their place.
    paths = [Path(folder).resolve() for folder in folders]
    names = [path.name for path in paths]
    return tuple(
        name if names.count(name) == 1 else f"{path.parent.name}/{name} ({number})"
        for number, (name, path) in enumerate(zip(names, paths, strict=True), 1)
    )
