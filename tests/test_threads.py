"""Ranges by threads: every part once, errors handed on, the calling thread among the workers."""

from threading import get_ident

import pytest
import torch

from sordino.kernels import threads


@pytest.fixture(params=["torch's", "a pool"])
def team(request, monkeypatch):
    if request.param == "a pool":
        monkeypatch.setattr(threads, "torchs_team", lambda: None)
    else:
        torch.randn(1 << 16).sum()  # its runtime is loaded by now
        if threads.torchs_team() is None:
            pytest.skip("torch has no OpenMP runtime that is known here")


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize(("end", "multiple"), [(0, 1), (1, 1), (5, 1), (100, 1), (100, 16)])
def test_every_part_is_done_once(team, count, end, multiple):
    seen, by = [], set()

    def run(begin, stop):
        seen.extend(range(begin, stop))
        by.add(get_ident())
        assert begin % multiple == 0

    threads.in_parts(run, end, count, multiple)
    assert sorted(seen) == list(range(end))
    assert not end or get_ident() in by


def test_an_error_is_handed_on_and_the_next_call_works(team):
    def run(begin, stop):
        if begin:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        threads.in_parts(run, 10, 2)
    done = []
    threads.in_parts(lambda begin, stop: done.append((begin, stop)), 10, 2)
    assert sorted(done) == [(0, 5), (5, 10)]
