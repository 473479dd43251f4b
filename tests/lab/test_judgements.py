"""What every verdict tests: one plain sentence for each finding, and a page that shows them."""

import ast
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sordino_lab.families
from sordino_lab import result_store
from sordino_lab.catalogue import experiments
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import ExperimentSize
from sordino_lab.families import abadi_training, private_means, projected_updates, sorted_lots
from sordino_lab.judgements import list_judgements
from sordino_lab.pages import write_judgements
from sordino_lab.training_curves import TrainedCurve
from sordino_lab.training_store import FinishedTraining
from sordino_lab.verdicts import gets_worse, is_better, reaches, require_all
from sordino_lab.workbench import Workbench

ROOT = Path(__file__).parents[2]
SEEDS = Path(__file__).parents[3] / "shared" / "seeds"
BUILT = {"wd-cifar-decay", "abadi-mnist"}
"""Figures whose sentences are made of words and numbers, of which not all are in a shipped result."""


def shipped_findings():
    """Every finding of every shipped result, by id, line and sentence."""
    return [
        (path.stem, finding["line"], finding["says"])
        for path in sorted(result_store.SHIPPED.glob("*.json"))
        for finding in json.loads(path.read_text("utf-8"))["findings"]
    ]


def test_every_finding_of_a_shipped_result_has_exactly_one_entry():
    entries = Counter(one.key for one in list_judgements())
    assert [key for key, count in entries.items() if count > 1] == []
    assert [key for key in shipped_findings() if entries[key] != 1] == []


def test_every_sentence_about_a_table_of_the_thesis_has_an_entry():
    entries = {one.key for one in list_judgements()}
    tables = {**sorted_lots.TABLES, **projected_updates.TABLES}
    wanted = {(name, one.line, one.says) for name, table in tables.items() for one in table.says}
    assert wanted
    assert wanted <= entries


def test_every_entry_is_of_a_figure_and_of_a_sentence_that_it_judges():
    # Sentences stand in the code of the families, or were made there and are in a shipped result.
    found = {says for _, _, says in shipped_findings()}
    for path in Path(sordino_lab.families.__path__[0]).glob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        found |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    for one in list_judgements():
        assert one.id in experiments(), one
        assert one.says in found or one.id in BUILT, one
        assert one.test, one
        assert not one.test.endswith("."), one


def test_entries_stand_in_the_order_of_the_papers():
    order = list(experiments())
    places = [order.index(one.id) for one in list_judgements()]
    assert places == sorted(places)


@pytest.mark.skipif(not SEEDS.is_dir(), reason="the sources' texts are not here")
def test_the_lines_of_all_entries_have_text():
    sources = {path.name[:3]: path.read_text("utf-8").splitlines() for path in sorted(SEEDS.glob("00?_*.txt"))}
    for one in list_judgements():
        source, line = one.line.split(":")
        assert sources[source][int(line) - 1].strip(), one


def test_the_page_is_as_the_code_says():
    assert (ROOT / "docs" / "lab_judgements.md").read_text("utf-8") == write_judgements()


def trained(*accuracies, field="test_accuracy"):
    return TrainedCurve(None, tuple(FinishedTraining([{field: one}], 1.0, "", "", 1.0) for one in accuracies))


def test_a_difference_within_the_noise_decides_nothing():
    # Several seeds have their own spread; a single one has that of a test on 10,000 images, twice.
    assert is_better(trained(0.90, 0.92), trained(0.85, 0.86)) is True
    assert is_better(trained(0.90, 0.92), trained(0.905, 0.915)) is None
    assert is_better(trained(0.85), trained(0.855)) is None
    assert is_better(trained(0.85), trained(0.87)) is False
    assert is_better(trained(0.87), trained(0.85), by=3.0) is False
    assert reaches(trained(0.95), 94.8) is None
    assert reaches(trained(0.95), 94.0) is True


def test_seeds_that_agree_by_luck_are_no_more_certain_than_a_test():
    # Two seeds at exactly 85 %, and a test on 10,000 images that has a deviation of 0.36 points.
    assert is_better(trained(0.853, 0.853), trained(0.85, 0.85)) is None
    assert is_better(trained(0.86, 0.86), trained(0.85, 0.85)) is True
    assert reaches(trained(0.853, 0.853), 85.0) is None


def test_a_single_seed_spreads_as_the_seeds_beside_it_do():
    # Alone it would have the deviation of a test, 0.46 points; the seeds beside it are 1.2 points apart from their mean.
    beside = trained(0.702, 0.721, 0.697)
    assert is_better(trained(0.685), beside) is None
    assert is_better(trained(0.685), trained(0.707)) is False


@pytest.mark.parametrize(("seeds", "most"), [(1, 0.06), (2, 0.20), (3, 0.13)])
def test_chance_decides_as_seldom_as_the_page_says(seeds, most):
    # Both sides have one mean, so every verdict is a false alarm. The rates are those of Student's t beyond 2.
    rng = np.random.default_rng(7)
    alarms = [
        is_better(trained(*rng.normal(0.7, spread, seeds)), trained(*rng.normal(0.7, spread, seeds)))
        for spread in [0.0046 if seeds == 1 else 0.0124] * 3000
    ]
    assert sum(one is not None for one in alarms) / len(alarms) < most
    assert 0.4 < sum(one is True for one in alarms) / sum(one is not None for one in alarms) < 0.6


