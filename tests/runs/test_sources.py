"""Recipes of the papers have the papers' numbers: what is printed there comes out of them, or the recipe says why not."""

import pytest
import torch
from torch.utils.data import TensorDataset

from sordino.accounting import RDP, Moments
from sordino.app.runs import Prepared, build, event, find
from sordino.app.runs.known_recipes import SOURCES
from sordino.app.runs.problem import learning_rate_schedule


def epsilon(accountant, name, **changes):
    recipe = find(name).but(**changes)
    return accountant.epsilon(event(recipe, recipe.noise_multiplier), 1e-5)


@pytest.mark.parametrize(("name", "printed"), [("thesis-mnist", 1.769), ("thesis-cifar", 1.729)])
def test_the_thesis_prints_the_renyi_epsilon_of_poisson_sampling(name, printed):
    """Which its batches are not, and its sorted and projected runs have none at all."""
    assert epsilon(RDP(), name) == pytest.approx(printed, abs=0.002)


@pytest.mark.parametrize(("epochs", "multiplier", "printed"), [(50, 1.1, 2.268), (30, 2.6, 0.538)])
def test_the_other_printed_epsilons_are_changes_of_one_recipe(epochs, multiplier, printed):
    found = epsilon(RDP(), "thesis-cifar", steps=250 * epochs, noise_multiplier=multiplier)
    assert found == pytest.approx(printed, abs=0.002)


@pytest.mark.parametrize(("name", "printed"), [("abadi-cifar", 2.0), ("abadi-cifar-lot-4000", 8.0)])
def test_steps_end_at_the_printed_epsilon_of_the_moments_accountant(name, printed):
    assert epsilon(Moments(), name) == pytest.approx(printed, abs=0.01)


def test_figure_two_is_the_middle_recipe_without_its_pca():
    recipe = find("abadi-mnist").but(pca=None, steps=10_000)
    assert Moments().epsilon(event(recipe, 4.0), 1e-5) == pytest.approx(1.26, abs=0.005)


SHAPES = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
TRAINED = {
    "thesis-mnist": 209_514,
    "thesis-cifar": 131_466,
    "abadi-mnist": 71_010,
    "wd-mnist": 26_010,
    "wd-cifar": 131_466,
    "fashion-logistic": 7_850,
    "abadi-cifar": 1280 * 384 + 384 + 384 * 384 + 384 + 384 * 10 + 10,
}


@pytest.mark.parametrize("name", TRAINED)
def test_the_networks_have_as_many_parameters_as_there(name):
    recipe = find(name)
    shape = (1280,) if recipe.features != "none" else SHAPES[recipe.dataset]
    one = TensorDataset(torch.zeros(1, *shape), torch.zeros(1, dtype=torch.long))
    problem = build(recipe, Prepared(one, one, 10), seed=0)
    assert sum(p.numel() for p in problem.model.parameters() if p.requires_grad) == TRAINED[name]


def test_what_a_source_does_not_say_is_said():
    assert all("nothing was tuned here" in recipe.tuned for recipe in SOURCES)
    assert find("wd-cifar").pixel_mean == (0.4914, 0.4822, 0.4465)
    rates = build_rates("abadi-mnist", (0, 500, 1000, 19_999))
    assert rates == pytest.approx([0.1, 0.076, 0.052, 0.052])
    assert build_rates("thesis-mnist", (0, 239, 240)) == pytest.approx([0.1, 0.1, 0.1 * 0.5 * (1 + 0.99452189536)])


def build_rates(name, steps):
    return [learning_rate_schedule(find(name))(step) for step in steps]
