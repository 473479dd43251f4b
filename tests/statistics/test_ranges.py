"""Private bounds of columns: one record moves the histogram by √d, and the bounds hold what there is much of."""

import math

import pytest
import torch

import sordino as sd
from sordino.events import Gaussian
from sordino.statistics.ranges import BINS, Ranged, Ranges, edges_of_bin, find_bins


def test_every_number_lies_in_its_bin():
    values = torch.cat([s * torch.logspace(-6, 11, 500, dtype=torch.float64) for s in (-1, 1)])
    values = torch.cat([values, torch.tensor([0.0, 1.0, -1.0, 2.0**-10, 2.0**40, -(2.0**17)])])
    for value, place in zip(values.tolist(), find_bins(values).tolist(), strict=True):
        low, high = edges_of_bin(place)
        assert low <= value <= high


def test_bins_follow_each_other():
    for place in range(BINS - 1):
        assert edges_of_bin(place)[1] == edges_of_bin(place + 1)[0]


def test_one_record_moves_the_histogram_by_the_declared_sensitivity_and_no_more():
    (part,) = Ranges(3, sd.Gaussian(1.0)).sums
    rows = torch.randn(50, 4) * torch.tensor([1.0, 1e6, 1e-6, 1.0])
    for record in (torch.tensor([[1.0, 1e30, -5.0, 0.0]]), torch.tensor([[math.nan, math.inf, 0.0, 0.0]])):
        moved = part.total(torch.cat([rows, record])) - part.total(rows)
        assert float(moved.norm()) <= part.sensitivity.l2 + 1e-9
    assert part.sensitivity.l2 == pytest.approx(math.sqrt(3))
    assert float(moved.sum()) == pytest.approx(1.0)  # of nan, inf and 0 only the last counts


def test_the_bounds_of_a_table_without_noise_hold_every_number_and_are_tight():
    rows = torch.stack([torch.linspace(17, 90, 1000), torch.linspace(-3, 0.4, 1000), torch.zeros(1000)], dim=1)
    found = Ranges(3, sd.Gaussian(1e-9)).value([Ranges(3, sd.Gaussian(1e-9)).sums[0].total(rows)], lambda: 1.0)
    assert found.T.tolist() == [[16.0, 128.0], [-4.0, 0.5], [-(2.0**-10), 2.0**-10]]


def test_it_costs_one_release_on_the_whole_data():
    ledger = sd.Ledger()
    sd.ask(Ranges(2, sd.Gaussian(20.0)), torch.rand(100, 2), ledger=ledger)
    assert ledger.event() == Gaussian(20.0)
    assert ledger.disclosed == ()  # nothing is divided by the number of records


def test_empty_bins_are_rarely_taken_for_full_ones():
    """FALSE_ALARM is 1 in 100; of 100 draws more than 6 have a chance below one in 10,000 (binomial)."""
    rows = torch.full((800, 2), 1.5)
    wrong = 0
    for seed in range(100):
        found = sd.ask(Ranges(2, sd.Gaussian(20.0)), rows, ledger=sd.Ledger(), seed=seed)
        wrong += found.T.tolist() != [[1.0, 2.0], [1.0, 2.0]]
    assert wrong <= 6


def test_the_layer_cuts_and_scales_the_first_columns_only():
    layer = Ranged(2)
    layer.low.copy_(torch.tensor([0.0, -4.0]))
    layer.high.copy_(torch.tensor([10.0, 4.0]))
    x = torch.tensor([[5.0, 9.0, 7.0], [-1.0, 2.0, -3.0]])
    assert layer(x).tolist() == [[0.0, 1.0, 7.0], [-1.0, 0.5, -3.0]]
