"""Puts automatic mistakes into the lines that a claim depends on, and counts those tests notice.

    nice -n 15 python -m bench.mutations                 # the next four minutes, resumed where it stopped
    python -m bench.mutations --every 1 --minutes 600    # all mutants
    python -m bench.mutations --list sordino/release/release.py
    python -m bench.mutations --again                    # survivors only, after tests were added
    python -m bench.mutations --score                    # the table of the results so far
    python -m bench.mutations --sample 100 --seed 0      # a random sample over all rooms, resumed where it stopped

Kinds of mistakes: a number changed (by one, or by 1 %), True and False exchanged, a comparison moved by its boundary or
turned round, `and` and `or` exchanged, `not` dropped, an arithmetic operation exchanged, a statement left out, a condition
turned round, a keyword argument dropped. Error messages, docstrings, annotations and declarations are left alone.

A mutant is cheap, because few tests are run for it. Once, each file of the fast tests (`TESTS`) is run with a trace that
notes which of its tests execute which lines; that is kept in the file `--trace`, beside the repository's temporary files.
A mutant is put into a copy of the repository and tried against the tests that execute its statement, the quickest first
and `SECONDS_OF_TESTS` of them at most, in a process that was forked from one which has imported torch already. Processes
that a test starts, such as ranks, are traced too. If no test of the files chosen executes the statement, the mutant is
*not reached*.

A mutant is *killed* if a test fails, *survived* if none does, *broken* if the package cannot be imported with it, and
*slow* if the tests take more than their time, which counts as killed. The score is killed / (killed + survived).
Survivors that mean the same as the original are listed in `EQUIVALENT` with the reason, and are not counted.

The score of all mutants tried is flattered wherever tests were written for survivors and the next mutants look alike.
A random sample (`--sample`) is kept apart, each mutant with what the tests said of it when it was tried first. Its score
is that of the tests before anybody looked at the survivors, with a 95 % interval (Wilson 1927). `--score` prints it, and
below it the score with the tests written since, which says nothing of other mutants.

The results are in bench/results/automatic_mutations.json, with the sample that was taken.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import mmap
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "automatic_mutations.json"
SECONDS, MOST_WAITING = 60, 600.0
"""The processor time that the tests of one mutant may take, and how long they may take in all, which ends a deadlock."""
SECONDS_OF_TESTS, SECONDS_AGAIN, MOST_TESTS = 6.0, 25.0, 60
"""Tests of a mutant are chosen until they took so long in the traced run, the second number with `--again`, and so many of
them at most."""
SECONDS_OF_TRACE = 45
"""The processor time that tracing one file of tests may take, and the waiting for its ranks four times that. Tests behind
that are not run for mutants."""
TRACED_PROCESSES = "SORDINO_MUTATION_TRACE"
"""The environment variable that names the folder where processes which a test starts write the lines they execute."""
TRACE = Path(tempfile.gettempdir()) / "sordino_mutation_trace.json"

_NOISE = [
    "tests/test_release.py",
    "tests/test_divisor.py",
    "tests/test_noise_on_every_tensor.py",
    "tests/test_noise_tail.py",
    "tests/test_sealed.py",
    "tests/honesty_numerics",
    "tests/correlated",
    "tests/auditing/test_selftest.py",
]
_LEDGER = [
    "tests/test_ledger.py",
    "tests/test_claims.py",
    "tests/test_declared.py",
    "tests/test_diverged.py",
    "tests/test_no_guarantee.py",
    "tests/test_what_is_said.py",
    "tests/test_told_at_once.py",
    "tests/test_former_methods.py",
    "tests/accounting/test_live.py",
    "tests/honesty/test_claims_that_were_false.py",
    "tests/honesty/test_history.py",
]
_DEVICE = "tests/device/test_on_a_simulated_device.py::test_on_a_simulated_device[check_honesty]"
_SAMPLING = ["tests/test_sampling.py", "tests/test_told_size.py", "tests/test_sorted.py", "tests/test_by_length.py"]
_LOTS = ["tests/test_lots.py", "tests/test_divisor.py", "tests/test_replay.py", "tests/test_refusals.py"]
_RANKS = [
    "tests/distributed/test_grid.py",
    "tests/distributed/test_agreement.py",
    "tests/distributed/test_catches.py",
    "tests/distributed/test_data_digest.py",
    "tests/distributed/test_fake_group.py",
    "tests/distributed/test_fully_sharded.py",
    "tests/distributed/test_layer_by_layer.py",
    "tests/distributed/test_layers_in_turn.py",
    "tests/distributed/test_same_bits.py",
    "tests/distributed/test_sites.py",
]
TESTS: dict[str, list[str]] = {
    "sordino/release/compiled_combinations.py": ["tests/kernels/test_phase_noise.py", "tests/correlated"],
    "sordino/release/": [*_NOISE, *_LOTS],
    "sordino/ledger/": [*_LEDGER, *_LOTS, "tests/test_shown_in_notebooks.py", _DEVICE],
    "sordino/sampling/": [*_SAMPLING, *_LOTS],
    "sordino/lots/lot.py": [*_LOTS, *_SAMPLING],
    "sordino/events/": [
        "tests/events",
        "tests/test_ledger.py",
        *_SAMPLING,
        "tests/accounting/test_unlike_phases.py",
        "tests/accounting/test_oracles.py",
        "tests/accounting/test_bugs_elsewhere.py",
        "tests/correlated/test_prices.py",
    ],
    "sordino/rng/": [
        "tests/test_random.py",
        *_SAMPLING,
        "tests/kernels/test_device_noise.py",
        "tests/kernels/test_noise_at.py",
        "tests/kernels/test_phase_noise.py",
        _DEVICE,
    ],
    "sordino/clipping/": ["tests/clipping", "tests/test_divisor.py"],
    "sordino/queries/": [
        "tests/queries",
        "tests/test_divisor.py",
        "tests/test_microbatches.py",
        "tests/test_target_epsilon.py",
        "tests/test_sealed.py",
    ],
    "sordino/lots/": [
        *_LOTS,
        "tests/test_units.py",
        "tests/test_repeated_records.py",
        "tests/test_isolate.py",
        "tests/test_shards.py",
        "tests/distributed/test_sites.py",
        "tests/distributed/test_data_digest.py",
        "tests/test_dict_datasets.py",
    ],
    "sordino/private.py": _LOTS,
    "sordino/distributed/": _RANKS,
    "sordino/distributed_run.py": _RANKS,
}
"""The fast tests of each file, by the first beginning of its path. What charges and releases comes first: files are
mutated in this order, and within one entry by a digest of the mutants' names."""
LEFT_OUT = (
    "__init__.py",
    "sordino/clipping/batch_statistic.py",
    "sordino/queries/projected.py",
    "sordino/distributed/checkpoint_entry.py",
)
"""Methods without a guarantee, and files without decisions."""
QUIET = ("__repr__", "__str__", "_repr_html_")

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """One mistake: its place, its kind, and its number among the mutants of the file."""

    file: str
    line: int
    kind: str
    was: str
    number: int
    same: int  # mutants of this kind in front of it on equal lines of the function
    function: str
    statement: tuple[int, int]  # the first and the last line of the statement around it

    @property
    def name(self) -> str:
        """Returns a name that stays the same while the text of the line does, wherever in the file its function is."""
        mark = hashlib.sha256(f"{self.was} {self.same}".encode()).hexdigest()[:8]
        return f"{self.file}::{self.function} {self.kind} {mark}"

    def put_into(self, source: str) -> str:
        """Returns the text of the file with the mistake in it."""
        tree = ast.parse(source)
        node, kind = list(_places(tree))[self.number]
        _change(tree, node, kind)
        return ast.unparse(ast.fix_missing_locations(tree))


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yields every mutant of a file."""
    source = path.read_text()
    tree, lines, seen = ast.parse(source), source.splitlines(), dict[tuple[str, str, str], int]()
    statements = _find_statements(tree)
    functions = _name_functions(tree)
    for number, (node, kind) in enumerate(_places(tree)):
        line = int(getattr(node, "lineno", 1))
        was = lines[line - 1].strip()
        # The innermost function and statement around the node; both are found by their lines.
        function = min((span for span in functions if span[0] <= line <= span[1]), key=lambda span: span[1] - span[0])
        around = min((span for span in statements if span[0] <= line <= span[1]), key=lambda span: span[1] - span[0])
        same = seen.get((function[2], was, kind), 0)
        seen[function[2], was, kind] = same + 1
        yield Mutant(str(path.relative_to(ROOT)), line, kind, was, number, same, function[2], around)


def _find_statements(tree: ast.AST) -> list[tuple[int, int]]:
    """Returns the lines of every statement; of one with a body, such as `if`, the lines in front of that."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1) if body else int(node.end_lineno or node.lineno)
            found.append((node.lineno, last))
    return found


