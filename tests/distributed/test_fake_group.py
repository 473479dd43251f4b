"""Thousands of ranks, of which one is there: what a lot asks the network for does not grow with their number."""

import pytest

from bench.scale import count_collectives
from bench.scale_model import bytes_of_lot


@pytest.mark.parametrize("size", [64, 4096])
def test_a_lot_is_one_small_all_reduce_one_reduce_scatter_and_one_all_gather(size):
    found = count_collectives(size)
    whole = -(-found["coordinates"] // size) * size  # as many for every rank
    assert found["asked"] == [("all_reduce", 32), ("reduce_scatter", 8 * whole), ("all_gather", 4 * whole)]


def test_a_divided_model_is_gathered_once_and_what_is_released_is_not_sent():
    """Two meetings, an all-gather and a reduce-scatter of each parameter's rows, and nothing after the noise."""
    found = count_collectives(64, divided=True)
    rows = found["of_even_rows"]
    gathered = [("all_gather", 4 * each) for each in rows]
    assert found["asked"] == [
        ("all_reduce", 32),
        *gathered,
        ("all_reduce", 32),
        *[("reduce_scatter", 8 * each) for each in rows],
    ]


def test_layer_by_layer_a_chunk_gathers_twice_and_scatters_once():
    """Before each message a rank says what it needs; on the way back the first layer needs no weight, and none a bias."""
    size = 64
    found = count_collectives(size, divided=True, layered=True)
    first, bias, last, out = found["of_even_rows"]
    said = [("all_gather", 8 * size)]
    assert [each for each in found["asked"] if each[0] != "all_reduce"] == [
        *(each for rows in (first, bias, last, out, last) for each in [*said, ("all_gather", 4 * rows)]),
        *(each for rows in (first, bias, last, out) for each in [*said, ("reduce_scatter", 8 * rows)]),
        *said,  # nothing more is needed: before the meeting, and at the end
        *said,
    ]


@pytest.mark.parametrize("layered", [False, True])
def test_the_model_of_larger_machines_sends_what_is_counted(layered):
    """Within what rows that are made even, words and the agreement come to; a first layer is not gathered twice."""
    found = count_collectives(64, divided=True, layered=layered)
    rows, asked = found["of_even_rows"], found["asked"]
    wanted = bytes_of_lot(sum(rows), 1, layered=layered)
    once = 4 * (sum(rows) - rows[2]) if layered else 0
    said = sum(bytes for kind, bytes in asked if kind == "all_gather" and bytes == 8 * 64)
    assert sum(bytes for kind, bytes in asked if kind == "all_gather") == wanted["gather"] - once + said
    assert sum(bytes for kind, bytes in asked if kind == "reduce_scatter") == wanted["scatter"]
