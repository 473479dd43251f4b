"""Shows the progress of a run: a bar on a terminal, plain lines elsewhere, nothing in a program.

Shown are public and released quantities: step, epoch, ε spent of its budget, accuracy on the public test set, time left. A
private one, shown only when it was asked for, is marked.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from sordino import validate
from sordino.app.runs.directory import Row
from sordino.ledger.claims import round_up
from sordino.progress_bar import ProgressBar, can_show_progress, is_notebook_stream

if TYPE_CHECKING:
    from rich.console import Console

    from sordino.app.runs.job import Job

Spent = Callable[[], float | None]

_SECONDS_BETWEEN_UPDATES = 0.3
"""Seconds between two looks at ε, which costs some ten milliseconds."""


_WIDE_COLUMNS = 100
"""Columns from which on a line of everything fits."""


class View:
    """Receives what is reported while a run goes on, and shows nothing of it; views that show something replace methods."""

    def say(self, text: str) -> None:
        """Shows a sentence."""

    def begin(self, job: Job, step: int) -> None:
        """Begins to show training from this step on."""

    def show_step(self, step: int, spent: Spent) -> None:
        """Shows that so many steps are done; `spent` computes ε when it is called."""

    def show_evaluation(self, row: Row) -> None:
        """Shows an evaluation on the test set."""

    def show_private(self, name: str, value: float) -> None:
        """Shows a quantity that is neither released nor public."""

    def end(self) -> None:
        """Ends the display, however the training ended."""


Silent = View
"""The view of runs in a program: it shows nothing."""


def format_spent(epsilon: float | None, budget: float | None) -> str:
    """Returns ε spent and its budget in words, as progress views show them.

    >>> format_spent(1.2341, 3.0), format_spent(None, 3.0)
    ('ε 1.235 of 3', 'no guarantee')
    """
    if epsilon is None:
        return "no guarantee"
    return f"ε {round_up(epsilon)}" + ("" if budget is None else f" of {budget:g}")


def summarise_job(job: Job) -> list[str]:
    """Returns the three lines with which a progress view says what is going to be run."""
    recipe, options, resolved = job.settings.recipe, job.settings.options, job.resolved_table()
    # The first line: data and model.
    first = f"{recipe.name}: {resolved['dataset_size']:,} records"
    if job.data.generated:
        first += " (generated)"
    network = f"{recipe.model} with {resolved['trainable']:,} parameters"
    if recipe.features != "none":
        network = f"{recipe.features}, then {network}"
    # The second line: how the gradients are made private.
    if options.non_private:
        noise = "no bound, no noise: the baseline, without a guarantee"
    else:
        noise = f"{recipe.describe()}, bound {recipe.bound:g}, noise multiplier {job.multiplier:.4g}"
        if recipe.ranges is not None:
            noise += f", bounds of columns found privately at {recipe.ranges:g}"
        if recipe.normalise is not None:
            noise += f", normalised privately at {recipe.normalise:g}"
        if recipe.histogram is not None:
            noise += f", classes counted privately at {recipe.histogram:g}"
        if recipe.pca is not None:
            noise += f", {recipe.components} private principal directions at {recipe.pca:g}"
    # The third line: how long, and within which budget.
    target = "" if job.settings.budget is None or options.non_private else f" within ε = {job.settings.budget:g}"
    third = f"{job.steps} steps of {job.expected_batch:g} records on average{target} at δ = {recipe.delta:g}"
    return [f"{first}; {network}", noise, third]


class _ShowingView(View):
    """A view that shows something: it knows the length and the budget of the run, and keeps private values until it shows
    them with their mark.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._budget: float | None = None
        self._hidden: dict[str, float] = {}

    def begin(self, job: Job, step: int) -> None:
        """Notes what the lines about steps and evaluations refer to."""
        self._steps, self._budget = job.steps, job.settings.budget

    def show_private(self, name: str, value: float) -> None:
        """Keeps the value, to be shown with its mark."""
        self._hidden[name] = value

    def marked_values(self) -> str:
        """Returns the private values with their marks, which stay on a line that is copied."""
        return "".join(f"  [private] {name} {value:.3f}" for name, value in self._hidden.items())


class PlainLines(_ShowingView):
    """Prints plain lines, one for each evaluation."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def say(self, text: str) -> None:
        """Prints a line."""
        self._write(text)

    def begin(self, job: Job, step: int) -> None:
        """Prints the progress view's summary of a run and, if the run goes on from a checkpoint, from where."""
        # The summary first, so that a log says what was run even if it is killed.
        super().begin(job, step)
        for line in summarise_job(job):
            self._write(line)
        if step:
            self._write(f"going on after step {step}")

    def show_evaluation(self, row: Row) -> None:
        """Prints the evaluation as a line."""
        self._write(format_evaluation(row, self._steps, self._budget, self.marked_values()))


def format_evaluation(row: Row, steps: int, budget: float | None, marked: str, *, short: bool = False) -> str:
    """Returns an evaluation as one line of a progress view; `marked` are private values with their marks."""
    place, spent = f"{row.step:>{len(str(steps))}}/{steps}", format_spent(row.epsilon, budget)
    if short:
        return f"{place}  {spent:<14}  test {_format_score(row)}  {row.seconds:.0f} s{marked}"
    # A problem without classes has no accuracy; an AUC is there only where it was measured.
    accuracy = "" if row.test_accuracy is None else f"accuracy {row.test_accuracy:6.2%}  "
    auc = (row.measures or {}).get("auc")
    accuracy += "" if auc is None else f"AUC {auc:.3f}  "
    return (
        f"step {place}  epoch {row.epoch:5.1f}  {spent:<14}  "
        f"test {accuracy}loss {row.test_loss:.3f}  {row.seconds:5.1f} s{marked}"
    )


