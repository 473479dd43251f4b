"""Whichever rank is killed, and whenever: the run goes on, with more or fewer ranks, to the bits of an undisturbed one."""

import random

import pytest

from sordino.runs.directory import MODEL
from tests.ranks.killed import killed, undisturbed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("whole") / "run", 3)


@pytest.mark.parametrize(("size", "after"), [(2, 3), (3, 1), (2, 2)])
def test_a_killed_rank_loses_nothing(tmp_path, wanted, size, after):
    killed(tmp_path / "run", size, after, random.Random(size * 10 + after))
    assert (tmp_path / "run" / MODEL).read_bytes() == wanted
