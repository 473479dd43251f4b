"""The release itself: what it refuses, what it scales noise with, and what it gives up."""

import math

import pytest
import torch

import sordino as sd
from sordino.distributed.process_group import Ranks
from sordino.events import Exponential, NonPrivate
from sordino.release.exact_sums import Grid, OnGridAccumulator
from sordino.release.release import Steps as StepFunction
from sordino.release.release import choose, choose_between, release
from sordino.release.sealed import Sealed
from sordino.release.sensitivity import Sensitivity, Unproven
from sordino.rng.streams import Rng


def on_grid(values):
    total = OnGridAccumulator(Grid.of(1.0), Ranks())
    total.add_chunk({"a": values})
    return total.total


@pytest.mark.parametrize("made", [lambda: {"a": torch.zeros(4)}, lambda: on_grid(torch.zeros(4))], ids=["sum", "grid"])
def test_a_bound_that_was_proved_for_fewer_coordinates_is_refused(made):
    for dimension in (4, 5):
        release(Sealed(made()), Sensitivity(l2=1.0, dimension=dimension), sd.Gaussian(1.0), Rng.from_seed(0))
    with pytest.raises(ValueError, match="the sum has 4 coordinates, and the bound was proved for"):
        release(Sealed(made()), Sensitivity(l2=1.0, dimension=3), sd.Gaussian(1.0), Rng.from_seed(0))


def test_noise_needs_a_finite_bound():
    with pytest.raises(ValueError, match="noise needs a finite bound"):
        release(Sealed({"a": torch.zeros(2)}), Sensitivity(l2=math.inf), sd.Gaussian(1.0), Rng.from_seed(0))


def test_without_noise_an_infinite_bound_is_allowed_and_has_no_guarantee():
    found = release(Sealed({"a": torch.ones(2)}), Sensitivity(l2=math.inf), sd.Gaussian(0.0), Rng.from_seed(0), 2.0)
    assert found.value["a"].tolist() == [0.5, 0.5]
    assert isinstance(found.event, NonPrivate)


def test_what_nothing_bounds_is_lost():
    promise = Unproven("nobody proved it", math.inf)
    found = release(Sealed({"a": torch.ones(2)}), promise, sd.Gaussian(1.0), Rng.from_seed(0))
    assert found.value["a"].isnan().all()
    assert found.event == NonPrivate("nobody proved it")


@pytest.mark.parametrize("rounding", [0.0, 0.5])
@pytest.mark.parametrize("bound", [1.0, 3.0])
@pytest.mark.parametrize("grid", [False, True])
def test_the_scale_of_the_noise_is_multiplier_times_bound_times_what_rounding_adds(grid, bound, rounding):
    """200,000 numbers: one standard deviation of the estimate is 0.16 %, and 0.9 % is more than five of them."""
    n, multiplier, divisor = 200_000, 1.7, 4.0
    values = torch.zeros(n)
    total = on_grid(values) if grid else {"a": values}
    promise = Sensitivity(l2=bound, rounding=rounding)
    found = release(Sealed(total), promise, sd.Gaussian(multiplier), Rng.from_seed(1), divisor)
    assert found.divided_by == divisor
    wanted = multiplier * bound * (1 + rounding) / divisor
    assert float(found.value["a"].double().std()) == pytest.approx(wanted, rel=0.009)


def test_a_choice_costs_its_epsilon_and_refuses_other_numbers():
    chosen, event = choose(Sealed(torch.tensor([0.0, 50.0, 0.0])), 1.0, 2.0, Rng.from_seed(0))
    assert (chosen, event) == (1, Exponential(2.0))
    for sensitivity, epsilon in ((0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (1.0, math.nan)):
        with pytest.raises(ValueError, match=r"sensitivity|epsilon"):
            choose(Sealed(torch.zeros(2)), sensitivity, epsilon, Rng.from_seed(0))


def test_a_place_on_a_line_is_never_in_an_empty_interval_and_lies_between_the_ends():
    steps = StepFunction(torch.tensor([1.0, 2.0, 2.0, 4.0]), torch.tensor([0.0, 1000.0, 0.0]))
    for seed in range(50):
        place, event = choose_between(Sealed(steps), 1.0, 1.0, Rng.from_seed(seed))
        assert 1.0 <= place <= 4.0
        assert event == Exponential(1.0)


def test_laplace_noise_follows_the_l1_bound_and_refuses_to_do_without():
    """Of 200,000 numbers the mean length is the scale, give or take 0.22 %; 1.2 % is more than five times that."""
    values = torch.zeros(200_000)
    found = release(Sealed({"a": values}), Sensitivity(l2=1.0, l1=5.0), sd.Laplace(0.5), Rng.from_seed(1))
    assert float(found.value["a"].double().abs().mean()) == pytest.approx(2.5, rel=0.012)
    with pytest.raises(TypeError, match="Laplace noise needs an L1 bound"):
        release(Sealed({"a": torch.zeros(2)}), Sensitivity(l2=1.0), sd.Laplace(0.5), Rng.from_seed(1))
