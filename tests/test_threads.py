"""Ranges by threads: every part once, problems handed on, the calling thread among the workers."""

import ctypes
from threading import get_ident

import pytest
import torch

from sordino.kernels import threads

_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_float, *[ctypes.c_uint64] * 3, ctypes.c_float)


@pytest.fixture(params=["torch's", "a pool"])
def team(request, monkeypatch):
    if request.param == "a pool":
        monkeypatch.setattr(threads, "_load_team", lambda: None)
    else:
        torch.randn(1 << 16).sum()  # its runtime is loaded by now
        if threads._load_team() is None:
            pytest.skip("torch has no OpenMP runtime that is known here, or nothing was compiled")


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize(("begin", "end", "multiple"), [(0, 0, 1), (0, 1, 1), (0, 5, 1), (3, 100, 1), (4, 100, 16)])
def test_every_part_is_done_once(team, count, begin, end, multiple):
    seen, by, others = [], {}, set()

    def run(held, scale, first, last, number, factor):
        seen.extend(range(first, last))
        by[first] = get_ident()
        others.add((held, scale, number, factor))
        return 0

    held = ctypes.create_string_buffer(8)
    threads.run_in_parts(_KERNEL(run), (held, 0.5), (1 << 40, 0.25), end, count, multiple, begin=begin)
    assert sorted(seen) == list(range(begin, end))
    assert all((first - begin) % multiple == 0 for first in by)
    assert begin == end or (by[begin] == get_ident() and others == {(ctypes.addressof(held), 0.5, 1 << 40, 0.25)})


def test_what_a_function_takes_for_a_float_may_be_a_whole_number(team):
    seen = set()
    function = _KERNEL(lambda held, scale, first, last, number, factor: seen.add((scale, factor)) or 0)
    threads.run_in_parts(function, (None, 2), (0, 3), 10, 2)
    assert seen == {(2.0, 3.0)}


@pytest.mark.parametrize("bad", [0, 5])
def test_a_problem_of_any_part_is_told_and_the_next_call_works(team, bad):
    def run(held, scale, first, last, number, factor):
        return int(first == bad)

    with pytest.raises(MemoryError, match="no memory for a row"):
        threads.run_in_parts(_KERNEL(run), (None, 0.0), (0, 0.0), 10, 2, short="a row")
    done = []
    kernel = _KERNEL(lambda held, scale, first, last, number, factor: done.append((first, last)) or 0)
    threads.run_in_parts(kernel, (None, 0.0), (0, 0.0), 10, 2, short="a row")
    assert sorted(done) == [(0, 5), (5, 10)]
