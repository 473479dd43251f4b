"""Thousands of ranks, of which one is there: what a lot asks the network for does not grow with their number."""

import pytest

from bench.scale import counted


@pytest.mark.parametrize("size", [64, 4096])
def test_a_lot_is_one_small_all_reduce_one_reduce_scatter_and_one_all_gather(size):
    found = counted(size)
    whole = -(-found["coordinates"] // size) * size  # as many for every rank
    assert found["asked"] == [("all_reduce", 32), ("reduce_scatter", 8 * whole), ("all_gather", 4 * whole)]
