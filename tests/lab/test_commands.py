"""The command printed beside a curve parses to the curve's own settings, and gives the curve's numbers."""

import json
import shlex
from dataclasses import replace

import pytest
from sordino_lab import result_store
from sordino_lab.catalogue import experiments
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import ExperimentSize
from sordino_lab.training_store import digest, train
from sordino_lab.workbench import Workbench

from sordino.app.cli.argument_parsing import parse_command
from sordino.app.cli.main import main
from sordino.app.cli.train import Command


def settings_of(command):
    program, action, *arguments = shlex.split(command)
    assert (program, action) == ("sordino", "train")
    return parse_command(Command, arguments, "sordino train", "").settings()


def test_a_parameter_may_be_given_several_times():
    flags = ["thesis-cifar", "--query", "projected"]
    both = {"rho": 4.0, "rounds": 3.0}
    for more in (["--parameter", "rho=4", "--parameter", "rounds=3"], ["--parameter", "rho=4", "rounds=3"]):
        assert dict(parse_command(Command, [*flags, *more], "sordino train", "").settings().parameters) == both
    with pytest.raises(ValueError, match="given twice"):
        parse_command(Command, [*flags, "--parameter", "rho=4", "--parameter", "rho=3"], "sordino train", "").settings()


def shape_of(command):
    """The recipe and the flags of a command, without their values: commands of one shape parse alike."""
    words = shlex.split(command)
    return tuple(words[2:3] + [word.partition("=")[0] for word in words if word.startswith("--")])


def plans_of(size, tmp_path):
    bench = Workbench(size, tmp_path)
    for one in experiments().values():
        yield from [] if one.plans is None else one.plans(bench)


def assert_same(plan, size):
    assert digest(settings_of(plan.command(size))) == digest(plan.settings(size, 0)), plan.label


def test_every_kind_of_command_parses_to_the_settings_of_its_curve(tmp_path):
    kinds = {}
    for size in (ExperimentSize.QUICK, ExperimentSize.FULL):
        for plan in plans_of(size, tmp_path):
            kinds.setdefault(shape_of(plan.command(size)), (plan, size))
    assert len(kinds) > 20
    for plan, size in kinds.values():
        assert_same(plan, size)


@pytest.mark.slow
@pytest.mark.parametrize("size", list(ExperimentSize), ids=lambda size: size.value)
def test_every_command_parses_to_the_settings_of_its_curve(size, tmp_path):
    every = list(plans_of(size, tmp_path))
    assert len(every) > (100 if size is ExperimentSize.TINY else 200)
    for plan in every:
        assert_same(plan, size)


def test_every_command_that_came_with_the_package_repeats_a_curve_of_its_figure(tmp_path):
    bench, count = Workbench(ExperimentSize.FULL, tmp_path), 0
    for path in sorted(result_store.SHIPPED.glob("*.json")):
        result = json.loads(path.read_text("utf-8"))
        one = experiments()[path.stem]
        if one.plans is None or result["size"] != ExperimentSize.FULL.value:
            continue
        curves = {digest(plan.settings(ExperimentSize.FULL, 0)) for plan in one.plans(bench)}
        for command in result["commands"]:
            assert digest(settings_of(command)) in curves, command
            count += 1
    assert count > 100


PLANS = {
    "sorted": CurvePlan(label="x", method="sorted", recipe="thesis-mnist", given={"sampler": "sorted-top-k", "bound": 2.0}),
    "hidden layers": CurvePlan(label="x", method="dpsgd", recipe="thesis-cifar", given={"widths": (8, 4)}),
    "projected": CurvePlan(
        label="x", method="projected", recipe="thesis-cifar", given={"query": "projected"},
        parameters={"rho": 4.0, "rounds": 3.0},
    ),
    "inside": CurvePlan(label="x", method="l2-inside", recipe="wd-mnist", given={"weight_decay": 0.0, "penalty": 1 / 3}),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_command_that_is_run_gives_the_numbers_of_its_curve(name, seed, tmp_path):
    assert_same_numbers(tiny(PLANS[name]), ExperimentSize.QUICK, seed, tmp_path)


@pytest.mark.slow
def test_every_kind_of_command_that_is_run_gives_the_numbers_of_its_curve(tmp_path):
    kinds = {}
    for plan in plans_of(ExperimentSize.TINY, tmp_path):
        kinds.setdefault(shape_of(plan.command(ExperimentSize.TINY)), plan)
    assert len(kinds) > 50
    for number, plan in enumerate(kinds.values()):
        assert_same_numbers(plan, ExperimentSize.TINY, 1, tmp_path / str(number))


def assert_same_numbers(plan, size, seed, folder):
    """Asserts that the command of a plan, typed at the command line, gives the numbers that the lab draws."""
    kept = train(plan.settings(size, seed), folder / "cache")
    out = folder / "run"
    command = plan.command(size, seed)
    assert main([*shlex.split(command)[1:], "--out", str(out), "--no-report", "--json"]) == 0, command
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["test_accuracy"] for row in rows] == [row["test_accuracy"] for row in kept.rows]
    assert [row["test_loss"] for row in rows] == pytest.approx([row["test_loss"] for row in kept.rows], rel=1e-5)


def tiny(plan):
    """The same words on a problem of a second, at the size quick."""
    small = {"dataset": "spiral", "model": "mlp", "features": "none", **plan.given}
    return replace(plan, given=small, records=200, batch=20, epochs=1, evaluations=2)