def course(label, *losses):
    rows = [{"epoch": k, "test_loss": loss, "test_accuracy": 0.5} for k, loss in enumerate(losses, start=1)]
    plan = CurvePlan(label=label, method="dpsgd", recipe="thesis-mnist")
    return TrainedCurve(plan, (FinishedTraining(rows, 1.0, "", "", 1.0),))


def judge_sentence(name, line, curves, tmp_path):
    """The verdict on a sentence about a table of the thesis, on made-up curves."""
    (one,) = [one for one in {**sorted_lots.TABLES, **projected_updates.TABLES}[name].says if one.line == line]
    return one.judge(Workbench(ExperimentSize.FULL, tmp_path), {curve.plan.label: curve for curve in curves}).holds


def test_a_loss_that_falls_more_slowly_at_first_is_above_the_other_there(tmp_path):
    def judge(*sorted_losses):
        pair = [course("DP-SGD, lr 0.01", 2.2, 1.8, 1.2, 0.4), course("sorted, median, lr 0.01", *sorted_losses)]
        return judge_sentence("sorted-mnist-median", "001:436", pair, tmp_path)

    assert judge(2.2, 2.0, 1.5, 0.3) is True
    # Faster from the beginning on, or behind at the end.
    assert judge(2.0, 1.5, 0.9, 0.3) is False
    assert judge(2.2, 2.0, 1.5, 0.5) is False


def test_often_is_at_two_of_three_rates_whichever_they_are(tmp_path):
    def pair(rate, gap):
        # Sorted lots with a lower loss, and an accuracy that is lower by so many points.
        ends = {"DP-SGD": (1.5, 0.5), "sorted": (1.0, 0.5 - gap / 100)}
        return [
            TrainedCurve(
                CurvePlan(label=f"{name}, lr {rate}", method="dpsgd", recipe="thesis-cifar"),
                (FinishedTraining([{"epoch": 30, "test_loss": a, "test_accuracy": b}], 1.0, "", "", 1.0),),
            )
            for name, (a, b) in ends.items()
        ]

    def judge(*gaps):
        curves = [one for rate, gap in zip(("0.01", "0.1", "1"), gaps, strict=True) for one in pair(rate, gap)]
        return judge_sentence("sorted-cifar-best", "001:806", curves, tmp_path)

    assert judge(5, 5, -5) is True
    assert judge(-5, 5, 5) is True
    assert judge(5, -5, -5) is False


def test_a_bound_that_nothing_can_exceed_has_no_verdict(tmp_path):
    # e^ε is at least 1, so no attacker wins a larger share of the rounds.
    (finding,) = experiments()["game"].run(Workbench(ExperimentSize.QUICK, tmp_path)).findings
    assert finding.holds is None


@pytest.mark.parametrize(("accuracy", "holds"), [(0.905, True), (0.896, None), (0.88, False)])
def test_a_published_accuracy_is_judged_by_lots_and_rate_as_printed(accuracy, holds, tmp_path):
    def end(accuracy):
        return replace(
            course("a", 1.0), runs=(FinishedTraining([{"epoch": 1, "test_accuracy": accuracy}], 0.49, "", "", 1.0),)
        )

    bench, level = Workbench(ExperimentSize.FULL, tmp_path), abadi_training.LEVELS[0]
    # With lots and a rate of ours it is above in any case.
    assert abadi_training._judge_level(bench, level, end(accuracy), end(0.93)).holds is holds


def test_the_slides_theorem_of_strong_composition_is_judged_too(tmp_path):
    found = experiments()["printed-theorems"].run(Workbench(ExperimentSize.QUICK, tmp_path)).findings
    assert [one.holds for one in found if one.line == "004:216"] == [False]


def test_numbers_beside_a_verdict_do_not_presume_it(tmp_path, monkeypatch):
    # With errors far above the theorem's bound the sentence does not hold, and the words beside it say so.
    monkeypatch.setattr(private_means, "measure_clipped_error", lambda *_: 1e3)
    (finding,) = experiments()["mean-clipped"].run(Workbench(ExperimentSize.QUICK, tmp_path)).findings
    assert finding.holds is False
    assert float(re.search(r"at most ([\d.]+) times", finding.because)[1]) > 1


def test_of_losses_less_is_better():
    low, high = trained(0.5, field="test_loss"), trained(0.6, field="test_loss")
    assert is_better(low, high, "test_loss") is True
    assert is_better(high, low, "test_loss") is False
    assert is_better(low, trained(0.51, field="test_loss"), "test_loss") is None


def test_a_row_gets_worse_if_its_end_is_lower_and_nothing_rises():
    assert gets_worse([trained(0.9), trained(0.7), trained(0.5)]) is True
    assert gets_worse([trained(0.9), trained(0.5), trained(0.7)]) is False
    assert gets_worse([trained(0.9), trained(0.9), trained(0.899)]) is None


def test_exceptions_are_counted_against_what_is_open():
    assert require_all([True, True, None], exceptions=1) is True
    assert require_all([True, None, None], exceptions=1) is None
    assert require_all([True, False, False], exceptions=1) is False
