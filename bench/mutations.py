"""Puts automatic mistakes into the lines that a claim depends on, and counts those tests notice.

    nice -n 15 python -m bench.mutations                 # a sample, resumed where it stopped
    python -m bench.mutations --every 1 --minutes 600    # all mutants
    python -m bench.mutations --list sordino/release/release.py
    python -m bench.mutations --again                    # survivors only, after tests were added

Kinds of mistakes: a number changed (by one, or by 1 %), True and False exchanged, a comparison moved by its boundary or
turned round, `and` and `or` exchanged, `not` dropped, an arithmetic operation exchanged, a statement left out, a condition
turned round, a keyword argument dropped. Error messages, docstrings, annotations and declarations are left alone.

Each mutant is put into a copy of the repository and tried against the fast tests of its file (`TESTS`), in a process
that was forked from one which has imported torch already. It is *killed* if a test fails, *survived* if none does,
*broken* if the package cannot be imported with it, and *slow* if the tests take more than their time, which counts as
killed. The score is killed / (killed + survived). Survivors that mean the same as the original are listed in
`EQUIVALENT` with the reason, and are not counted.

The results are in bench/results/automatic_mutations.json, with the sample that was taken.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "automatic_mutations.json"
SECONDS = 400
"""What the tests of one mutant may take."""

_NOISE = ["tests/test_release.py", "tests/test_divisor.py", "tests/test_noise_on_every_tensor.py"]
_LOTS = ["tests/test_lots.py", "tests/test_divisor.py"]
_SAMPLING = ["tests/test_sampling.py", "tests/test_told_size.py"]
_RANKS = ["tests/distributed/test_grid.py", "tests/distributed/test_agreement.py", "tests/distributed/test_catches.py"]
TESTS: dict[str, list[str]] = {
    "sordino/release/release.py": [*_NOISE, "tests/distributed/test_grid.py", "tests/auditing/test_selftest.py"],
    "sordino/release/noise.py": [*_NOISE, "tests/test_noise_tail.py"],
    "sordino/release/exact_sums.py": ["tests/distributed/test_grid.py", *_NOISE],
    "sordino/ledger/ledger.py": ["tests/test_ledger.py", "tests/test_claims.py"],
    "sordino/release/rounding.py": ["tests/honesty_numerics/test_sums.py"],
    "sordino/release/vectors.py": [*_NOISE, "tests/honesty_numerics/test_sums.py"],
    "sordino/sampling/": _SAMPLING,
    "sordino/sampling/sorted.py": ["tests/test_sorted.py"],
    "sordino/sampling/length_based.py": ["tests/test_by_length.py"],
    "sordino/clipping/": ["tests/clipping"],
    "sordino/clipping/clipping_rule.py": ["tests/clipping", "tests/distributed/test_catches.py"],
    "sordino/queries/": ["tests/queries", "tests/test_divisor.py"],
    "sordino/queries/microbatches.py": ["tests/test_microbatches.py"],
    "sordino/rng/": ["tests/test_random.py", *_SAMPLING],
    "sordino/distributed/": _RANKS,
    "sordino/distributed/claim_facts.py": ["tests/distributed/test_data_digest.py", *_RANKS],
    "sordino/distributed_run.py": [*_RANKS, "tests/distributed/test_sites.py"],
    "sordino/lots/": _LOTS,
    "sordino/lots/data_digest.py": ["tests/distributed/test_data_digest.py", "tests/distributed/test_agreement.py"],
    "sordino/lots/privacy_units.py": ["tests/test_units.py"],
    "sordino/lots/repeated_records.py": ["tests/test_repeated_records.py"],
    "sordino/lots/data_owners.py": ["tests/distributed/test_sites.py"],
    "sordino/private.py": [*_LOTS, "tests/test_replay.py", "tests/test_refusals.py"],
}
"""The fast tests of each file, by the longest beginning of its path; the first to be run comes first."""
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
    same: int  # mutants of this kind in front of it on the line

    @property
    def name(self) -> str:
        """Returns a name that stays the same while the line does."""
        mark = hashlib.sha256(f"{self.was} {self.same}".encode()).hexdigest()[:8]
        return f"{self.file}:{self.line} {self.kind} {mark}"

    def put_into(self, source: str) -> str:
        """Returns the text of the file with the mistake in it."""
        tree = ast.parse(source)
        node, kind = list(_places(tree))[self.number]
        _change(tree, node, kind)
        return ast.unparse(ast.fix_missing_locations(tree))


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yields every mutant of a file."""
    source = path.read_text()
    lines, seen = source.splitlines(), dict[tuple[int, str], int]()
    for number, (node, kind) in enumerate(_places(ast.parse(source))):
        line = int(getattr(node, "lineno", 1))
        same = seen.get((line, kind), 0)
        seen[line, kind] = same + 1
        yield Mutant(str(path.relative_to(ROOT)), line, kind, lines[line - 1].strip(), number, same)


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