def _name_functions(tree: ast.AST, prefix: str = "") -> list[tuple[int, int, str]]:
    """Returns the first and last line of every function with its qualified name, functions inside functions too."""
    found: list[tuple[int, int, str]] = []
    for node in ast.iter_child_nodes(tree):
        name = prefix
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}.{node.name}".lstrip(".")
            if not isinstance(node, ast.ClassDef):
                found.append((node.lineno, int(node.end_lineno or node.lineno), name))
        found += _name_functions(node, name)
    return found


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yields every node that can be changed inside a function, with the kind of change."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name not in QUIET:
            for statement in node.body:
                yield from _in_statement(statement)


def _in_statement(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yields the changes to one statement and to what is in it; nested functions are visited by themselves."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    if isinstance(node, ast.Raise):
        yield node, "statement left out"
        return  # a message may say anything
    if isinstance(node, ast.Assert):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.Expr | ast.AugAssign):
        yield node, "statement left out"
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield node, "condition turned round"
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
        yield node, "comparison"
    if isinstance(node, ast.BoolOp):
        yield node, "and or"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, "not dropped"
    if (
        isinstance(node, ast.BinOp)
        and type(node.op) in COMPUTED
        and not isinstance(node.left, ast.Constant | ast.JoinedStr)
    ):
        yield node, "operation"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        yield node, "constant"
    if isinstance(node, ast.Call):
        for number, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                yield node, f"argument {number} dropped"
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                yield from _in_statement(each)


