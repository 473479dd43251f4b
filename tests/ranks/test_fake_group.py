"""Thousands of ranks, of which one is there: what a lot asks the network for does not grow with their number."""

import pytest

from bench.scale import counted


@pytest.mark.parametrize("size", [64, 4096])
def test_a_lot_is_one_small_all_reduce_one_reduce_scatter_and_one_all_gather(size):
    found = counted(size)
    whole = -(-found["coordinates"] // size) * size  # as many for every rank
    assert found["asked"] == [("all_reduce", 32), ("reduce_scatter", 8 * whole), ("all_gather", 4 * whole)]


def test_a_divided_model_is_gathered_once_and_what_is_released_is_not_sent():
    """Two meetings, an all-gather and a reduce-scatter of each parameter's rows, and nothing after the noise."""
    found = counted(64, divided=True)
    rows = found["of_even_rows"]
    gathered = [("all_gather", 4 * each) for each in rows]
    assert found["asked"] == [
        ("all_reduce", 32),
        *gathered,
        ("all_reduce", 32),
        *[("reduce_scatter", 8 * each) for each in rows],
    ]
