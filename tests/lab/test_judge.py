"""The judge: evidence counts for and against a sentence alike, and only at the source's own size."""

import json
from dataclasses import replace

import pytest
from sordino_lab import result_store
from sordino_lab.catalogue import experiments, find_experiment
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import ExperimentSize, Finding, Outcome
from sordino_lab.training_curves import TrainedCurve, judge_higher
from sordino_lab.training_store import FinishedTraining
from sordino_lab.workbench import Workbench

PLAN = CurvePlan(label="a", method="dpsgd", recipe="thesis-mnist")


def trained(*accuracies):
    return TrainedCurve(PLAN, tuple(FinishedTraining([{"test_accuracy": one}], 1.0, "", "", 1.0) for one in accuracies))


@pytest.mark.parametrize("size", [ExperimentSize.QUICK, ExperimentSize.MIDDLE, ExperimentSize.FULL])
@pytest.mark.parametrize(
    ("one", "other", "holds"),
    [
        ((0.90, 0.91), (0.80, 0.81), True),
        ((0.80, 0.81), (0.90, 0.91), False),
        ((0.80, 0.90), (0.81, 0.91), None),
        ((0.81, 0.91), (0.80, 0.90), None),
        ((0.90,), (0.80,), True),
        ((0.80,), (0.90,), False),
        ((0.801,), (0.80,), None),
        ((0.80,), (0.801,), None),
    ],
)
def test_a_comparison_counts_both_ways(size, one, other, holds, tmp_path):
    assert judge_higher(Workbench(size, tmp_path), trained(*one), trained(*other), "says", "001:1").holds is holds


@pytest.mark.parametrize("holds", [True, False])
def test_below_the_size_of_the_source_there_is_no_verdict_either_way(holds):
    outcome = Outcome([], findings=[Finding("says", "001:1", holds, "because")])
    reduced, calculated = find_experiment("sorted-mnist-fixed"), find_experiment("lr-cosine")
    verdicts = {
        (one.id, size): result_store.make_result(one, outcome, size, 1.0)["findings"][0]["holds"]
        for one in (reduced, calculated, replace(calculated, id="another", differs="another network"))
        for size in (ExperimentSize.QUICK, ExperimentSize.MIDDLE, ExperimentSize.FULL)
    }
    assert verdicts == {
        **{("sorted-mnist-fixed", size): None for size in (ExperimentSize.QUICK, ExperimentSize.MIDDLE)},
        ("sorted-mnist-fixed", ExperimentSize.FULL): holds,
        **{("lr-cosine", size): holds for size in (ExperimentSize.QUICK, ExperimentSize.MIDDLE, ExperimentSize.FULL)},
        **{("another", size): None for size in (ExperimentSize.QUICK, ExperimentSize.MIDDLE, ExperimentSize.FULL)},
    }


def test_no_result_that_comes_with_the_package_has_a_verdict_below_the_size_of_the_source():
    for path in sorted(result_store.SHIPPED.glob("*.json")):
        kept = json.loads(path.read_text("utf-8"))
        if not result_store.is_source_size(ExperimentSize(kept["size"]), experiments()[kept["id"]]):
            assert [one["holds"] for one in kept["findings"]] == [None] * len(kept["findings"]), path.name


@pytest.mark.parametrize("name", ["noise-convergence", "fmnist-noise", "fmnist-batch", "fmnist-tradeoff"])
def test_a_caption_is_no_claim(name, tmp_path):
    assert not find_experiment(name).run(Workbench(ExperimentSize.TINY, tmp_path)).findings
