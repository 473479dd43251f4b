"""The run directory: the files and checkpoints of a training run, which `report` and `resume` read, and who writes them.

    config.toml          what was run: [recipe] every field; [options] how; [parameters] of the method; [resolved] what was
                         calibrated or counted: noise_multiplier, steps, dataset_size, expected_batch, physical_batch,
                         sampler, trainable, classes, started; [versions]
    encoder.json         how a record becomes the numbers that the network takes, see encoded_records.py
    metrics.jsonl        one object per evaluation, oldest first: step, epoch, epsilon (null: no guarantee), delta,
                         test_accuracy (null: numbers, no classes), test_loss, learning_rate, seconds; then, where there
                         is one, test_by_class and measures; where they were asked for, what the claim then lists as not
                         covered: train_accuracy, train_loss, and of every step since the line before, lengths, classes,
                         substeps; and cosines, which it covers
    privacy.json         the claim as data, see `claim_as_data`
    initial.safetensors  the network before training, a function of a public seed
    model.safetensors    the trained network; where the recipe averages, the average
    trace/               with the option `traced_networks`: the network of each evaluation, STEP.safetensors
    ledger.jsonl         steps entered before they were released, see write_ahead.py
    checkpoints/         the first and the last two, see directory.py, and the end of the ledger
    SECRET-noise-key-do-not-share.json
                         the key of the noise, while the run goes on or can be resumed, see noise_key.py; erased when it is
                         finished, unless `keep_key` was asked for
    .gitignore, .lock    what git must not take; what the one process holds that trains here
    further_releases.jsonl
                         what was released about the records after training, as by `sordino doctor --ask-clipped`
    findings.json        what audits and attacks said aloud, the last result of each kind: bounds, counts, verdicts
    report.html, PRIVACY.md, MODEL_CARD.md    written at the end, from the above
    NOT-PRIVATE-baseline.json  measures of the same network without privacy, if they were asked for; not to be published

Only released and public quantities are in these files, the secret one excepted, and what `show_private` or `diagnose` asked
for. The last line of a .jsonl file may be cut short while the run is going on, or after it was killed. A checkpoint is
complete or absent; one whose sums do not match is passed over, by name, for the one before it.

In a distributed run the first rank writes the files, and the other ranks follow it. Whatever it reads from the disk
(settings, a checkpoint, the mark of the write-ahead ledger) it broadcasts to them, so that they need no common folder. It
has a mark on its disk before any rank draws below it.

Privacy: `privacy.json` is there from the beginning, with the claim of the whole plan, and is replaced by what was really
done when the run stops; by the plan again when it goes on; by the reason as soon as there is no guarantee any more. So a
run that was killed reports at least what it spent, and what its claim does not cover. A checkpoint does not hold the key
of the noise, which is in a file of its own (noise_key.py). Where streams stand, and what a sampler remembers of the
records, is encrypted under that key. Only its owner can read the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from torch import Tensor, nn

from sordino.accounting import PLD, gaussian_mu
from sordino.app import atomic_files, toml_writer
from sordino.app.runs.write_ahead import RunIsBusy
from sordino.distributed.process_group import Ranks, ranks_of
from sordino.distributed.shared_lot import StoppedElsewhere
from sordino.environment import current_environment
from sordino.events import Event, from_json, to_json
from sordino.file_lock import Locked, lock_file
from sordino.ledger import claims
from sordino.ledger.claims import Claim, Guarantee
from sordino.state_packing import pack, unpack

FORMAT = 1
CONFIG, METRICS, PRIVACY = "config.toml", "metrics.jsonl", "privacy.json"
INITIAL, MODEL, TRACE, CHECKPOINTS = "initial.safetensors", "model.safetensors", "trace", "checkpoints"

LOCK = ".lock"
FURTHER = "further_releases.jsonl"

RUNNING, STOPPED, FINISHED, FAILED = "running", "stopped", "finished", "failed"

_DELTAS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8)

SUMS = "sums"
_ON_A_GRID = "whole numbers"

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """The metrics of one evaluation; all of them are released or public, or were asked for and are listed in the
    claim.
    """

    step: int
    epoch: float
    epsilon: float | None
    delta: float
    test_accuracy: float | None
    """None where the records have numbers and no classes."""
    test_loss: float
    learning_rate: float
    seconds: float
    test_by_class: list[float | None] | None = None
    measures: dict[str, Any] | None = None
    """Further measures on the test records, and those of a baseline, see evaluate.py."""
    signal_to_noise: float | None = None
    """Of the gradients released since the last evaluation: length of the signal over that of the noise; 0: noise alone."""
    validation_loss: float | None = None
    """On the public validation records by which the model is kept, where some were given."""
    train_accuracy: float | None = None
    train_loss: float | None = None
    cosines: list[Any] | None = None
    lengths: list[Any] | None = None
    classes: list[Any] | None = None
    substeps: list[Any] | None = None


_OPTIONAL = frozenset(one.name for one in fields(Row) if one.default is None)
"""What most lines do not have."""


@dataclass(frozen=True)
class Run:
    """One run: its directory, with methods that write and read its files, and the ranks that train together in it."""

    folder: Path
    ranks: Ranks | None = None
    """The processes of a distributed run; None if the run is a single process, which adds up as one."""

    @staticmethod
    def on_all_ranks(folder: Path) -> Run:
        """Returns the run directory for all ranks of torch's own process group, or for a single process if there is
        none; all ranks use the folder that the first one names.
        """
        run = Run(folder, ranks_of(None))
        return replace(run, folder=run.run_on_first(lambda: folder))

    @property
    def is_writer(self) -> bool:
        """Whether this process is the first rank, which writes the files; the others write nothing."""
        return self.ranks is None or self.ranks.rank == 0

    def run_on_first(self, work: Callable[[], T]) -> T:
        """Runs `work`, such as writing into the run directory, on the first rank alone and returns its result on all
        ranks; if it fails there, the others stop too.
        """
        if self.ranks is None or self.ranks.size == 1:
            return work()
        # The other ranks wait for the outcome, which says whether the first one succeeded.
        if not self.is_writer:
            succeeded, first_result = self.ranks.broadcast_from_first(None)
            if not succeeded:
                raise StoppedElsewhere("the first rank could not go on; its own message says why")
            received: T = first_result
            return received
        # A failure is broadcast before it is raised, so that no rank waits for ever.
        try:
            result = work()
        except BaseException:
            self.ranks.broadcast_from_first((False, None))
            raise
        self.ranks.broadcast_from_first((True, result))
        return result

    def run_first_before_others(self, work: Callable[[], T]) -> T:
        """Runs `work` on every rank that shares the run directory, on the first one before the others, so that they
        find the files it fetched or built.
        """
        # The first rank keeps its own result; the others compute theirs once it is done.
        own_result: list[T] = []
        self.run_on_first(lambda: own_result.append(work()))
        return own_result[0] if own_result else work()

    def any_rank(self, wish: bool) -> bool:
        """Returns whether `wish` is true on any of the ranks that share the run directory."""
        if self.ranks is None:
            return wish
        return bool(self.ranks.sum_(torch.tensor([wish], dtype=torch.int64, device=self.ranks.device))[0] > 0)

    def as_begun(self, environment: Mapping[str, Any]) -> Run:
        """Returns the run directory with the ranks by which its run began, which the ledger's `environment` tells: a
        single process that continues a distributed run becomes a group of one, with the same bits.
        """
        is_distributed = environment.get(SUMS) == _ON_A_GRID
        return replace(self, ranks=Ranks()) if self.ranks is None and is_distributed else self

    def current_environment(self) -> dict[str, Any]:
        """Returns what the bits of a step depend on here: the machine, and whether ranks add up; never how many."""
        return current_environment({} if self.ranks is None else {SUMS: _ON_A_GRID})

    def create(self, open_locks: ExitStack) -> None:
        """Makes the run directory of a new run, which is this process's alone until `open_locks` is closed.

        Raises:
            RunIsBusy: if another process has begun a run in the folder, even if it has written nothing yet.
            ValueError: if the folder holds something already, or cannot be written to.

        """
        try:
            # Looked at twice: a folder that holds something is left without a trace, and the process that held the lock
            # before may have written something since.
            _refuse_if_used(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
            lock_folder(self.folder, open_locks)
            _refuse_if_used(self.folder)
            self.checkpoints.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise ValueError(f"out={str(self.folder)!r}: cannot be written to ({error.strerror})") from error

    @staticmethod
    def open(folder: Path) -> Run:
        """Opens the run directory of an existing run and refuses a folder that is none."""
        if not (folder / CONFIG).is_file():
            # What a process leaves that was killed while it read the data or calibrated the noise.
            if (
                (folder / LOCK).is_file()
                and (folder / CHECKPOINTS).is_dir()
                and not any((folder / CHECKPOINTS).iterdir())
            ):
                raise ValueError(
                    f"{str(folder)!r}: holds no run yet: it was stopped before its first step, and nothing was drawn; "
                    f"train again, with --out {folder} if you like"
                )
            raise ValueError(f"{str(folder)!r}: not a run directory (it has no {CONFIG})")
        return Run(folder)

    def discard(self) -> None:
        """Removes the run directory of a run that was never begun, so that no trace of it is left."""
        with suppress(OSError):
            self.checkpoints.rmdir()
            (self.folder / LOCK).unlink(missing_ok=True)
            self.folder.rmdir()

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / CHECKPOINTS

    def _write_file(self, name: str, content: str | bytes) -> None:
        """Replaces a file of the run directory, in one move; on ranks that do not write it, does nothing."""
        if self.is_writer:
            atomic_files.write_file(self.folder / name, content)

    def write_config(self, table: Mapping[str, Any]) -> None:
        """Writes config.toml into the run directory, once, at the beginning of the run."""
        self._write_file(CONFIG, toml_writer.dumps({"format": FORMAT, **table}))

    def write_json(self, name: str, table: Mapping[str, Any]) -> None:
        """Writes a table as a JSON file."""
        self._write_file(name, json.dumps(table, indent=1, ensure_ascii=False) + "\n")

    def write_model(self, name: str, model: nn.Module) -> None:
        """Writes parameters and buffers into the run directory, under the names of the model's own state dict."""
        if self.is_writer:
            state = {key: value.detach().cpu().contiguous().clone() for key, value in model.state_dict().items()}
            self._write_file(name, safetensors.torch.save(state))

    def write_trace(self, step: int, model: nn.Module) -> None:
        """Writes the network into the run directory as it is at an evaluation; it is released, like the final one."""
        if self.is_writer:
            (self.folder / TRACE).mkdir(exist_ok=True)
            self.write_model(f"{TRACE}/{step:08d}.safetensors", model)

    def traced_networks(self) -> dict[int, Path]:
        """Returns the paths of the networks kept at evaluations, by step; empty if none were kept."""
        return {int(path.stem): path for path in sorted((self.folder / TRACE).glob("[0-9]*.safetensors"))}

    def append_row(self, row: Row) -> None:
        """Appends one evaluation to metrics.jsonl in the run directory."""
        if self.is_writer:
            with open(self.folder / METRICS, "a", encoding="utf-8") as file:
                file.write(_format_row(row))

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Rewrites all evaluations in the run directory; those after the checkpoint that a run resumes from will be
        made again.
        """
        self._write_file(METRICS, "".join(map(_format_row, rows)))

    def read_rows(self) -> list[Row]:
        """Returns the evaluations in the run directory; a last line that was cut short is left out."""
        # A line is complete once its line break is there.
        path = self.folder / METRICS
        complete_lines = path.read_text("utf-8").rpartition("\n")[0] if path.exists() else ""
        return [Row(**json.loads(line)) for line in complete_lines.splitlines()]

    def write_privacy(self, claim: Claim, status: str, steps: int, budget: float | None) -> None:
        """Writes the claim to privacy.json in the run directory."""
        if self.is_writer:
            self._write_file(PRIVACY, json.dumps(claim_as_data(claim, status, steps, budget), indent=1) + "\n")


def lock_folder(folder: Path, open_locks: ExitStack) -> None:
    """Locks a run directory for this process alone until `open_locks` is closed.

    Raises:
        RunIsBusy: if another process holds the lock.

    """
    # The loop repeats only if the folder was removed between opening its lock file and locking it.
    while True:
        file = open(folder / LOCK, "ab")  # noqa: SIM115 (held for the life of the run)
        open_locks.callback(file.close)
        try:
            lock_file(file, wait=False)
        except Locked:
            raise RunIsBusy(
                f"{folder}: another process has begun a run here.\nWait for it or stop it, or give another folder."
            ) from None
        # Whoever gives a run up removes its folder. A lock on a file that is no longer there holds nobody off.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(folder / LOCK), os.fstat(file.fileno())):
                return
        folder.mkdir(parents=True, exist_ok=True)


def _refuse_if_used(folder: Path) -> None:
    """Raises ValueError if the folder for a run directory holds more than a process leaves that died before
    it began.
    """
    # A lock file and an empty folder of checkpoints are what a process leaves that died at once.
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out={str(folder)!r}: is a file; need a new or empty folder")
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name == LOCK or (path.name == CHECKPOINTS and path.is_dir() and not any(path.iterdir())):
            continue
        raise ValueError(
            f"out={str(folder)!r}: holds something already; need an empty folder, or `sordino resume {folder}`"
        )


def claim_as_data(claim: Claim, status: str, steps: int, budget: float | None) -> dict[str, Any]:
    """Returns the content of privacy.json in a run directory: the claim as data, and what goes with it.

    The keys are `claim` (epsilon, delta, relation, unit, accountant, event, not_covered, rests_on, or reason);
    `status`: running, stopped, finished or failed; `steps`: how many lots the claim is about; `budget`: the ε that was
    asked for; `words`: the printed claim; `at_delta`: ε at other δ; `mu`: the Gaussian mechanism's parameter with the
    same (ε, δ).
    """
    # The claim stands here twice: as data for programs, and in words for people.
    table: dict[str, Any] = {
        "format": FORMAT,
        "status": status,
        "steps": steps,
        "budget": budget,
        "unit": f"one {claim.unit if isinstance(claim, Guarantee) else 'record'} of the training set",
        "claim": claims.claim_to_json(claim),
        "words": str(claim),
    }
    # Only a guarantee has figures at other δ, and a μ.
    if isinstance(claim, Guarantee):
        deltas = sorted({*_DELTAS, claim.delta}, reverse=True)
        table["at_delta"] = [{"delta": d, "epsilon": PLD().epsilon(claim.event, d)} for d in deltas]
        table["mu"] = gaussian_mu(claim.epsilon, claim.delta) if claim.epsilon > 0 and claim.delta > 0 else None
    return table


def _format_row(row: Row) -> str:
    """Returns an evaluation as one line of metrics.jsonl in the run directory; optional fields without a value are left
    out.
    """
    # Fields that most runs do not have would only lengthen the lines.
    given_fields = {name: value for name, value in asdict(row).items() if value is not None or name not in _OPTIONAL}
    return json.dumps(given_fields, allow_nan=False) + "\n"


FINDINGS = "findings.json"


def enter_further_release(folder: Path, event: Event, what: str) -> None:
    """Enters in the run directory that something more was released about the run's records, on the disk at once.

    `resume` charges it again when it makes the claim of the run anew.
    """
    with open(folder / FURTHER, "a", encoding="utf-8") as file:
        file.write(json.dumps({"event": to_json(event), "what": what}) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_further_releases(folder: Path) -> list[tuple[Event, str]]:
    """Returns the releases about a run's records that were entered in the run directory after its training, each with
    what it was.
    """
    path = folder / FURTHER
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [(from_json(table["event"]), str(table["what"])) for table in map(json.loads, lines)]


def read_findings(folder: Path) -> dict[str, Any]:
    """Returns all findings of audits and attacks that a run directory keeps; empty if there are none or the file cannot
    be read.
    """
    try:
        # A file that cannot be read is taken for none: findings are notes, and no claim rests on them.
        findings = json.loads((folder / FINDINGS).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return findings if isinstance(findings, dict) else {}


def keep_finding(folder: Path, kind: str, table: Mapping[str, Any]) -> None:
    """Replaces the finding of the same kind of audit or attack in a run directory by a new one."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    atomic_files.write_file(
        folder / FINDINGS, json.dumps({**read_findings(folder), kind: {**table, "when": now}}, indent=1) + "\n"
    )


