"""The planner's numbers are the accountant's, its code runs to the claim it promised, bad questions are refused."""

import contextlib
import io
import math
import shlex
import subprocess
import sys

import pytest
import torch
import tyro

from sordino.accounting import PLD
from sordino.app.cli.main import main
from sordino.app.cli.train import Command
from sordino.app.planner import Scenario, answer, curves, parse
from sordino.app.runs import event, noise_multiplier
from sordino.app.runs.problem import MODELS
from sordino.app.runs.recipe import FIELDS as RECIPE_FIELDS
from sordino.app.runs.settings import make_settings
from sordino.events import Gaussian, Poisson, Repeat

USUAL = {"dataset_size": 60_000, "batch": 256, "epochs": 15, "delta": 1e-5, "multiplier": 1.1}


def test_the_answer_is_plds():
    said = answer(Scenario(**USUAL))
    plain = PLD().epsilon(Repeat(Poisson(256 / 60_000, Gaussian(1.1)), 3516), 1e-5)
    assert plain <= said["epsilon"] <= plain * (1 + 1e-5)  # a claim keeps a little of δ for the end of the noise


def test_a_target_is_met_from_below_by_noise_rounded_up():
    for target in (0.1, 1.0, 3.0, 20.0):
        said = answer(Scenario(**{**USUAL, "multiplier": None, "epsilon": target}))
        assert 0.998 * target < said["epsilon"] <= target
        assert float(f"{said['multiplier']:.5g}") == said["multiplier"]


def test_the_code_runs_and_claims_what_the_page_shows():
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(200, 3))
    model = torch.nn.Linear(3, 1)
    names = {
        "dataset": data,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss_fn": lambda model, x: model(x).square().sum(dim=1),
    }
    said = answer(Scenario(200, 20, 1, 1e-5, multiplier=1.5))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(said["code"], names)
    lines = [line for line in out.getvalue().strip().splitlines() if "rests on" not in line]  # what a run alone can say
    assert "\n".join(lines) == said["claim"]


def test_the_curves_pass_through_the_answer():
    setting = Scenario(**USUAL)
    said, drawn = answer(setting), curves(setting)
    at = drawn["epochs"]["x"].index(said["lots"] * said["rate"])
    assert drawn["epochs"]["y"][at] == pytest.approx(said["epsilon"], rel=1e-3)
    middle = min(range(len(drawn["noise"]["x"])), key=lambda i: abs(drawn["noise"]["x"][i] - 1.1))
    assert drawn["noise"]["y"][middle] == pytest.approx(said["epsilon"], rel=1e-3)
    assert drawn["epochs"]["y"] == sorted(drawn["epochs"]["y"])
    assert drawn["noise"]["y"] == sorted(drawn["noise"]["y"], reverse=True)
    for alpha, power in zip(drawn["tradeoff"]["x"], drawn["tradeoff"]["y"], strict=True):
        # above the line of (ε, δ) only by what the curve's finitely many ε cost, which is on the safe side
        assert alpha <= power <= min(1, 1.01 * (math.exp(said["epsilon"]) * alpha + 1e-5))


def test_a_setting_without_a_finite_epsilon_has_none():
    said = answer(Scenario(1000, 1000, 1000, 1e-300, multiplier=0.05))
    assert said["epsilon"] is None or said["epsilon"] > 1e5
    assert answer(Scenario(**{**USUAL, "delta": 0.5}))["notes"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset_size": 0}, "dataset_size=0: must be >= 1"),
        ({"dataset_size": 12.5}, "whole number"),
        ({"dataset_size": "60000"}, "whole number"),
        ({"dataset_size": 10**11}, "dataset_size"),
        ({"dataset_size": None}, "dataset_size: is missing"),
        ({"batch": 60_001}, "must be <= dataset_size=60000"),
        ({"batch": 0}, "batch=0: must be > 0"),
        ({"batch": math.nan}, "batch=nan"),
        ({"batch": math.inf}, "batch=inf"),
        ({"batch": [1]}, "must be a number"),
        ({"epochs": -1}, "epochs=-1"),
        ({"epochs": 1e9}, "at most 10,000,000"),
        ({"delta": 0}, "delta=0: must lie strictly between 0 and 1"),
        ({"delta": 1}, "delta=1"),
        ({"multiplier": 0}, "multiplier=0: must be > 0"),
        ({"multiplier": True}, "multiplier=True: must be a number"),
        ({"multiplier": 1e9}, "must lie between"),
        ({"epsilon": 3}, "either multiplier"),
        ({"multiplier": None}, "either multiplier"),
        ({"multiplier": None, "epsilon": 1e-9}, "epsilon=1e-09: must lie between"),
        ({"task": "cifar10"}, "with its own dataset_size"),
        ({"more": 1}, "need an object with the fields"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_question_is_refused_by_name(change, message):
    with pytest.raises((ValueError, TypeError), match=message.replace("[", r"\[").replace("(", r"\(")):
        parse({**USUAL, **change})


def test_the_planner_never_imports_torch():
    code = (
        "import sys; from sordino.app.planner import *; import sordino.app.cli.plan\n"
        "s = Scenario(1000, 50, 1, 1e-5, multiplier=1.0)\n"
        "answer(s), curves(s); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("task", "size"), [("mnist", 60_000), ("fashion-mnist", 60_000), ("cifar10", 50_000)])
@pytest.mark.parametrize("target", [{"multiplier": 1.1}, {"epsilon": 2.0}], ids=str)
def test_the_training_command_is_understood_and_costs_what_the_page_shows(task, size, target):
    said = answer(Scenario(size, 256, 15, 1e-5, task=task, **target))
    _, name, *words = shlex.split(said["command"])
    assert name == "train"
    given = tyro.cli(Command, args=words)
    fields = {k: v for k, v in vars(given).items() if k in RECIPE_FIELDS and v is not None}
    recipe = make_settings(given.recipe, fields).recipe
    assert (recipe.dataset, recipe.features, recipe.normalise) == (task, "none", None)
    assert recipe.model in MODELS
    costs = PLD().epsilon(event(recipe, noise_multiplier(recipe)), recipe.delta)
    assert costs == pytest.approx(said["epsilon"], rel=2e-4)
    assert costs <= float(said["epsilon_shown"])


def test_a_command_of_ones_own_data_prints_the_epsilon_of_the_page(capsys):
    said = answer(Scenario(1000, 50, 3, 1e-5, epsilon=2.0))
    assert main(shlex.split(said["command"])[1:]) == 0
    assert f"{said['epsilon']:.4f}"[:5] in capsys.readouterr().out
