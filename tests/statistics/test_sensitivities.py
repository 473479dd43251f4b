"""Global sensitivities in closed form are the most of the local ones over every data set of a grid."""

from itertools import product

import pytest

from sordino.statistics import EXAMPLE_QUERIES, global_sensitivity, local_sensitivity


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("query", EXAMPLE_QUERIES)
def test_the_global_one_is_the_worst_local_one(query, n):
    grid = (-1.0, 0.0, 1.5, 3.0)
    worst = max(local_sensitivity(query, data, -1.0, 3.0) for data in product(grid, repeat=n))
    assert worst == pytest.approx(global_sensitivity(query, n, -1.0, 3.0))


@pytest.mark.parametrize("query", EXAMPLE_QUERIES)
def test_the_local_one_tries_all_that_could_be_added(query):
    data = [0.0, 0.5, 2.0, 2.5, 2.75]
    found = local_sensitivity(query, data, -1.0, 3.0)
    answer = EXAMPLE_QUERIES[query].of
    tried = [abs(answer([*data, -1 + 0.01 * k]) - answer(data)) for k in range(401)]
    assert max(tried) <= found + 1e-12


def test_data_all_at_one_place_have_a_median_that_one_record_cannot_move():
    assert local_sensitivity("median", [5.0] * 9, 0.0, 100.0) == 0.0
    assert global_sensitivity("median", 9, 0.0, 100.0) == 50.0


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: global_sensitivity("mode", 3, 0.0, 1.0), "query='mode': there is count"),
        (lambda: global_sensitivity("mean", 1, 0.0, 1.0), "n=1: must be >= 2"),
        (lambda: global_sensitivity("mean", 3, 1.0, 1.0), "need low < high"),
        (lambda: local_sensitivity("mean", [0.0, 2.0], 0.0, 1.0), r"all within \[0, 1\]"),
    ],
)
def test_what_makes_no_sense_is_refused(call, why):
    with pytest.raises(ValueError, match=why):
        call()
