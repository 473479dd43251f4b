"""Recipes: tables that round-trip, bad fields refused in one line, everything that touches the data in one claim."""

import math
import tomllib

import pytest
import torch

import sordino as sd
from bench import accuracy
from sordino import events
from sordino.app import data
from sordino.app import runs as recipes
from sordino.app.runs import RECIPES, find, from_table
from sordino.app.runs.known_recipes import FIGURES, row_name
from sordino.ledger.ledger import Ledger
from sordino.rng.streams import Rng
from sordino.statistics import Normalise, Normaliser


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: f"{r.name}-{r.epsilon or r.noise_multiplier}")
def test_a_recipe_is_a_flat_table_and_back(recipe):
    table = recipe.table()
    text = "\n".join(f"{k} = {v!r}" if isinstance(v, str) else f"{k} = {v}" for k, v in table.items())
    assert from_table(tomllib.loads(text)) == recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 2}, "rate=2.0: must lie in"),
        ({"steps": 0}, "steps=0: must be >= 1"),
        ({"steps": 2.5}, "steps=2.5: must be a whole number"),
        ({"delta": 1.0}, "delta=1.0"),
        ({"bound": -1}, "bound=-1.0: must be > 0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"epsilon": -3}, "epsilon=-3.0: must be > 0"),
        ({"epsilon": 1, "noise_multiplier": 1}, "both given"),
        ({"epsilon": None}, "neither given"),
        ({"features": "wavelets"}, "features='wavelets': there is none, scattering"),
        ({"optimizer": "lbfgs"}, "there is sgd, adagrad, adam, adamw, adam-corrected"),
        ({"schedule": "step"}, "there is constant, linear, cosine"),
        ({"momentum": 1.0}, r"momentum=1.0: must lie in \[0, 1\)"),
        ({"ema": -0.1}, r"ema=-0.1: must lie in \[0, 1\)"),
        ({"penalty": -1.0}, "penalty=-1.0"),
        ({"normalise": 0}, "normalise=0.0: must be > 0"),
        ({"model": 3}, "model=3: must be text"),
        ({"rate": True}, "rate=True: must be a number"),
        ({"dataset": " "}, "dataset=''"),
        ({"epochs": 3}, "epochs: not a field of a recipe"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_bad_field_is_refused_in_one_line(changes, message):
    with pytest.raises((ValueError, TypeError), match=message) as error:
        find("mnist", 3.0).but(**changes)
    assert "\n" not in str(error.value)


def test_a_table_that_lacks_fields_names_them():
    with pytest.raises(ValueError, match="lacks features, model, rate, bound, delta, steps, learning_rate"):
        from_table({"name": "mine", "dataset": "mnist"})


def test_a_changed_recipe_has_not_been_measured():
    measured = find("mnist", 3.0).but(accuracy=0.9, seeds=3)
    assert measured.but(steps=10).accuracy is None
    assert measured.but(steps=measured.steps).accuracy == 0.9


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="there is mnist, fashion-mnist, cifar10"):
        find("imagenet")


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_the_calibrated_run_fits_its_epsilon_with_the_normalisation_counted(epsilon):
    recipe = find("mnist", epsilon)
    whole = recipes.event(recipe, recipes.noise_multiplier(recipe))
    spent = sd.accounting.PLD().epsilon(whole, recipe.delta)
    assert 0.999 * epsilon < spent <= epsilon
    assert events.Gaussian(recipe.normalise) in whole.events


def test_a_normalisation_that_costs_all_is_refused():
    with pytest.raises(ValueError, match=r"besides the steps costs ε = .* give it more noise"):
        recipes.noise_multiplier(find("mnist", 1.0).but(normalise=0.5))


def test_a_recipe_trains_and_its_claim_has_everything():
    """The event of the finished run is the one that the noise was calibrated to."""
    recipe = find("mnist", 2.0).but(features="none", steps=20)
    prepared = recipes.prepare(recipe, data.digits(500, 200))
    problem = recipes.build(recipe, prepared, seed=0)
    ledger, sigma = Ledger(), recipes.noise_multiplier(recipe)
    recipes.standardise(problem.model, prepared.train, recipe.normalise, ledger, Rng.from_seed(0))
    assert ledger.event() == events.Gaussian(recipe.normalise)
    private = sd.Private(problem.model, problem.loss_fn, sd.NoisySum(sd.Flat(recipe.bound), sd.Gaussian(sigma)), seed=0)
    for lot in private.draws(prepared.train, sd.Poisson(recipe.rate), recipe.steps):
        private.backward(lot)
        problem.optimizer.step()
    assert events.compose([ledger.event(), private.event]) == recipes.event(recipe, sigma)


def test_private_moments_without_noise_worth_mentioning_are_the_moments():
    torch.manual_seed(0)
    x = torch.randn(400, 3, 5, 5) * torch.tensor([0.1, 0.5, 0.2])[:, None, None] + 0.3
    train = torch.utils.data.TensorDataset(x, torch.zeros(400, dtype=torch.int64))
    model = Normalise(3, (0.1,))
    recipes.standardise(model, train, 1e-6, Ledger(), Rng.from_seed(0), bound=1e3)
    out = model(x)
    assert out.mean(dim=(0, 2, 3)).abs().max() < 1e-3
    assert (out.std(dim=(0, 2, 3)) - 1).abs().max() < 1e-2


def test_no_record_moves_the_moments_by_more_than_the_bound():
    (total,) = Normaliser(0.7, sd.Gaussian(1.0), (1.0, 0.1, 3.0, 1.0)).sums
    for wild in (1e8, float("nan"), float("inf"), -3.0):
        assert total.total(torch.full((1, 4, 2, 2), wild)).norm() <= 0.7 * (1 + 1e-6)


def test_what_a_recipe_says_was_measured_is_what_the_bench_holds():
    rows = accuracy.read_results()
    assert {name: accuracy.figures_of_row(row) for name, row in rows.items()} == FIGURES
    known = {row_name(recipe): recipe for recipe in RECIPES}
    for name, row in rows.items():
        assert accuracy.is_measured_with(known[name], row), (
            f"{name} was changed after it was measured: run its command again"
        )
        assert all(run["epsilon"] <= (row["recipe"].get("epsilon") or math.inf) for run in row["runs"])