def tests_for(file: str) -> list[str]:
    """Returns the tests of a file: those of the longest beginning of its path that has some."""
    known = max((beginning for beginning in TESTS if file.startswith(beginning)), key=len)
    return [test for test in TESTS[known] if (ROOT / test).exists()]


def targets() -> list[Path]:
    """Returns every file that is mutated."""
    found = []
    for beginning in TESTS:
        path = ROOT / beginning
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    kept = [path for path in found if not str(path.relative_to(ROOT)).endswith(LEFT_OUT)]
    return [path for path in dict.fromkeys(kept) if path.exists()]


def try_mutant(mutant: Mutant, folder: Path) -> dict[str, Any]:
    """Returns what the tests say of a mutant that is put into the copy in `folder`, which is put right again."""
    path = folder / mutant.file
    original = path.read_text()
    begun = time.monotonic()
    path.write_text(mutant.put_into(original))
    try:
        status = _forked(folder, tests_for(mutant.file))
    finally:
        path.write_text(original)
    return {"status": status, "seconds": round(time.monotonic() - begun, 1), "was": mutant.was[:100]}


def _forked(folder: Path, tests: list[str]) -> str:
    """Runs the tests in a forked process and returns how that ended."""
    child = os.fork()
    if child == 0:
        os.setsid()
        code = 70
        with contextlib.suppress(BaseException):
            code = _run_tests(folder, tests)
        os._exit(code)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return {0: "survived", 1: "killed"}.get(code, "broken")
        time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "slow"


def _run_tests(folder: Path, tests: list[str]) -> int:
    """Runs pytest inside the copy; 1 if a test failed, 2 or more if the package is broken."""
    import pytest

    os.chdir(folder)
    sys.path[:] = [str(folder), *(each for each in sys.path if Path(each or ".").resolve() != ROOT)]
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        import sordino

        assert Path(sordino.__file__).is_relative_to(folder)
    except Exception:
        return 3
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]))


def copy_repository() -> Path:
    """Returns a folder with a copy of the repository, without its history."""
    folder = Path(tempfile.mkdtemp(prefix="mutations-"))
    for name in ("sordino", "tests", "bench", "tools", "docs", "pyproject.toml", "README.md"):
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


EQUIVALENT: dict[str, str] = {}
"""Survivors that mean the same as the original, with the reason."""


def main() -> None:
    """Tries the mutants of a sample that were not tried yet, until the time is over."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("files", nargs="*", help="files to mutate; all targets by default")
    arguments.add_argument(
        "--every", type=int, default=25, help="one mutant of so many, chosen by a digest of its text"
    )
    arguments.add_argument("--minutes", type=float, default=20.0)
    arguments.add_argument("--list", action="store_true", help="only say what there is")
    arguments.add_argument("--again", action="store_true", help="try those that survived once more")
    given = arguments.parse_args()
    paths = [ROOT / file for file in given.files] or targets()
    mutants = [mutant for path in paths for mutant in mutants_of(path)]
    number = {mutant.name: int(hashlib.sha256(mutant.name.encode()).hexdigest(), 16) for mutant in mutants}
    sample = sorted((m for m in mutants if number[m.name] % given.every == 0), key=lambda m: number[m.name])
    if given.list:
        for mutant in mutants:
            print(mutant.name, "|", mutant.was)  # noqa: T201
        return
    record: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"tried": {}}
    tried: dict[str, Any] = record["tried"]
    if given.again:
        sample = [mutant for mutant in mutants if tried.get(mutant.name, {}).get("status") == "survived"]
    _import_libraries()
    folder, end = copy_repository(), time.monotonic() + 60 * given.minutes
    sound: dict[tuple[str, ...], bool] = {}  # whether tests pass on the package as it is
    try:
        for mutant in sample:
            if time.monotonic() > end:
                break
            if mutant.name in tried and not given.again:
                continue
            tests = tuple(tests_for(mutant.file))
            if tests not in sound:
                sound[tests] = _forked(folder, list(tests)) == "survived"
                print("the tests pass without a mutant:" if sound[tests] else "TESTS FAIL WITHOUT A MUTANT:", *tests)  # noqa: T201
            if not sound[tests]:
                continue
            tried[mutant.name] = try_mutant(mutant, folder)
            print(mutant.name, "→", tried[mutant.name]["status"], "|", mutant.was, flush=True)  # noqa: T201
            record |= {"mutants": len(mutants) if not given.files else record.get("mutants"), "score": scores(tried)}
            RESULTS.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _import_libraries() -> None:
    """Imports what every fork needs and no mutant changes."""
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch

    torch.set_num_threads(1)


if __name__ == "__main__":
    main()