def _format_score(row: Row) -> str:
    """Returns the accuracy or, where there is none, the loss."""
    return f"loss {row.test_loss:.4g}" if row.test_accuracy is None else f"{row.test_accuracy:6.2%}"


class Bar(_ShowingView):
    """Shows a progress bar under the lines, on a terminal."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        super().__init__()
        self._console = console
        # A narrow terminal has no room for epochs and elapsed time.
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            *([TextColumn("epoch {task.fields[epoch]}")] if console.width >= _WIDE_COLUMNS else []),
            TextColumn("[bold cyan]{task.fields[spent]}"),
            TextColumn("[green]{task.fields[accuracy]}"),
            TextColumn("[magenta]{task.fields[hidden]}"),
            *([TimeElapsedColumn(), TextColumn("left")] if console.width >= _WIDE_COLUMNS else []),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task("", start=False, epoch="", spent="", accuracy="", hidden="")
        self._steps_per_epoch, self._last_update = 1.0, 0.0

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self._console.print(text, markup=False, highlight=False, style="dim")

    def begin(self, job: Job, step: int) -> None:
        """Prints the progress view's summary of a run and starts the bar."""
        super().begin(job, step)
        self._steps_per_epoch = job.steps_per_epoch
        # Markup is off: square brackets in a path or a name would be taken for a style.
        first, *other_lines = summarise_job(job)
        self._console.print(first, markup=False, highlight=False, style="bold")
        for line in other_lines:
            self._console.print(line, markup=False, highlight=False)
        # A resumed run has its bar begin at the step where it goes on, or it would seem to start anew.
        self._progress.reset(self._task, total=job.steps, completed=step, description=f"step {step}/{job.steps}")
        self._progress.start()

    def show_step(self, step: int, spent: Spent) -> None:
        """Moves the bar of the progress view on a terminal; ε is computed only a few times a second, because it takes
        some milliseconds.
        """
        # Computing ε takes milliseconds, a step sometimes less; so most steps only move the bar.
        now = time.perf_counter()
        if now - self._last_update < _SECONDS_BETWEEN_UPDATES and step < self._steps:
            self._progress.update(self._task, completed=step)
            return
        self._progress.update(
            self._task,
            completed=step,
            description=f"step {step}/{self._steps}",
            epoch=f"{step / self._steps_per_epoch:.1f}",
            spent=format_spent(spent(), self._budget),
            hidden=self.marked_values().strip().replace("[", "\\["),
        )
        self._last_update = time.perf_counter()

    def show_evaluation(self, row: Row) -> None:
        """Prints the evaluation as a line above the bar of the progress view on a terminal."""
        line = format_evaluation(
            row, self._steps, self._budget, self.marked_values(), short=self._console.width < _WIDE_COLUMNS
        )
        self._console.print(line, markup=False, highlight=False)
        self._progress.update(self._task, accuracy=f"test {_format_score(row).strip()}")

    def end(self) -> None:
        """Removes the bar; the lines stay."""
        self._progress.stop()


class OneLine(_ShowingView):
    """Shows a bar on one line, in a notebook; sentences and evaluations stand above it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._bar: ProgressBar | None = None
        self._spent, self._score, self._last_look = "", "", 0.0

    def say(self, text: str) -> None:
        """Prints a line above the bar of the progress view in a notebook."""
        if self._bar is not None:
            self._bar.clear()
        self._stream.write(f"{text}\n")

    def begin(self, job: Job, step: int) -> None:
        """Prints the summary of a run and starts the bar of the progress view in a notebook."""
        super().begin(job, step)
        for line in summarise_job(job):
            self.say(line)
        self._bar = ProgressBar(job.steps, "step", self._stream)
        self._bar.update(step)

    def show_step(self, step: int, spent: Spent) -> None:
        """Moves the bar of the progress view in a notebook; ε is computed only a few times a second."""
        assert self._bar is not None, "a view begins before it shows steps"
        # Computing ε takes milliseconds, a step sometimes less; so most steps only move the bar.
        now = time.perf_counter()
        if now - self._last_look >= _SECONDS_BETWEEN_UPDATES:
            self._spent, self._last_look = format_spent(spent(), self._budget), now
        self._bar.update(step, f"{self._spent}  {self._score}{self.marked_values()}".strip())

    def show_evaluation(self, row: Row) -> None:
        """Keeps the accuracy on the test records, to be shown with the next step."""
        self._score = f"test {_format_score(row).strip()}"

    def end(self) -> None:
        """Ends the line of the bar."""
        if self._bar is not None:
            self._bar.close()


def choose_fit_view(progress: bool | None) -> View:
    """Returns the progress view of `sordino.fit`: a bar on a terminal or in a notebook, nothing elsewhere or if it is
    not wanted.
    """
    if progress is not None:
        validate.instance("progress", progress, bool, "True, False or None")
    # A program without a terminal gets no output that it did not ask for.
    if progress is False or not can_show_progress(sys.stderr):
        return Silent()
    if is_notebook_stream(sys.stderr):
        return OneLine(sys.stdout)
    return choose_view(quiet=True)


def choose_view(*, quiet: bool) -> View:
    """Returns the progress view of a run: a bar or plain lines, depending on whether the output is a terminal.

    If standard output is meant for a program (`quiet`), the bar goes to standard error.
    """
    from rich.console import Console

    # A program reads standard output, so the bar goes elsewhere.
    console = Console(stderr=quiet)
    if console.is_terminal:
        return Bar(console)
    return Silent() if quiet else PlainLines(lambda text: print(text, flush=True))  # noqa: T201
