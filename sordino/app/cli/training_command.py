"""Carries out a command that trains: joins the ranks, trains, and prints the claim and the paths, or what went wrong.

torchrun and other launchers set RANK and WORLD_SIZE. All ranks train, and the first one prints.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from sordino.accounting import BudgetExhausted
from sordino.app.report.model_card import CARD
from sordino.app.runs.directory import CONFIG, FINISHED, MODEL
from sordino.app.runs.evaluate import describe_measures
from sordino.app.runs.fit import History, RunFailed
from sordino.app.runs.progress_view import Silent, View, choose_view
from sordino.app.runs.run_device import resolve_device
from sordino.app.runs.settings import read_config
from sordino.app.runs.several_seeds import SeveralSeeds
from sordino.distributed.shared_lot import StoppedElsewhere
from sordino.ledger import claims
from sordino.ledger.voiding import ClaimVoided, ClaimVoidedWarning
from sordino.noise_key import NAME

STOPPED = 130
FAILED = 1


BACKEND = "gloo"
"""The library that carries tensors of the CPU between ranks."""


@contextmanager
def join_process_group(device: str | None = None) -> Iterator[bool]:
    """Joins the ranks of a training command that a launcher such as torchrun started into one process group, if there
    are any; yields whether this process prints and writes.

    `device` is what the run's option of that name says. If it is an accelerator, the group gets the library for its
    tensors too, such as nccl, and the process takes the device of its own number.
    """
    # Without a launcher there is one process, which prints.
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield True
        return
    # Sums travel as whole numbers by the CPU's library; the accelerator's is there for its own tensors.
    own_device = resolve_device(device)
    if own_device is None or own_device.type == "cpu":
        dist.init_process_group(BACKEND)
    else:
        torch.accelerator.set_device_index(own_device.index or 0)
        library = dist.get_default_backend_for_device(own_device)
        dist.init_process_group(f"cpu:{BACKEND},{own_device.type}:{library}")
    try:
        yield dist.get_rank() == 0
    finally:
        dist.destroy_process_group()


Result = TypeVar("Result", History, SeveralSeeds)


def carry_out_training(
    name: str, device: str | None, *, quiet: bool, train: Callable[[View], Result], report: Callable[[Result], int]
) -> int:
    """Carries out a command that trains on every rank, and prints on the first one; returns the exit code.

    Args:
        name: of the command.
        device: what the option of that name says.
        quiet: whether standard output is for a program, so that no progress goes to it.
        train: trains and shows progress in a view.
        report: prints the result and returns the exit code.

    """
    with join_process_group(device) as is_first_rank:
        # The other ranks train in silence and end with the same exit code.
        view = choose_view(quiet=quiet) if is_first_rank else Silent()

        def train_and_report() -> int:
            result = train(view)
            return report(result) if is_first_rank else exit_code_of(result)

        return run_and_report_failures(name, train_and_report)


def exit_code_of(result: History | SeveralSeeds) -> int:
    """Returns the exit code of a command that trained: 130 if it was asked to stop before the last step."""
    return 0 if result.finished else STOPPED


def report_outcome(history: History, *, report: bool, as_json: bool) -> int:
    """Prints the outcome of a training command, after writing the report if it is wanted; returns 130 if the run was
    asked to stop.
    """
    if report:
        _write_report(history)
    stopped = not history.finished
    # One JSON object for programs, or the claim in words for people.
    if as_json:
        print(
            json.dumps(
                {
                    "status": history.status,
                    "test_accuracy": history.test_accuracy,
                    "test_loss": history.test_loss,
                    "measures": history.measures,
                    "nonprivate_measures": dict(history.nonprivate_measures) or None,
                    "claim": claims.claim_to_json(history.claim),
                    "seconds": history.seconds,
                    "run": str(history.run),
                    "noise_key": str(history.run / NAME) if (history.run / NAME).exists() else None,
                }
            )
        )
    else:
        # Figures first, then the claim, then where everything is.
        accuracy = "" if history.test_accuracy is None else f"test accuracy {history.test_accuracy:.2%}, "
        accuracy += "" if history.test_loss is None else f"test loss {history.test_loss:.4g}, "
        steps = history.rows[-1].step if history.rows else 0
        ended = f", last evaluated at step {steps}" if stopped else ""
        print(f"\n{accuracy}{history.seconds:.1f} s of training{ended}")
        for line in [*measure_lines(history.measures, history.nonprivate_measures), *_explain_accuracy(history)]:
            print(line)
        print(f"\n{history.claim}\n")
        print(f"run directory  {history.run}")
        if (history.run / "report.html").exists():
            print(f"report         {history.run / 'report.html'}")
        if (history.run / CARD).exists():
            print(f"model card     {history.run / CARD}")
        print(f"noise key      {_describe_noise_key(history)}")
        if not stopped and (history.run / MODEL).exists() and _takes_files(history):
            print(f"use it         sordino predict {history.run} new.csv --out predictions.csv")
    # What to type next goes to standard error, so that it never mixes with JSON.
    if stopped:
        print(f"stopped and saved; go on with: sordino resume {history.run}", file=sys.stderr)
    return exit_code_of(history)


def measure_lines(measures: Mapping[str, Any], without_privacy: Mapping[str, Any] | None = None) -> list[str]:
    """Returns the lines of a training command's outcome with the measures of the last evaluation beside those of the
    baseline, aligned.
    """
    # Model and baseline side by side, so that a number that means nothing is seen to mean nothing.
    rows = describe_measures(measures)
    if not rows:
        return []
    kind = (measures.get("baseline") or {}).get("kind", "baseline")
    table: list[tuple[str, ...]] = [("on the test records", "model", f"always the {kind}"), *rows]
    # A network without privacy, if one was asked for, stands in a column of its own.
    without = {name: value for name, value, _ in describe_measures(without_privacy or {})}
    if without:
        table = [(*row, without.get(row[0], "")) for row in table]
        table[0] = (*table[0][:-1], "without privacy")
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    lines = []
    for row in table:
        numbers = (f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join([f"{row[0]:<{widths[0]}}", *numbers]).rstrip())
    if without:
        lines += [
            "",
            "The last column is not private: it was made of the same records without noise, and the claim does not",
        ]
        lines += ["cover it. Do not publish it as private. The network behind it was deleted."]
    return lines


def _explain_accuracy(history: History) -> list[str]:
    """Returns the lines of a training command's outcome that explain an accuracy no better than that of always saying
    one class.
    """
    measures, baseline = history.measures, history.measures.get("baseline") or {}
    if "auc" not in measures or baseline.get("accuracy") is None:
        return []
    if measures["accuracy"] > baseline["accuracy"]:
        return []
    no_better = "The accuracy is no better than that of always saying the most frequent class."
    if read_config(history.run / CONFIG).recipe.get("class_weights") is None:
        return [
            "",
            f"{no_better} AUC shows how well the",
            "probabilities rank records; `--class-weights balanced` makes rare classes count more, within the same ε.",
        ]
    return [
        "",
        f"{no_better} Class weights make the",
        "model name rare classes more often, which costs accuracy: judge it by AUC and balanced accuracy.",
    ]


def _takes_files(history: History) -> bool:
    """Returns whether the run was trained on a file of the user's own, so that `sordino predict` can take another."""
    return bool(read_config(history.run / CONFIG).data)