CHECKPOINT_FORMAT = 1
CHECKPOINTS_KEPT = 2
START = "start"
_STATE, _TENSORS, _CHECKSUMS = "state.json", "tensors.safetensors", "SHA256SUMS"
_NAME = re.compile(r"step-(\d{8,})")


class DamagedCheckpoint(ValueError):
    """Raised for a checkpoint that cannot be trusted; the message says why."""


class NoCheckpoint(ValueError):
    """Raised for a folder without a usable checkpoint."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything a run needs to go on, except the noise key."""

    step: int
    state: Mapping[str, Any]  # JSON-like, with tensors anywhere


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Writes a checkpoint into the run directory, then removes all but the last two; if writing fails, earlier ones are
    untouched.
    """
    # Numbers and text go to JSON, tensors to safetensors; neither can run code when it is read.
    tensors: dict[str, Tensor] = {}
    tree = pack(checkpoint.state, "", tensors)
    state = json.dumps({"format": CHECKPOINT_FORMAT, "step": checkpoint.step, "state": tree}, allow_nan=False)
    content = {_STATE: state.encode(), _TENSORS: safetensors.torch.save(_unshare_memory(tensors))}
    sums = "".join(f"{hashlib.sha256(value).hexdigest()}  {name}\n" for name, value in content.items())
    # The folder appears in one move, after all its bytes are on the disk.
    path = folder / f"step-{checkpoint.step:08d}"
    atomic_files.write_folder(path, {**content, _CHECKSUMS: sums.encode()})
    if checkpoint.step == 0 and not (folder / START).exists():
        atomic_files.write_folder(folder / START, {**content, _CHECKSUMS: sums.encode()})
    # Only now that the new one is safe are older ones removed.
    for old in (*list_checkpoints(folder)[CHECKPOINTS_KEPT:], *filter(atomic_files.is_temporary, _entries(folder))):
        shutil.rmtree(old, ignore_errors=True)
    return path


def read_checkpoint(path: Path) -> Checkpoint:
    """Returns a checkpoint from a run directory whose every byte is what was written; raises DamagedCheckpoint
    otherwise.
    """
    try:
        content = {name: (path / name).read_bytes() for name in (_STATE, _TENSORS)}
        sums = (path / _CHECKSUMS).read_text("ascii")
    except (OSError, UnicodeError) as error:
        raise DamagedCheckpoint(f"{path.name}: cannot be read ({one_line(error)})") from error
    # A changed byte would be trained on without notice, so every file is compared with its checksum first.
    for name, value in content.items():
        if f"{hashlib.sha256(value).hexdigest()}  {name}\n" not in sums:
            raise DamagedCheckpoint(
                f"{path.name}: {name} is not what was written (wrong checksum); it was cut short or changed"
            )
    return parse_checkpoint(content[_STATE], content[_TENSORS], path.name)


def parse_checkpoint(state: bytes, tensors: bytes, name: str) -> Checkpoint:
    """Returns the checkpoint of a run directory from the bytes of its files, which are not trusted."""
    try:
        outer = json.loads(state)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"{name}: {_STATE} is not JSON ({one_line(error)})") from error
    # Another version may have meant something else by the same fields.
    if not isinstance(outer, dict) or outer.get("format") != CHECKPOINT_FORMAT:
        given = outer.get("format") if isinstance(outer, dict) else None
        raise DamagedCheckpoint(
            f"{name}: format {given!r}, and this version reads {CHECKPOINT_FORMAT}; use the version that wrote it"
        )
    # A boolean is an int in Python, and no step.
    step = outer.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0 or not isinstance(outer.get("state"), dict):
        raise DamagedCheckpoint(f"{name}: {_STATE} has no step and state")
    try:
        return Checkpoint(step, unpack(outer["state"], safetensors.torch.load(tensors)))
    except Exception as error:  # the safetensors reader raises what it likes on foreign bytes
        raise DamagedCheckpoint(f"{name}: {_TENSORS} or {_STATE} cannot be read ({one_line(error)})") from error


def read_latest(folder: Path) -> tuple[Checkpoint, list[str]]:
    """Returns the newest complete checkpoint in a run directory, and why newer ones were passed over."""
    passed_over: list[str] = []
    for path in list_checkpoints(folder):
        try:
            return read_checkpoint(path), passed_over
        except DamagedCheckpoint as error:
            passed_over.append(str(error))
    why = f": {'; '.join(passed_over)}" if passed_over else ""
    raise NoCheckpoint(f"{folder}: no checkpoint that can be used{why}; start the run anew")


def list_checkpoints(folder: Path) -> list[Path]:
    """Returns the paths of the checkpoints in a run directory, newest first, damaged or not."""
    # By number and not by date, because a copied folder has other dates.
    named = [(int(match[1]), path) for path in _entries(folder) if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(named, reverse=True)]


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _unshare_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of a checkpoint for the run directory so that none share memory, as safetensors requires."""
    # The first of several views keeps the memory; the others are copied.
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        where = tensor.untyped_storage().data_ptr()
        result[name] = tensor.cpu().clone() if where in seen else tensor.cpu()  # files know no devices
        seen.add(where)
    return result


def one_line(error: BaseException) -> str:
    """Returns what an error says, on one line; its type if it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__
