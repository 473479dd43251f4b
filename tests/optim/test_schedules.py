"""Learning-rate schedules: their formulas, and torch's own scheduler driven by them."""

import itertools
import math

import pytest
import torch

from sordino.schedules import Constant, Cosine, Epochs, Linear, RiseAndFall, Warmup


def test_the_cosine_per_epoch_of_the_sources():
    schedule = Epochs(Cosine(0.1, 0.0, 30), period=240)
    for epoch in range(30):
        rate = 0.1 * 0.5 * (1 + math.cos(math.pi * epoch / 30))
        assert {round(schedule(t), 12) for t in range(240 * epoch, 240 * (epoch + 1))} == {round(rate, 12)}


def test_linear_decay_over_the_first_epochs_then_constant():
    schedule = Linear(0.1, 0.052, 10 * 100)
    assert schedule(0) == 0.1
    assert schedule(500) == pytest.approx(0.076)
    assert schedule(1000) == schedule(5000) == pytest.approx(0.052)


def test_warm_up_over_the_first_steps():
    schedule = Warmup(4, Constant(1.0))
    assert [schedule(t) for t in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_rise_and_fall_is_highest_at_its_peak_and_has_no_jump():
    schedule = RiseAndFall(0.01, 1.0, 0.1, rise=30, steps=100)
    values = [schedule(t) for t in range(120)]
    assert (values[0], values[30], values[100], values[119]) == pytest.approx((0.01, 1.0, 0.1, 0.1))
    assert max(range(120), key=values.__getitem__) == 30
    assert max(abs(a - b) for a, b in itertools.pairwise(values)) < 0.034
    with pytest.raises(ValueError, match=r"rise=5: must be < steps=5"):
        RiseAndFall(0.0, 1.0, 0.0, rise=5, steps=5)


def test_torchs_own_scheduler_takes_them_as_factors():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = RiseAndFall(0.1, 1.0, 0.0, rise=3, steps=9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    for t in range(12):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * schedule(t))
        optimizer.step()
        scheduler.step()
