"""The release itself: what it refuses, what it scales noise with, and what it gives up."""

import math

import pytest
import torch

import sordino as sd
from sordino.distributed.process_group import Ranks
from sordino.events import Exponential, NonPrivate
from sordino.release.exact_sums import Grid, OnGridAccumulator, complete_sum
from sordino.release.release import GRID, choose, choose_between, release, tap_releases
from sordino.release.release import Steps as StepFunction
from sordino.release.sealed import Sealed
from sordino.release.sensitivity import Sensitivity, Unproven
from sordino.release.vectors import WideSum, iterate_together
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


def test_noise_of_a_bound_that_nobody_proved_has_no_slack():
    """200,000 numbers: one standard deviation of the estimate is 0.16 %, and 0.9 % is more than five of them."""
    promise = Unproven("nobody proved it", 3.0)
    found = release(Sealed({"a": torch.zeros(200_000)}), promise, sd.Gaussian(1.7), Rng.from_seed(1), 4.0)
    assert float(found.value["a"].double().std()) == pytest.approx(1.7 * 3.0 / 4.0, rel=0.009)


def test_a_place_on_a_line_is_on_a_grid_that_no_record_moves():
    """The ends of the line are public; the edges between them are records, and a grid that began there would show it."""
    steps = StepFunction(torch.tensor([0.0, 0.3, 0.7, 1.0], dtype=torch.float64), torch.zeros(3))
    for seed in range(50):
        place, _ = choose_between(Sealed(steps), 1.0, 1.0, Rng.from_seed(seed))
        assert (place / GRID).is_integer()


def test_noise_on_a_grid_is_drawn_in_the_type_of_the_sum():
    assert on_grid(torch.zeros(3)).dtype is torch.float32
    assert on_grid(torch.zeros(3, dtype=torch.float64)).dtype is torch.float64


def test_a_sum_on_the_grid_is_complete_and_stops_short_of_its_limit():
    values = torch.tensor([0.25, -0.5, 1.0])
    assert torch.equal(complete_sum(on_grid(values.clone()))["a"], values)
    grid = Grid.of(1.0)
    steps = float(grid.to_steps("a", torch.ones(1)).abs().max())
    for limit, overflows in ((steps, True), (2 * steps, False)):
        total = OnGridAccumulator(grid, Ranks(), limit)
        total.add_chunk({"a": torch.ones(1)})
        assert total.has_overflowed is overflows


def test_sums_whose_buffers_hold_their_tensors_in_another_order_are_added_by_name():
    one, other = torch.arange(4.0), 10 * torch.arange(4.0)
    left, right = {"a": one[:2], "b": one[2:]}, {"b": other[:2], "a": other[2:]}
    for mine, theirs in iterate_together(left, right):
        mine += theirs
    assert {name: tensor.tolist() for name, tensor in left.items()} == {"a": [20.0, 31.0], "b": [2.0, 13.0]}


def test_choices_have_the_probabilities_of_the_exponential_mechanism():
    """Of 1,500 draws one standard deviation of a share is at most 1.3 %, and 6.5 % is five of them."""
    epsilon, sensitivity, gain, draws = 1.0, 2.0, 4.0, 1500
    odds = math.exp(epsilon * gain / (2 * sensitivity))
    rng, scores = Rng.from_seed(0), torch.tensor([0.0, gain])
    chosen = [choose(Sealed(scores), sensitivity, epsilon, rng)[0] for _ in range(draws)]
    assert sum(chosen) / draws == pytest.approx(odds / (1 + odds), abs=0.065)
    # On a line the length of an interval counts as well: here the second is three times as long.
    steps = StepFunction(torch.tensor([0.0, 1.0, 4.0]), scores)
    places = [choose_between(Sealed(steps), sensitivity, epsilon, rng)[0] for _ in range(draws)]
    assert sum(place > 1 for place in places) / draws == pytest.approx(3 * odds / (1 + 3 * odds), abs=0.065)
    # Inside an interval all places are alike.
    assert sum(place for place in places if place > 1) / sum(place > 1 for place in places) == pytest.approx(
        2.5, abs=0.1
    )


def test_laplace_noise_refuses_a_multiplier_that_is_none():
    for multiplier in (-1.0, math.nan):
        with pytest.raises(ValueError, match="multiplier"):
            sd.Laplace(multiplier)
    assert isinstance(sd.Laplace(1).multiplier, float)


@pytest.mark.parametrize("multiplier", [0.01, 0.5, 1.0, 2.0])
def test_little_noise_meets_a_wide_sum_before_it_is_rounded_as_much_noise_does(multiplier):
    """A sum that is rounded first tells its last bits, whatever noise comes after; noise below 1 must not be added so."""
    torch.manual_seed(0)
    values = torch.randn(2000).double() + 1e-9 * torch.randn(2000).double()
    noise = release(Sealed({"a": torch.zeros(2000)}), Sensitivity(1.0), sd.Gaussian(multiplier), Rng.from_seed(3)).value
    wide = WideSum({"a": values.clone()}, {"a": torch.zeros(2000)})
    found = release(Sealed(wide), Sensitivity(1.0), sd.Gaussian(multiplier), Rng.from_seed(3)).value["a"]
    assert torch.equal(found, (values + noise["a"]).float())
    assert not torch.equal(found, values.float() + noise["a"])


def test_a_choice_while_releases_are_tapped_has_no_guarantee_even_if_choices_are_not():
    scores, steps = torch.tensor([0.0, 1.0]), StepFunction(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 1.0]))
    with tap_releases(lambda *_: None):
        assert isinstance(choose(Sealed(scores), 1.0, 1.0, Rng.from_seed(0))[1], NonPrivate)
        assert isinstance(choose_between(Sealed(steps), 1.0, 1.0, Rng.from_seed(0))[1], NonPrivate)
    assert choose(Sealed(scores), 1.0, 1.0, Rng.from_seed(0))[1] == Exponential(1.0)


def test_large_tensors_that_are_not_contiguous_are_gone_through_whole():
    left, right = ({"w": torch.arange(90_000.0).view(300, 300).t() * k} for k in (1.0, 2.0))
    pieces = list(iterate_together(left, right))
    for one, two in pieces:
        one += two
    assert sum(one.numel() for one, _ in pieces) == 90_000
    assert torch.equal(left["w"], 3 * torch.arange(90_000.0).view(300, 300).t())