def _describe_noise_key(history: History) -> str:
    """Returns the words of a training command's outcome that say where the noise key of the run is, and what to do with
    it.
    """
    path = history.run / NAME
    if not path.exists():
        return "erased; nothing in the run directory can take the noise off"
    # Who needs the key decides when it should be deleted.
    use = "`sordino audit replay`" if history.status == FINISHED else "`sordino resume`"
    after = "delete it after the audit" if history.status == FINISHED else "it is erased when the run is finished"
    return f"{path}\n               needed by {use}; never publish it; {after}"


def report_several_outcomes(several: SeveralSeeds, *, report: bool, as_json: bool) -> int:
    """Prints the outcome of a training command with several seeds: mean and spread, the claim of each run, and the
    claim of all together.
    """
    if report:
        for history in several.runs:
            _write_report(history)
    if as_json:
        print(json.dumps(several.table() | {"run": str(several.folder)}))
    else:
        print(f"\n{len(several.runs)} seeds")
        # A mean without a spread is shown for a single run.
        for name, found, percent in (
            ("test accuracy", several.test_accuracy, True),
            ("test loss    ", several.test_loss, False),
        ):
            if found is not None:
                shown = [f"{v:.2%}" if percent else f"{v:.4g}" for v in (found.mean, found.deviation or 0.0)]
                print(f"{name}  {shown[0]}" + ("" if found.deviation is None else f" ± {shown[1]}"))
        print(f"\nEach of them by itself, seed 0 for one:\n{several.runs[0].claim}")
        print(f"\nAll of them together, which is what a mean or the best of them is made of:\n{several.joint_claim}\n")
        print(f"runs           {several.folder}")
    # What to type next goes to standard error, so that it never mixes with JSON.
    if not several.finished:
        print(f"stopped and saved; go on with: sordino resume {several.runs[-1].run}", file=sys.stderr)
    return exit_code_of(several)


def _write_report(history: History) -> None:
    """Writes the report at the end of a training command; a full disk only costs the report, because the run itself is
    complete.
    """
    from sordino.app.report import write

    try:
        write(history.run)
    except OSError as error:  # the run itself is whole
        print(f"no report: {error.strerror or error}; `sordino report {history.run}` writes it", file=sys.stderr)


@contextmanager
def _voiding_on_one_line(name: str) -> Iterator[None]:
    """Prints, while a training command runs, the warning that its claim is void as a message of the command.

    Python would print the line of the `sordino` script, which says nothing. A line of the user's own model file is kept.
    """
    # Other warnings are shown as Python shows them.
    show_others = warnings.showwarning

    def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        """Prints the warning that a claim is void in the words of the training command, and any other warning as Python
        does.
        """
        if not issubclass(category, ClaimVoidedWarning):
            show_others(message, category, filename, lineno, file, line)
            return
        where = "" if Path(filename).name in ("sordino", Path(sys.argv[0]).name) else f"{filename}:{lineno}: "
        print(f"sordino {name}: {where}{message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", ClaimVoidedWarning)
        warnings.showwarning = show
        yield


def run_and_report_failures(name: str, work: Callable[[], int]) -> int:
    """Runs a training command and reports failures of the machine or the training in one line; returns the
    exit code.
    """
    try:
        with _voiding_on_one_line(name):
            return work()
    except KeyboardInterrupt:
        print(
            f"sordino {name}: stopped at once; if its run directory is there, `sordino resume` goes on from what was saved",
            file=sys.stderr,
        )
        return STOPPED
    except RunFailed as error:
        print(f"sordino {name}: {error}", file=sys.stderr)
        return FAILED
    except ClaimVoided as error:  # of a run with --strict
        print(f"sordino {name}: {error}", file=sys.stderr)
        return FAILED
    # Each failure has one line and an exit code; anything else is a defect and keeps its traceback.
    except StoppedElsewhere:  # which says why
        return FAILED
    except BudgetExhausted as error:
        print(f"sordino {name}: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"sordino {name}: {where}{error.strerror or error}", file=sys.stderr)
        return FAILED
