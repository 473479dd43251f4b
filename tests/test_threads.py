"""Ranges by threads: every part once, problems handed on, the calling thread among the workers."""

import ctypes
from importlib import import_module
from pathlib import Path
from threading import get_ident

import pytest
import torch

from sordino.kernels import abi

_SIZE, _POINTER = ctypes.c_uint64, ctypes.c_void_p
_KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, _POINTER, _SIZE, _SIZE, _SIZE, _SIZE, _POINTER, ctypes.c_float, _POINTER
)
"""The type of the Gram kernels: level, factors, count, first, last, positions, ranges, floor, out."""
_UNKNOWN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_float, _SIZE, _SIZE)
"""A type for which threads.c has no caller."""
_WITHOUT_RANGES = {
    *("sordino_squared", "sordino_weighted", "sordino_finite", "sordino_joined", "sordino_shortened"),
    *("sordino_within", "sordino_keystream"),
}
"""Compiled functions that no thread is given a range of."""


@pytest.fixture(params=["torch's", "a pool"])
def team(request, monkeypatch):
    if request.param == "a pool":
        monkeypatch.setattr(abi, "_load_team", lambda: None)
    else:
        torch.randn(1 << 16).sum()  # its runtime is loaded by now
        if abi._load_team() is None:
            pytest.skip("torch has no OpenMP runtime that is known here, or nothing was compiled")


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize(("begin", "end", "multiple"), [(0, 0, 1), (0, 1, 1), (0, 5, 1), (3, 100, 1), (4, 100, 16)])
def test_every_part_is_done_once(team, count, begin, end, multiple):
    seen, by, others = [], {}, set()

    def run(level, held, number, first, last, *others_given):
        seen.extend(range(first, last))
        by[first] = get_ident()
        others.add((level, held, number, *others_given))
        return 0

    held = ctypes.create_string_buffer(8)
    before, after = (2, held, 1 << 40), (1 << 41, None, 0.25, held)
    abi.run_in_parts(_KERNEL(run), before, after, end, count, multiple, begin=begin)
    assert sorted(seen) == list(range(begin, end))
    assert all((first - begin) % multiple == 0 for first in by)
    if begin < end:
        at = ctypes.addressof(held)
        assert by[begin] == get_ident()
        assert others == {(2, at, 1 << 40, 1 << 41, None, 0.25, at)}


def test_a_function_of_another_type_runs_by_the_pool(team):
    """threads.c calls a function through its own type only; it has none for this one."""
    seen = []
    function = _UNKNOWN(lambda scale, first, last: seen.append((scale, first, last)) or 0)
    abi.run_in_parts(function, (0.5,), (), 10, 2)
    assert sorted(seen) == [(0.5, 0, 5), (0.5, 5, 10)]


def test_threads_c_has_a_caller_for_every_kernel_over_ranges():
    torch.randn(1 << 16).sum()  # its runtime is loaded by now
    team = abi._load_team()
    if team is None:
        pytest.skip("torch has no OpenMP runtime that is known here, or nothing was compiled")
    modules = [import_module(f"sordino.kernels.{path.stem}") for path in Path(abi.__file__).parent.glob("*.py")]
    types = {name: kinds for module in modules for name, kinds in getattr(module, "FUNCTIONS", {}).items()}
    over_ranges = {name: kinds for name, kinds in types.items() if name not in _WITHOUT_RANGES}
    assert len(over_ranges) >= 17
    letters = {name: "".join(abi._KINDS[kind] for kind in kinds) for name, kinds in over_ranges.items()}
    assert [name for name, kinds in letters.items() if team.find_signature(kinds.encode()) < 0] == []


def test_a_problem_that_a_function_without_a_result_left_behind_is_none(team):
    """The noise returns nothing; reading a result all the same gave whatever was in the register."""
    signature = ctypes.CFUNCTYPE(
        *(None, ctypes.c_int, _POINTER, ctypes.c_float, ctypes.c_float, _SIZE, _SIZE, _POINTER, _POINTER, _SIZE),
        *(_POINTER, _SIZE),
    )
    seen = []
    function = signature(lambda *given: seen.append(given))
    abi.run_in_parts(function, (1, None, 0.5, 0.25), (3, None, 5, 7, 9), 10, 2, short="a row")
    assert sorted(seen) == [(1, None, 0.5, 0.25, 0, 5, 3, None, 5, 7, 9), (1, None, 0.5, 0.25, 5, 10, 3, None, 5, 7, 9)]


def test_what_a_function_takes_for_a_float_may_be_a_whole_number(team):
    seen = set()
    function = _KERNEL(lambda *given: seen.add(given[7]) or 0)
    abi.run_in_parts(function, (0, None, 0), (0, None, 3, None), 10, 2)
    assert seen == {3.0}


@pytest.mark.parametrize("bad", [0, 5])
def test_a_problem_of_any_part_is_told_and_the_next_call_works(team, bad):
    def run(*given):
        return int(given[3] == bad)

    before, after = (0, None, 0), (0, None, 0.0, None)
    with pytest.raises(MemoryError, match="no memory for a row"):
        abi.run_in_parts(_KERNEL(run), before, after, 10, 2, short="a row")
    done = []
    kernel = _KERNEL(lambda *given: done.append(given[3:5]) or 0)
    abi.run_in_parts(kernel, before, after, 10, 2, short="a row")
    assert sorted(done) == [(0, 5), (5, 10)]