def _change(tree: ast.AST, node: Any, kind: str) -> None:
    """Makes the change to a node of this tree."""
    if kind == "statement left out":
        for parent in ast.walk(tree):
            for name, value in ast.iter_fields(parent):
                if isinstance(value, list) and any(each is node for each in value):
                    setattr(parent, name, [ast.Pass() if each is node else each for each in value])
    elif kind == "condition turned round":
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif kind == "comparison":
        node.ops[0] = COMPARED[type(node.ops[0])]()
    elif kind == "and or":
        node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
    elif kind == "not dropped":
        node.op = (
            ast.UAdd() if not isinstance(node.operand, ast.Compare | ast.Call | ast.Name | ast.Attribute) else node.op
        )
        _replace(tree, node, node.operand)
    elif kind == "operation":
        node.op = COMPUTED[type(node.op)]()
    elif kind == "constant":
        value = node.value
        node.value = (
            (not value) if isinstance(value, bool) else value + 1 if isinstance(value, int) else value * 1.01 or 1.0
        )
    else:
        del node.keywords[int(kind.split()[1])]


def _replace(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    """Puts another node in the place of one."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list):
                setattr(parent, name, [new if each is old else each for each in value])


def test_files_for(file: str) -> list[str]:
    """Returns the files of tests that concern a file of the package: those of the first beginning of its path."""
    found: list[str] = []
    for name in next(tests for beginning, tests in TESTS.items() if file.startswith(beginning)):
        path = ROOT / name
        found += [str(each.relative_to(ROOT)) for each in sorted(path.rglob("test_*.py"))] if path.is_dir() else [name]
    return [name for name in found if (ROOT / name.partition("::")[0]).exists()]


def targets() -> list[Path]:
    """Returns every file that is mutated, in the order of `TESTS`."""
    found = []
    for beginning in TESTS:
        path = ROOT / beginning
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    kept = [path for path in found if not str(path.relative_to(ROOT)).endswith(LEFT_OUT)]
    return [path for path in dict.fromkeys(kept) if path.exists()]


class _LineTrace:
    """A pytest plugin that notes which lines of the package each test executes, and how long the test takes.

    The number of the test is kept in shared memory, where the processes that it starts find it.
    """

    def __init__(self, folder: Path, traces: Path) -> None:
        self._package = str(folder / "sordino") + os.sep
        self._root = len(str(folder)) + 1
        self._lines: dict[str, set[int]] = {}
        self._written = traces / "tests.jsonl"
        self._number = _map_test_number(traces)

    def pytest_runtest_setup(self, item: Any) -> None:
        """Begins to note lines for one test; fixtures belong to it."""
        self._lines, self._begun = {}, time.process_time()
        self._number[:] = (int.from_bytes(self._number[:], "little") + 1).to_bytes(_WIDTH, "little")
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def pytest_runtest_call(self, item: Any) -> None:
        """Begins to measure the waiting for processes, without fixtures, which many tests share."""
        self._called = time.monotonic()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keeps what a test executed when it is over; one that fails or is skipped without a mutant shows nothing."""
        if report.when != "call":
            return
        sys.settrace(None)
        threading.settrace(None)
        if report.passed:
            seconds = round(time.process_time() - self._begun, 3)
            lines = {file: sorted(numbers) for file, numbers in self._lines.items()}
            # One line for each test, so that what was traced is kept if the file of tests takes too long.
            number = int.from_bytes(self._number[:], "little")
            waited = round(time.monotonic() - self._called, 3)
            found = {"name": report.nodeid, "number": number, "seconds": seconds, "waited": waited, "lines": lines}
            with self._written.open("a") as file:
                file.write(json.dumps(found) + "\n")

    def _enter(self, frame: Any, event: str, argument: Any) -> Any:
        """Decides when a function is called whether its lines are of interest."""
        del event, argument
        name = frame.f_code.co_filename
        if not name.startswith(self._package):
            return None
        lines = self._lines.setdefault(name[self._root :], set())

        def note_line(frame: Any, event: str, argument: Any) -> Any:
            del event, argument
            lines.add(frame.f_lineno)
            return note_line

        return note_line


_WIDTH = 8


def _map_test_number(traces: Path) -> mmap.mmap:
    """Returns the number of the test that runs now, as shared memory."""
    with (traces / "number").open("r+b") as file:
        return mmap.mmap(file.fileno(), _WIDTH)


def trace_this_process() -> None:
    """Notes the lines of the package that this process executes, if a traced test started it.

    Each line is written when a test executes it for the first time, because ranks are often killed in the end.
    """
    if TRACED_PROCESSES not in os.environ:
        return
    traces, package = Path(os.environ[TRACED_PROCESSES]), str(ROOT / "sordino") + os.sep
    root, number, seen = len(str(ROOT)) + 1, _map_test_number(traces), set[tuple[bytes, str, int]]()
    # One file for all processes: short lines that are appended do not mix.
    written = os.open(traces / "lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note_line(frame: Any, event: str, argument: Any) -> Any:
        del event, argument
        line = (number[:], frame.f_code.co_filename, frame.f_lineno)
        if line not in seen:
            seen.add(line)
            os.write(written, f"{int.from_bytes(line[0], 'little')}\t{line[1][root:]}\t{line[2]}\n".encode())
        return note_line

    def enter(frame: Any, event: str, argument: Any) -> Any:
        del event, argument
        return note_line if frame.f_code.co_filename.startswith(package) else None

    threading.settrace(enter)
    sys.settrace(enter)


def trace_tests(folder: Path, name: str) -> dict[str, Any]:
    """Returns the tests of one file of tests, each with its seconds and the lines of the package that it executes."""
    with tempfile.TemporaryDirectory() as made:
        traces = Path(made)
        (traces / "number").write_bytes(bytes(_WIDTH))
        (traces / "tests.jsonl").touch()
        (traces / "lines").touch()
        # Python imports a module of this name in every process that it starts.
        (traces / "sitecustomize.py").write_text("import bench.mutations\n\nbench.mutations.trace_this_process()\n")
        _run_in_fork(lambda: _run_traced(folder, name, traces), SECONDS_OF_TRACE, 4 * SECONDS_OF_TRACE)
        tests = [json.loads(line) for line in (traces / "tests.jsonl").read_text().splitlines()]
        in_processes: dict[int, dict[str, set[int]]] = {}
        for each in (traces / "lines").read_text().splitlines():
            number, file, line = each.split("\t")
            in_processes.setdefault(int(number), {}).setdefault(file, set()).add(int(line))
    for test in tests:
        waited, others = test.pop("waited"), in_processes.get(test.pop("number"))
        if others:
            lines = test["lines"]
            test["lines"] = {file: sorted({*lines.get(file, ()), *others.get(file, ())}) for file in {*lines, *others}}
            test["seconds"] = waited
    return {test.pop("name"): test for test in tests}


def _run_traced(folder: Path, name: str, traces: Path) -> int:
    """Runs one file of tests with the trace, in this process and in those that it starts."""
    os.environ[TRACED_PROCESSES] = str(traces)
    return _run_tests(folder, [name], plugins=[_LineTrace(folder, traces)], paths=[str(traces)])


def choose_tests(mutant: Mutant, traced: dict[str, dict[str, Any]], most_seconds: float) -> list[str]:
    """Returns the tests that execute the statement of a mutant, the quickest first, as many as the time allows.

    Tests of other rooms that were traced for other mutants are used too.
    """
    first, last = mutant.statement
    found = [
        (test["seconds"], name)
        for tests in traced.values()
        for name, test in tests.items()
        if any(first <= line <= last for line in test["lines"].get(mutant.file, ()))
    ]
    chosen: list[str] = []
    seconds = 0.0
    for taken, name in sorted(set(found))[:MOST_TESTS]:
        seconds += taken
        if chosen and seconds > most_seconds:
            break
        chosen.append(name)
    return chosen


def try_mutant(mutant: Mutant, folder: Path, tests: list[str]) -> dict[str, Any]:
    """Returns what the tests say of a mutant that is put into the copy in `folder`, which is put right again."""
    found = {"line": mutant.line, "was": mutant.was[:100], "tests": len(tests)}
    if not tests:
        return {"status": "not reached", "seconds": 0.0, **found}
    path = folder / mutant.file
    original = path.read_text()
    begun = time.monotonic()
    path.write_text(mutant.put_into(original))
    try:
        status = _run_in_fork(lambda: _run_tests(folder, tests), SECONDS)
    finally:
        path.write_text(original)
    return {"status": status, "seconds": round(time.monotonic() - begun, 1), **found}


def _run_in_fork(run: Callable[[], int], seconds: int, most_waiting: float = MOST_WAITING) -> str:
    """Calls `run` in a forked process, whose exit code it returns, and says how that ended.

    The limit is one of processor time, so that a busy machine does not make mutants slow, which counts as killed.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        code = 70
        with contextlib.suppress(BaseException):
            code = run()
        os._exit(code)
    end, has_ended = time.monotonic() + most_waiting, False
    try:
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                has_ended, code = True, os.waitstatus_to_exitcode(status)
                if code in (-signal.SIGXCPU, -signal.SIGKILL):
                    return "slow"
                return {0: "survived", 1: "killed"}.get(code, "broken")
            time.sleep(0.05)
        return "slow"
    finally:
        # Also when this process is told to stop: nothing that it started stays behind.
        if not has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _run_tests(folder: Path, tests: list[str], plugins: list[Any] | None = None, paths: Sequence[str] = ()) -> int:
    """Runs pytest inside the copy; 1 if a test failed, 2 or more if the package is broken.

    Processes that a test starts import the copy too, and search `paths` first.
    """
    import pytest

    os.chdir(folder)
    sys.path[:] = [str(folder), str(folder / "lab"), *(p for p in sys.path if not _is_in_repository(p))]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, str(folder), str(folder / "lab")])
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        import sordino

        assert Path(sordino.__file__).is_relative_to(folder)
    except Exception:
        return 3
    stop = [] if plugins else ["-x"]
    arguments = [*stop, "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    return int(pytest.main(arguments, plugins=plugins))


def _is_in_repository(path: str) -> bool:
    resolved = Path(path or ".").resolve()
    return resolved in (ROOT, ROOT / "lab")


def copy_repository() -> Path:
    """Returns a folder with a copy of the repository, without its history."""
    folder = Path(tempfile.mkdtemp(prefix="mutations-"))
    for name in (
        "sordino",
        "tests",
        "bench",
        "tools",
        "docs",
        "lab",
        "examples",
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
    ):
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "results" if name == "bench" else "__pycache__")
            shutil.copytree(source, folder / name, ignore=ignored)
        elif source.exists():
            shutil.copy(source, folder / name)
    return folder


def scores(tried: dict[str, Any]) -> dict[str, Any]:
    """Returns how many were killed and how many survived, by file and in all."""
    found: dict[str, dict[str, int]] = {}
    for name, result in tried.items():
        status = "equivalent" if name in EQUIVALENT else "killed" if result["status"] == "slow" else result["status"]
        for key in (name.split(":")[0], "all"):
            counts = found.setdefault(key, {})
            counts[status] = counts.get(status, 0) + 1
    for counts in found.values():
        decided = counts.get("killed", 0) + counts.get("survived", 0)
        counts["score_percent"] = round(100 * counts.get("killed", 0) / decided) if decided else 0
    return dict(sorted(found.items()))


def draw_sample(mutants: list[Mutant], size: int, seed: int) -> list[Mutant]:
    """Returns a random sample of the mutants, which is the same for the same seed as long as the code is."""
    # Sorted by name first, so that the order in which files are listed does not matter.
    ordered = sorted(mutants, key=lambda mutant: mutant.name)
    return random.Random(seed).sample(ordered, min(size, len(ordered)))


def score_of_sample(statuses: dict[str, str]) -> dict[str, Any]:
    """Returns the share of a random sample's mutants that tests noticed, with a 95 % interval.

    It is given twice: of the mutants that a test reached, and of all of them, where one that was not reached counts as not
    noticed although slow tests or those of other rooms may notice it. Broken and equivalent ones do not count.
    """
    decided = [status for name, status in statuses.items() if name not in EQUIVALENT and status != "broken"]
    noticed = sum(status in ("killed", "slow") for status in decided)
    reached = sum(status != "not reached" for status in decided)
    return {
        "tried": len(statuses),
        "of those reached": _share_with_interval(noticed, reached),
        "of all": _share_with_interval(noticed, len(decided)),
    }


def statuses_with_later_tests(first_status: dict[str, str], tried: dict[str, Any]) -> dict[str, str]:
    """Returns what was said last of each mutant of a sample, after tests were written for survivors."""
    return {name: tried.get(name, {}).get("status", first) for name, first in first_status.items()}


def _share_with_interval(noticed: int, n: int) -> dict[str, Any]:
    """Returns a share of mutants in percent with its 95 % interval by Wilson's formula, which is right near 0 and 1 too."""
    if not n:
        return {"counted": 0}
    z, share = 1.96, noticed / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5 / (1 + z * z / n)
    percent = [round(100 * each, 1) for each in (share, middle - half, middle + half)]
    return {"counted": n, "noticed": noticed, "percent": percent[0], "interval": percent[1:]}


EQUIVALENT: dict[str, str] = {
    "sordino/release/release.py::_release_by_ranks constant 99453be6": "ranks have a grid only where the bound is finite",
    "sordino/release/exact_sums.py::OnGrid._spread_over_all_coordinates constant b6346bdd": "the pieces are cut by it",
    "sordino/sampling/balls_in_bins.py::BallsInBins.draws constant b977b317": "one end more, which is not used",
    "sordino/release/exact_sums.py::OnGridAccumulator._move_to_integers argument 0 dropped fe513b92": "likewise",
    "sordino/rng/streams.py::Rng.laplace constant 305f4aa8": "a third row of no numbers, which is not read",
    "sordino/release/compiled_combinations.py::gives_same_noise constant 348844c8": "another case for the self-test",
    "sordino/lots/repeated_records.py::_find_origins argument 0 dropped 745fb23f": "Python's integers become int64",
}
"""Survivors that mean the same as the original, with the reason."""


def main() -> None:
    """Tries the mutants of a sample that were not tried yet, until the time is over."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("files", nargs="*", help="files to mutate; all targets by default")
    arguments.add_argument("--every", type=int, default=1, help="one mutant of so many, chosen by a digest of its text")
    arguments.add_argument("--minutes", type=float, default=4.0)
    arguments.add_argument("--list", action="store_true", help="only say what there is")
    arguments.add_argument("--again", action="store_true", help="try those that survived once more")
    arguments.add_argument("--score", action="store_true", help="only print the results so far")
    arguments.add_argument("--sample", type=int, help="a random sample of so many mutants over all files")
    arguments.add_argument("--seed", type=int, default=0, help="which random sample")
    arguments.add_argument("--trace", type=Path, default=TRACE, help="where the lines of each test are kept")
    given = arguments.parse_args()
    record: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"tried": {}}
    tried: dict[str, Any] = record["tried"]
    if given.score:
        print(table(scores(tried)))  # noqa: T201
        for key, kept in record.get("random samples", {}).items():
            print(f"random sample, {key}:", score_of_sample(kept["first status"]))  # noqa: T201
            later = statuses_with_later_tests(kept["first status"], tried)
            print("with the tests written since:", score_of_sample(later))  # noqa: T201
        return
    paths = [ROOT / file for file in given.files] or targets()
    mutants = [mutant for path in paths for mutant in mutants_of(path)]
    if given.list:
        for mutant in mutants:
            print(mutant.name, "|", mutant.was)  # noqa: T201
        return

    # The sample: entries of `TESTS` in their order, and inside an entry by the digest, which is as good as random.
    digest = {mutant.name: int(hashlib.sha256(mutant.name.encode()).hexdigest(), 16) for mutant in mutants}
    entry = {m.file: next(k for k, start in enumerate(TESTS) if m.file.startswith(start)) for m in mutants}
    sample = [mutant for mutant in mutants if digest[mutant.name] % given.every == 0]
    sample.sort(key=lambda mutant: (entry[mutant.file] > 3, digest[mutant.name]))
    if given.again:
        undecided = ("survived", "not reached")
        sample = [mutant for mutant in mutants if tried.get(mutant.name, {}).get("status") in undecided]
    # A random sample keeps what was said of each mutant at the first time, whatever tests are written later.
    first_status: dict[str, str] | None = None
    if given.sample is not None:
        drawn = [mutant.name for mutant in draw_sample(mutants, given.sample, given.seed)]
        kept = record.setdefault("random samples", {}).setdefault(
            f"{given.sample} of seed {given.seed}", {"of": len(mutants), "drawn": drawn, "first status": {}}
        )
        # What was drawn once is kept, so that a change of the code meanwhile does not change the sample.
        by_name = {mutant.name: mutant for mutant in mutants}
        sample = [by_name[name] for name in kept["drawn"] if name in by_name]
        first_status = kept["first status"]

    # A request to stop ends the process in order: the mutant is taken out, and the copy is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    most_seconds = SECONDS_AGAIN if given.again else SECONDS_OF_TESTS
    _import_libraries()
    folder, end = copy_repository(), time.monotonic() + 60 * given.minutes
    traced: dict[str, Any] = json.loads(given.trace.read_text()) if given.trace.exists() else {}
    if first_status is not None:
        # Files whose tests are traced already come first; within them the order stays random, so a part of the sample is
        # a random sample of those files.
        sample.sort(key=lambda mutant: any(name not in traced for name in test_files_for(mutant.file)))
    try:
        for mutant in sample:
            if mutant.name in (tried if first_status is None else first_status) and not given.again:
                continue
            # A file of tests is traced when the first mutant asks for it; its tests must pass without a mutant.
            for name in test_files_for(mutant.file):
                if name not in traced and time.monotonic() < end:
                    traced[name] = trace_tests(folder, name)
                    given.trace.write_text(json.dumps(traced))
                    print("traced", name, len(traced[name]), "tests", flush=True)  # noqa: T201
            if time.monotonic() > end:
                break
            tried[mutant.name] = try_mutant(mutant, folder, choose_tests(mutant, traced, most_seconds))
            result = tried[mutant.name]
            print(mutant.name, "→", result["status"], result["seconds"], "|", mutant.was, flush=True)  # noqa: T201
            if first_status is not None:
                first_status[mutant.name] = result["status"]
                kept["score"] = score_of_sample(first_status)
            record |= {"mutants": len(mutants) if not given.files else record.get("mutants"), "score": scores(tried)}
            RESULTS.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(score: dict[str, Any]) -> str:
    """Returns the score of each file as Markdown."""
    kinds = ("killed", "survived", "not reached", "equivalent", "broken")
    lines = ["| file | " + " | ".join(kinds) + " | score |", "|---" * (len(kinds) + 2) + "|"]
    for name, counts in score.items():
        cells = " | ".join(str(counts.get(kind, 0)) for kind in kinds)
        lines.append(f"| {name} | {cells} | {counts['score_percent']} % |")
    return "\n".join(lines)


def _import_libraries() -> None:
    """Imports what every fork needs and no mutant changes."""
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch

    torch.set_num_threads(1)


if __name__ == "__main__":
    main()
