"""Records that stay where they are: the same bits wherever they lie, and nothing is read that is not there."""

import numpy as np
import pytest
import torch

import sordino as sd
from sordino.lots.data_owners import CuttingBySite, assign_sites
from sordino.lots.loading import cut_into_batches
from tests.distributed import sharded_jobs
from tests.distributed.gang import Failed
from tests.distributed.test_same_bits import the_same
from tests.problems import linear, private

HOLDERS = {
    1: [[0, 1, 2, 3]],
    2: [[0, 2], [1, 3]],
    3: [[3], [0, 1], [1, 2]],  # one site at two ranks, and the first at another than the first
}


@pytest.mark.parametrize(
    ("sampler", "reading", "divided"),
    [
        (sd.Poisson(0.2), "rows", False),
        (sd.Poisson(0.02), "one by one", True),
        (sd.Shuffle(12), "rows", False),
    ],
    ids=["poisson", "often empty, divided", "shuffle"],
)
def test_sites_come_to_the_same_whoever_holds_them(gang, sampler, reading, divided):
    """Three ranks of a divided model take its layers one by one; their sites differ in length, and so do the chunks."""
    the_same(
        [
            came
            for size, holders in HOLDERS.items()
            for came in gang(sharded_jobs.at_sites, size, holders, sampler, reading, divided, divided and size == 3)
        ]
    )


def test_a_site_that_nobody_holds_is_refused_on_every_rank(gang):
    with pytest.raises(Failed) as caught:
        gang(sharded_jobs.at_sites, 2, [[0], [1, 3]], sd.Poisson(0.2), "rows", False)
    assert str(caught.value).count("Refusal: site 2 is held by no rank") == 2


def test_a_lot_is_cut_at_the_borders_of_sites_and_in_them_as_any_other():
    cut = CuttingBySite(np.cumsum([10, 30, 20]), assign_sites([[0, 2], [1]], 3), 0, 2)
    lot = np.flatnonzero(np.random.default_rng(0).random(60) < 0.5)
    found = cut.cut(lot, 4, 60)
    assert np.array_equal(np.concatenate(found), lot)
    alone = [part + 10 for part in cut_into_batches(lot[(lot >= 10) & (lot < 40)] - 10, 4, 30)]
    inside = [part for part in found if 10 <= part[0] < 40]
    assert [part.tolist() for part in inside] == [part.tolist() for part in alone]
    first, second = cut.shares_of_ranks(found)
    assert sorted([*first, *second]) == list(range(len(found)))
    assert all(found[number][0] >= 10 and found[number][-1] < 40 for number in second)


def test_all_sites_in_one_process_are_an_ordinary_dataset():
    x, y = linear().tensors
    held = {k: torch.utils.data.TensorDataset(x[a:b], y[a:b]) for k, (a, b) in enumerate([(0, 20), (20, len(x))])}
    run = private()
    for lot in run.draws(sd.Sites([20, len(x) - 20], held), sd.Poisson(0.3), 2):
        run.backward(lot)
    assert "differential privacy" in str(run.claim(1e-5))


def test_one_dataset_at_two_sites_is_charged_twice():
    data = linear(20)
    run = private()
    for lot in run.draws(sd.Sites([20, 20], {0: data, 1: data}), sd.Poisson(0.3), 1):
        run.backward(lot)
    assert "Group" in repr(run.event)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: sd.Sites([3], {0: [1, 2]}), "site 0 has 2 records, and lengths says 3"),
        (lambda: sd.Sites([3], {1: [1, 2, 3]}), "there are 1 of them"),
        (lambda: sd.Sites([3], {}), "every rank needs a site"),
    ],
)
def test_sites_that_cannot_be_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_what_is_about_all_records_is_refused():
    run, data = private(), sd.Sites([60], {0: linear(60)})
    with pytest.raises(sd.Refusal, match="units are about all records"):
        run.draws(data, sd.Poisson(0.1), 1, unit=sd.Views(2))
    with pytest.raises(sd.Refusal, match="is about all records"):
        run.draws(data, sd.ByLength(lambda lengths: 0 * lengths + 0.1, 0.1), 1)


def test_records_that_are_elsewhere_are_not_read():
    with pytest.raises(sd.Refusal, match="a record of site 0 was asked for on a rank that holds"):
        sd.Sites([2, 2], {1: [5, 6]})[1]
