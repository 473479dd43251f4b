"""Which of the lab's rows take the order of sorted lots from remembered lengths, and what their figures say of it."""

import json
from pathlib import Path

from sordino_lab.curve_plan import expected_seconds
from sordino_lab.experiment import ExperimentSize
from sordino_lab.thesis_plans import REMEASURED, plan_cifar, plan_mnist
from sordino_lab.training_curves import REMEMBERED_SHARE, TrainedCurve, note_remembered_order
from sordino_lab.workbench import Workbench


def test_only_small_rates_on_cifar_at_full_size_take_their_order_from_remembered_lengths():
    def parameters(size, plan, *words, **given):
        return dict(plan(Workbench(size, Path("nowhere")), *words, **given).parameters)

    full, middle = ExperimentSize.FULL, ExperimentSize.MIDDLE
    assert parameters(full, plan_cifar, "sorted", 0.01, 5.0) == {"remeasured": REMEASURED}
    assert parameters(full, plan_cifar, "class-diverse", 0.001, 5.0) == {"remeasured": REMEASURED}
    # Every other training keeps the settings, and so the name, that it had.
    for size, plan, words, given in (
        (full, plan_cifar, ("sorted", 0.1, 5.0), {}),
        (full, plan_cifar, ("sorted", 0.01, 5.0), {"non_private": True}),
        (full, plan_cifar, ("quantile-sorted, minimum", 0.01, 5.0), {}),
        (full, plan_cifar, ("DP-SGD", 0.01, 5.0), {}),
        (middle, plan_cifar, ("sorted", 0.01, 5.0), {}),
        (full, plan_mnist, ("sorted", 0.01, 1.0), {}),
    ):
        assert parameters(size, plan, *words, **given) == {}


def test_a_figure_says_in_words_which_curves_have_remembered_order():
    bench = Workbench(ExperimentSize.FULL, Path("nowhere"))
    curves = [TrainedCurve(plan_cifar(bench, way, 0.01, 5.0), ()) for way in ("DP-SGD", "sorted")]
    (note,) = note_remembered_order(curves)
    assert "lengths remembered between steps" in note
    assert "sorted, lr 0.01" in note
    assert "DP-SGD" not in note
    assert "98.8 % of the exact lots" in note
    assert note_remembered_order(curves[:1]) == []


def test_the_share_in_the_words_is_the_one_that_was_measured():
    table = json.loads((Path(__file__).parents[2] / "bench" / "results" / "remembered_lengths.json").read_text("utf-8"))
    measured = table["windows"]["lr 0.01, C = 5, step 175"]["predicted"][str(int(200 * REMEASURED))]
    assert f"{100 * measured['share of the exact lots']:.1f} % of the exact lots" in REMEMBERED_SHARE
    assert round(measured["mean length over the exact"], 3) == 1.0


def test_a_row_from_remembered_lengths_is_expected_to_take_under_four_hours_and_an_exact_one_a_day_or_more():
    bench = Workbench(ExperimentSize.FULL, Path("nowhere"))
    remembered, exact = (plan_cifar(bench, "sorted", rate, 5.0).settings(bench.size, 0) for rate in (0.01, 0.1))
    assert expected_seconds(remembered) < 4.5 * 3600
    assert expected_seconds(exact) > 24 * 3600
