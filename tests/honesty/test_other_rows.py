"""Records that are made of other rows are found, and honest datasets are not taken for them."""

import random

import numpy as np
import pytest
import torch

from sordino.lots.loading import Loader
from sordino.runtime_checks.reading_check import FIRST_RECORDS, ReadingOutcome, check_reading_of_records
from tests.honesty.attacks.model import far
from tests.honesty.attacks.other_rows import MADE
from tests.honesty.data import cross_entropy, network
from tests.honesty.honest.datasets import HONEST_DATASETS

check_reading_of_records.__test__ = False  # a function of the library, not a test
BOUND, PASSES = 0.2, 6
PLACES = {
    "a wrapper mixes a subset": [i for i in range(64) if i % 8],
    "a subset of a dataset that mixes": [i for i in range(64) if i % 8 != 1],
    "a split by indices of rows that are mixed": [i for i in range(64) if i % 8 != 2],
    "an order and a mean": np.random.default_rng(5).permutation(64).tolist(),
}
"""Which row each record is made of, where that is not the row of its own number."""


def sums(name, x, y, kept):
    """The clipped sums over some records, in several passes with the same random numbers for each record."""
    torch.manual_seed(0)
    model = network()
    dataset, collate = MADE[name](x, y)
    total = []
    for number in range(PASSES):
        torch.manual_seed(number)
        random.seed(number)
        np.random.seed(number)
        fetched = getattr(dataset, "__getitems__", lambda rows: [dataset[i] for i in rows])(kept)
        batch = (collate or torch.utils.data.default_collate)(fetched)
        one = torch.zeros(sum(p.numel() for p in model.parameters()))
        for loss in cross_entropy(model, *batch):
            g = torch.cat([p.flatten() for p in torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)])
            one += g * min(1.0, BOUND / float(g.norm()))
        total.append(one)
    return total


@pytest.mark.parametrize("name", MADE)
def test_one_row_moves_the_sum_of_the_other_records(name):
    """The other records alone move by more than half the bound, on top of what the row's own record may move."""
    x, y = far(0).tensors
    worst = 0.0
    for row in (5, 20, 63):
        other = x.clone()
        classes = y.clone()
        classes[row] = (y[row] + 1) % 3
        other[row] = 40 * torch.randn(6, generator=torch.Generator().manual_seed(1))
        places = PLACES.get(name, list(range(64)))
        kept = [k for k, place in enumerate(places) if place != row]
        pairs = zip(sums(name, x.clone(), y, kept), sums(name, other, classes, kept), strict=True)
        worst = max(worst, *(float((a - b).norm()) / BOUND for a, b in pairs))
    assert worst > 0.5, f"{name}: the others move by {worst:.2f} times the bound"


@pytest.mark.parametrize("name", MADE)
def test_a_record_made_of_other_rows_is_found_at_the_first_lot(name):
    found = 0
    for seed in range(5):
        load = Loader(*MADE[name](*far(seed).tensors))
        load.remember_unread()
        chosen = np.random.default_rng(seed).permutation(len(load.dataset))[:FIRST_RECORDS].tolist()
        found += check_reading_of_records(load, chosen, seed) is ReadingOutcome.COUPLED
    assert found == 5, f"{name}: found {found} of 5 times"


@pytest.mark.parametrize("name", HONEST_DATASETS)
def test_an_honest_dataset_is_not_taken_for_one(name):
    for seed in range(5):
        load = Loader(*HONEST_DATASETS[name](*far(seed).tensors))
        load.remember_unread()
        chosen = np.random.default_rng(seed).permutation(len(load.dataset))[:FIRST_RECORDS].tolist()
        assert check_reading_of_records(load, chosen, seed) is not ReadingOutcome.COUPLED
