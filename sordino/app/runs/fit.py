"""`fit` carries out a recipe from beginning to end, and `resume` continues an interrupted run.

    history = sordino.fit("mnist", epsilon=3.0)
    print(history.test_accuracy, history.claim)

Ctrl-C and SIGTERM ask a run to stop after its current step; a second signal ends the process at once.
"""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from sordino import html_views, validate
from sordino.accounting import Budget
from sordino.app.runs import Recipe, directory
from sordino.app.runs.declared_file import OwnFile
from sordino.app.runs.directory import (
    CONFIG,
    FAILED,
    FINISHED,
    INITIAL,
    METRICS,
    MODEL,
    RUNNING,
    STOPPED,
    Checkpoint,
    Row,
    Run,
    lock_folder,
    one_line,
    read_further_releases,
)
from sordino.app.runs.encoded_records import ENCODER
from sordino.app.runs.evaluate import describe_measures
from sordino.app.runs.given_data import GIVEN, GivenData, NamedInputs
from sordino.app.runs.job import Job, assemble_job
from sordino.app.runs.progress_view import Silent, View, choose_fit_view
from sordino.app.runs.settings import Config, Settings, make_settings, read_config
from sordino.app.runs.training_loop import Training, TrainingNotFinite, read_key
from sordino.app.runs.write_ahead import FollowerLedger, WriteAheadLedger, was_begun
from sordino.distributed.process_group import ranks_of
from sordino.integrations.same_records import stand_in_for
from sordino.ledger.claims import Claim, Guarantee, round_up
from sordino.ledger.voiding import ClaimVoided
from sordino.lots.privacy_units import RECORD

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Remembers whether somebody asked to stop."""

    def __init__(self) -> None:
        self.signal_name: str | None = None

    def __call__(self) -> bool:
        """Returns True once a signal has come."""
        return self.signal_name is not None


@contextmanager
def watch_signals() -> Iterator[StopRequest]:
    """Yields a `StopRequest` for `fit` and `resume` that signals set; outside the main thread, where Python receives
    none, it is never set.
    """
    stop_request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop_request
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        """Notes that `fit` or `resume` was asked to stop by a signal; a second signal interrupts at once."""
        # A second signal means now: the step in progress is given up, and a later resume replays or charges it.
        if stop_request.signal_name is not None:
            raise KeyboardInterrupt
        stop_request.signal_name = signal.Signals(number).name

    # The former handlers come back afterwards, however the run ends, so that a program keeps its own.
    former_handlers = {each: signal.signal(each, on_signal) for each in _SIGNALS}
    try:
        yield stop_request
    finally:
        for each, handler in former_handlers.items():
            signal.signal(each, handler)


NONPRIVATE_FILE = "NOT-PRIVATE-baseline.json"
NONPRIVATE_WARNING = (
    "These measures belong to a network that was trained on the same records without privacy. The claim of this run does "
    "not cover them. Do not publish them as private."
)


class RunFailed(RuntimeError):
    """Raised when a run cannot go on; the message says why and what is kept of it."""


@dataclass(frozen=True, eq=False)
class History:
    """The result of a run: metrics, claim, model and directory."""

    rows: tuple[Row, ...]
    claim: Claim
    model: nn.Module
    run: Path
    seconds: float
    status: str
    nonprivate_measures: Mapping[str, Any] = field(default_factory=dict)
    """Measures of the same network trained without privacy, if `baseline="nonprivate"` asked for it. Not covered by the
    claim, and not to be published as private."""

    @property
    def test_accuracy(self) -> float | None:
        """The test accuracy at the last evaluation; None if the records have numbers and no classes."""
        return self.rows[-1].test_accuracy if self.rows else None

    @property
    def test_loss(self) -> float | None:
        """The test loss at the last evaluation."""
        return self.rows[-1].test_loss if self.rows else None

    @property
    def measures(self) -> dict[str, Any]:
        """AUC, F1, calibration and others at the last evaluation, or RMSE and R² of numbers, and a `baseline`."""
        return dict(self.rows[-1].measures or {}) if self.rows else {}

    def __repr__(self) -> str:
        """Returns the run as a short table: some evaluations, the measures at the end, and the claim as a sentence."""
        lines = [f"History of {self.run}: {self._describe_end()}"]
        lines += (
            [f"  {line}" for line in align_columns([_HEAD, *map(_cells_of, self._some_rows())])] if self.rows else []
        )
        lines += [
            f"  {name} {value}" + (f" (baseline {base})" if base else "") for name, value, base in self._measure_rows()
        ]
        return "\n".join([*lines, f"  {self.claim!r}"])

    def _repr_html_(self) -> str:
        """Returns the history that `fit` returned as a notebook shows it: a table of evaluations, the measures beside
        the baseline, the claim.
        """
        evaluations = html_views.render_table(_HEAD, map(_cells_of, self._some_rows())) if self.rows else ""
        measured = [*self._measure_rows()]
        kind = (self.measures.get("baseline") or {}).get("kind", "baseline")
        if measured:
            evaluations += html_views.render_table(("at the end", "model", f"always the {kind}"), measured)
        card = html_views.render_card(f"{self.run.name}: {self._describe_end()}", [], below=evaluations)
        return card + self.claim._repr_html_()

    def _describe_end(self) -> str:
        """Returns how the run ended, after how many steps and how long."""
        steps = f"{self.rows[-1].step:,} steps, " if self.rows else ""
        return f"{self.status}, {steps}{self.seconds:.1f} s"

    def _some_rows(self) -> list[Row]:
        """Returns the evaluations that are shown of what `fit` did: all, or some at even distances with the last one."""
        if len(self.rows) <= _MOST_SHOWN_ROWS:
            return list(self.rows)
        distance = (len(self.rows) - 1) / (_MOST_SHOWN_ROWS - 1)
        return [self.rows[round(number * distance)] for number in range(_MOST_SHOWN_ROWS)]

    def _measure_rows(self) -> list[tuple[str, str, str]]:
        return describe_measures(self.measures)

    @property
    def finished(self) -> bool:
        """Whether all steps were taken; False if the run was asked to stop before its last one."""
        return self.status == FINISHED


_MOST_SHOWN_ROWS = 6
_HEAD = ("step", "epoch", "ε", "test accuracy", "test loss")


def _cells_of(row: Row) -> tuple[str, ...]:
    """Returns the cells of one evaluation in the table by which the history of a `fit` is shown."""
    accuracy = "" if row.test_accuracy is None else f"{row.test_accuracy:.2%}"
    epsilon = "none" if row.epsilon is None else round_up(row.epsilon)
    return f"{row.step:,}", f"{row.epoch:.1f}", epsilon, accuracy, f"{row.test_loss:.4g}"


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the table of evaluations that `fit` returned as lines of text, aligned to the right.

    >>> align_columns([("step", "loss"), ("10", "0.5")])
    ['step  loss', '  10   0.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]


def fit(
    recipe: str | Recipe | nn.Module,
    data: Any = None,
    *,
    test: Any = None,
    public_validation: Any = None,
    patience: int | None = None,
    out: str | Path | None = None,
    parameters: Mapping[str, float] | None = None,
    budget_stop: bool = False,
    budget: str | Path | None = None,
    view: View | None = None,
    progress: bool | None = None,
    device: str | torch.device | None = None,
    **given: Any,
) -> History:
    """Trains by a recipe, or its name, with any fields of `Recipe` and `settings.Options` in place of its own.

    Or train a model of your own on `data`, a dataset of pairs (x, y) or of dicts with `labels`, as of Hugging Face's
    `datasets`, or columns by name, in memory: classes where the targets are whole numbers, else numbers. Accuracy and
    loss are those on `test`, or on a tenth of the data that is held out. Or name a model and give an `OwnFile`:
    fit("linear", OwnFile(path="people.csv", target="income"), epsilon=3.0).

    Args:
        recipe: a recipe, its name, or a model.
        data: records of your own, for a model.
        test: held-out records of your own.
        public_validation: for a model of your own, records like `data` that are public, which the claim then rests on: the
            run ends with the model of the evaluation with the lowest loss on them.
        patience: take no more steps after so many evaluations in a row without a lower loss on them. This saves time; the
            claim is that of all steps, because when to stop was chosen by what the run had released.
        out: the run directory, new or empty; without it one is made in `runs`.
        parameters: the method's own.
        budget_stop: with both epsilon and noise_multiplier, stop before ε is exceeded.
        budget: a file of `sordino budget` that the run is entered in before it begins; refused if it does not fit.
        view: what is shown meanwhile, in place of the bar.
        progress: whether a bar shows steps, ε spent and accuracy on the test records; by default on a terminal and in a
            notebook, and never where the output goes to a file or a program.
        device: where to compute: "auto", "cpu", "cuda:0" or another device, to which the model is moved. Without it, a
            model of your own is trained where it is, and a model that a recipe names on the CPU.
        **given: fields of `Recipe` and `settings.Options`: epsilon, delta, steps, rate, bound, learning_rate, …

    Returns:
        A `History`: the claim, the trained model, released metrics, and the run directory. A report, which
        `sordino train` writes at the end, is made by `sordino.app.report.write(history.run)`.

    Privacy:
        Everything that touches the records is in one ledger, and `history.claim` is about all of it.

    Examples:
        >>> import sordino, tempfile
        >>> history = sordino.fit("spiral", steps=20, records=500, seed=0, out=tempfile.mkdtemp())
        >>> history.finished, history.claim.delta
        (True, 1e-05)

    """
    # Refuse arguments of the wrong kind before anything is read or written.
    for name, path in (("out", out), ("budget", budget)):
        if path is not None:
            validate.instance(name, path, (str, Path), "a path")
    if parameters is not None:
        validate.instance("parameters", parameters, Mapping, "a mapping from the method's parameters to numbers")
    if device is not None:
        validate.instance("device", device, (str, torch.device), "the name of a device, such as auto, cpu or cuda:0")
        given["device"] = str(device)
    settings = _settings_of(recipe, data, test, public_validation, patience, given, parameters, budget_stop)
    return carry_out_run(settings, out, view or choose_fit_view(progress), budget, data_source=_source_of(settings))


def _source_of(settings: Settings) -> Any:
    """Returns the object by which the records of a `fit` are recognised in a second one, or None for a recipe's own.

    A dataset is recognised by identity, a pair of arrays by its rows, and a file by its path.
    """
    if isinstance(settings.own, OwnFile):
        return _files.setdefault(str(Path(settings.own.path).resolve()), _File())
    if settings.own is None:
        return None
    source = settings.own.source
    is_pair_of_arrays = isinstance(source, tuple | list) and len(source) == 2 and hasattr(source[0], "shape")
    return stand_in_for(source[0]) if is_pair_of_arrays else source


class _File:
    """Stands for the records of one file."""


_files: dict[str, _File] = {}


def _settings_of(
    recipe: str | Recipe | nn.Module,
    data: Any,
    test: Any,
    public_validation: Any,
    patience: int | None,
    given: dict[str, Any],
    parameters: Mapping[str, float] | None,
    budget_stop: bool,
) -> Settings:
    """Returns the settings for what `fit` was given: a recipe, a model and records in memory, or a named model and a
    file.
    """
    if (public_validation is not None or patience is not None) and not isinstance(recipe, nn.Module):
        raise TypeError("public_validation and patience: are for a model and records of your own, in memory")
    # A named model on a file of the user's own.
    if isinstance(data, OwnFile):
        if test is not None or not isinstance(recipe, str):
            raise TypeError("an OwnFile: need the name of a model before it, and its test file as OwnFile(test=…)")
        return make_settings(None, {**given, "model": recipe}, parameters, budget_stop=budget_stop, own=data)
    # A model and records in memory.
    if isinstance(recipe, nn.Module):
        if data is None:
            raise TypeError("a model without data: give a dataset of pairs (x, y) or of dicts after it")
        given_data = GivenData.from_datasets(recipe, data, test, public_validation, patience)
        return make_settings(None, given, parameters, budget_stop=budget_stop, own=given_data)
    # What is left is a recipe, which brings its own data.
    if data is not None or test is not None:
        raise TypeError(f"data beside the recipe {recipe!r}, which has its own: give a model in its place")
    return make_settings(recipe, given, parameters, budget_stop=budget_stop)


def carry_out_run(
    settings: Settings,
    out: str | Path | None,
    view: View,
    budget: str | Path | None = None,
    data_source: Any = None,
) -> History:
    """Carries out the new run of a `fit`; if there is a budget, the run is entered in it before it releases
    anything.

    `data_source` stands for the records: the claim names other runs of this process that were given the same one.
    """
    if settings.options.baseline is not None and isinstance(settings.own, GivenData):
        raise ValueError(
            "baseline: would train your own model a second time, without privacy; train a copy by yourself"
        )
    run = Run.on_all_ranks(Path(out) if out is not None else folder_for(settings.recipe.name))
    _refuse_private_looks(settings, run)
    with ExitStack() as open_locks:

        def begin_run() -> Job:
            """Begins the run of a `fit`: creates the run directory, reads the data and enters the planned cost in the
            budget.

            On failure nothing was released yet, so the directory is removed again.
            """
            if run.is_writer:
                run.create(open_locks)
            try:
                job = assemble_job(settings, view.say)
                # The budget is charged before anything is released, and a run that does not fit never begins.
                if budget is not None and run.is_writer:
                    _enter_in_budget(job.planned_claim(), Budget(budget), run.folder.name)
                return job
            except BaseException:
                if run.is_writer:
                    run.discard()
                raise

        # Data is fetched once: the first rank assembles the job before the others do.
        job = run.run_first_before_others(begin_run)
        history = _begin_and_train(job, run, view, data_source)
    return _with_nonprivate_baseline(history, settings, view)


def _refuse_private_looks(settings: Settings, run: Run) -> None:
    """Refuses options that show private facts of a lot if a `fit` is distributed: a rank would show its own part of a lot,
    which is neither the lot nor public.
    """
    if run.ranks is not None and run.ranks.size > 1:
        for name in ("show_private", "diagnose", "baseline"):
            if getattr(settings.options, name):
                raise ValueError(f"{name}: each of several ranks has its own records of a lot; leave it out")


def _with_nonprivate_baseline(history: History, settings: Settings, view: View) -> History:
    """Returns the history of a `fit` with the measures of the same network trained without privacy, if the settings ask
    for it.

    Privacy: the claim of the run names these measures as not covered, from before its first step on. The network without
    privacy is deleted before this function returns, because it could tell the records; only its measures are kept, in a
    file whose name says what they are, and no report shows them.
    """
    if settings.options.baseline is None or not history.finished:
        return history
    view.say("training the same network without privacy, for comparison; the claim does not cover its measures")
    # The same settings, with neither bound nor noise; nothing of it is kept but numbers.
    options = replace(settings.options, baseline=None, non_private=True, keep_key=False, trace=False, diagnose=None)
    plain = replace(settings, recipe=settings.recipe.but(noise_multiplier=0.0), options=options)
    with tempfile.TemporaryDirectory(prefix="sordino-not-private-") as folder:
        measures = carry_out_run(plain, Path(folder) / "run", Silent()).measures
    Run(history.run).write_json(NONPRIVATE_FILE, {"warning": NONPRIVATE_WARNING, "measures": measures})
    return replace(history, nonprivate_measures=measures)


def _enter_in_budget(planned: Claim, budget: Budget, name: str) -> None:
    """Enters the planned cost of a `fit` in a budget before its run begins; raises if it does not fit."""
    if not isinstance(planned, Guarantee):
        raise ValueError(f"a run without a guarantee cannot be entered in a budget: {planned.reason}")
    budget.spend(planned.event, name)


def resume(
    folder: str | Path,
    view: View | None = None,
    *,
    model: nn.Module | None = None,
    data: Any = None,
    test: Any = None,
    public_validation: Any = None,
    patience: int | None = None,
) -> History:
    """Continues a run of `fit` that was stopped, killed or failed; for a finished one, returns its result.

    Of a run of `fit(model, data)`, model and data have to be given again, and validation records with their patience: they
    are in no file.
    """
    progress_view, run = view or Silent(), Run(Path(folder), ranks_of(None))
    # The directory stays locked, and the ledger open, until the run stops again.
    with ExitStack() as open_locks:
        config, was_entered = run.run_on_first(lambda: _lock_and_read_config(run.folder, open_locks))
        validation = (public_validation, patience)
        settings = _restore_given_data(config.to_settings(), run, model, data, test, validation)
        if not was_entered:  # killed before anything was released
            job = run.run_first_before_others(lambda: assemble_job(settings, progress_view.say))
            return _begin_and_train(job, run, progress_view)
        # The ledger says what may have been released; the newest complete checkpoint says where to continue.
        ledger = _open_ledger(run, open_locks)
        checkpoint, passed_over, secret = run.run_on_first(lambda: _read_latest_checkpoint(run, ledger))
        for why in passed_over:
            progress_view.say(f"passed over {why}")
        _restore_threads(ledger)
        # Nothing is calibrated again: noise and steps are those that the first process resolved.
        job = run.run_first_before_others(lambda: assemble_job(settings, progress_view.say, config.resolved))
        training = Training(job, run.as_begun(ledger.environment), ledger, progress_view)
        try:
            training.resume(checkpoint, secret)
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(
                f"{run.folder}: the checkpoint of step {checkpoint.step} does not fit this version or this model ({error})"
            ) from error
        # What was released about the records after training is charged again, and stays in the claim.
        for event, what in read_further_releases(run.folder):
            training.ledger.release(event)
            training.ledger.declare(f"{what}: of the records that the run was trained on")
        planned = job.planned_claim(
            training.ledger, training.private.steps, is_within_phase=training.private.is_within_phase
        )
        run.write_privacy(planned, RUNNING, job.steps, settings.budget)  # not that of where it stopped: it goes on
        return _train_to_end(training)


def _restore_given_data(
    settings: Settings, run: Run, model: nn.Module | None, data: Any, test: Any, validation: tuple[Any, int | None]
) -> Settings:
    """Returns the settings for `resume` with the model and data that `fit` was given in memory, which the caller must
    give again.
    """
    # Model and records in memory are in no file, so exactly the runs that were given them need them again.
    needed = settings.recipe.dataset == GIVEN
    if needed != (model is not None and data is not None):
        wanted = f"sordino.app.runs.fit.resume({str(run.folder)!r}, model=model, data=data), with what `fit` was given"
        raise ValueError(f"{run.folder}: its model and data {f'are in no file; {wanted}' if needed else 'are its own'}")
    if model is None:
        return settings
    return replace(settings, own=GivenData.from_datasets(model, data, test, *validation))


def _lock_and_read_config(folder: Path, open_locks: ExitStack) -> tuple[Config, bool]:
    """Returns what the `fit` that is resumed was asked for, and whether anything of it may have been released, and
    locks its folder.
    """
    run = Run.open(folder)
    lock_folder(folder, open_locks)
    # A checkpoint, a row of metrics or a model shows that training began, whatever the ledger says.
    traces = (
        bool(directory.list_checkpoints(run.checkpoints)) or (folder / METRICS).exists() or (folder / MODEL).exists()
    )
    return read_config(folder / CONFIG), traces or was_begun(folder)


def _read_latest_checkpoint(
    run: Run, ledger: WriteAheadLedger | FollowerLedger
) -> tuple[Checkpoint, list[str], dict[str, Any] | None]:
    """Returns the newest complete checkpoint from which a `fit` is resumed, why others were passed over, and the noise
    key or None if it is gone.

    Raises:
        DamagedLedger: if the ledger is not the one that the checkpoint was saved beside.

    """
    checkpoint, passed_over = directory.read_latest(run.checkpoints)
    assert isinstance(ledger, WriteAheadLedger), "asked of the first rank alone"
    ledger.check_position(checkpoint.state.get("entered"))
    return checkpoint, passed_over, read_key(run.folder)


def _open_ledger(run: Run, open_locks: ExitStack) -> WriteAheadLedger | FollowerLedger:
    """Opens the write-ahead ledger for `fit` or `resume` on the first rank; the other ranks get a copy of
    what it says.
    """
    # The ledger stays with the rank that holds its file; only what it says is sent to the others.
    own_ledger: list[WriteAheadLedger] = []

    def open_and_describe() -> tuple[int, int, dict[str, Any], bool]:
        own_ledger.append(open_locks.enter_context(WriteAheadLedger(run.folder)))
        return own_ledger[0].released_below, own_ledger[0].lineage, own_ledger[0].environment, own_ledger[0].is_complete

    ledger_state = run.run_on_first(open_and_describe)
    return own_ledger[0] if own_ledger else FollowerLedger(*ledger_state)


def _begin_and_train(job: Job, run: Run, view: View, data_source: Any = None) -> History:
    """Writes the files that a run of `fit` begins with, then trains."""
    # The planned claim is on the disk before anything is released, so a killed run reports at least what it spent.
    run.write_config(job.config_table())
    run.write_json(ENCODER, job.data.encoder.table())
    run.write_model(INITIAL, job.problem.model)
    run.write_privacy(job.planned_claim(), RUNNING, job.steps, job.settings.budget)
    # What a replay must find again is written with the first line of the ledger.
    environment_now = run.current_environment()
    with (
        WriteAheadLedger(run.folder, new=True, environment=environment_now)
        if run.is_writer
        else FollowerLedger(environment=environment_now) as ledger
    ):
        training = Training(job, run, ledger, view)
        if data_source is not None:
            training.ledger.uses(data_source, job.settings.recipe.unit or RECORD)
        training.begin()
        return _train_to_end(training)


def _train_to_end(training: Training) -> History:
    """Trains for `fit` or `resume`, and leaves the run directory in order however the training ends."""
    job, run, view = training.job, training.run, training.view
    view.begin(job, training.private.steps)
    try:
        with watch_signals() as stop_request:
            is_finished = training.train(stop_request)
        if is_finished:
            training.restore_best()
            with training.use_tested_model() as model:
                run.write_model(MODEL, model)
    # Failures with a known cause keep the last checkpoint, and the message says how to continue.
    except (TrainingNotFinite, OSError, MemoryError) as error:
        view.end()
        _write_final_claim(training, FAILED)
        kept_state = f"the state after step {training.saved_step} is kept: `sordino resume {run.folder}`"
        if isinstance(error, TrainingNotFinite):  # the same noise must not meet other steps
            kept_state = f"{kept_state} goes on from it with new noise, and the steps since are charged and left out"
        raise RunFailed(f"{one_line(error)}; {kept_state}") from error
    # A strict run stops where it loses its guarantee; its files must not go on promising one.
    except ClaimVoided:
        view.end()
        _write_final_claim(training, FAILED)
        raise
    except BaseException:
        view.end()
        raise
    view.end()
    # The claim of what was really done replaces the plan's.
    status, seconds = FINISHED if is_finished else STOPPED, training.elapsed_seconds()
    claim = _write_final_claim(training, status)
    if is_finished:
        training.erase_key()
    if training.average is not None:
        training.average.swap()
    # A model that takes its inputs by name was wrapped; the user gets back the model that was given.
    model = training.model.model if isinstance(training.model, NamedInputs) else training.model
    return History(tuple(training.rows), claim, model, run.folder, seconds, status)


def _write_final_claim(training: Training, status: str) -> Claim:
    """Replaces the planned claim in privacy.json, at the end of a `fit`, by the claim of what was done, and
    returns it.
    """
    # The claim is made first: if the disk is full, the claim of the plan stays, which is never smaller.
    claim = training.claim()
    try:
        training.run.write_privacy(claim, status, training.private.steps, training.job.settings.budget)
    except OSError:
        if status != FAILED:  # the plan's claim, which is no smaller, stays
            raise
    return claim


def folder_for(name: str) -> Path:
    """Returns a folder for a `fit` that was given none, named by recipe and time; a second run within a second gets a
    number.
    """
    # Two runs that begin within one second would have one name, so the later one gets a number.
    folder = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return folder if not folder.exists() else next(each for each in numbered if not each.exists())


def _restore_threads(ledger: WriteAheadLedger | FollowerLedger) -> None:
    """Sets the number of threads that a `fit` began with when it is resumed, because sums are split by threads and a
    replay needs the same bits.
    """
    # Files of a killed process may lack the number, or hold nonsense; then torch keeps its own.
    threads = ledger.environment.get("threads")
    if isinstance(threads, int) and threads > 0:
        torch.set_num_threads(threads)
