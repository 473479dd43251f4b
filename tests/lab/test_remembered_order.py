"""What a training with sorted lots from remembered lengths is expected to take; no row of the lab uses them."""

from dataclasses import replace
from pathlib import Path

import pytest
from sordino_lab.curve_plan import expected_seconds
from sordino_lab.experiment import ExperimentSize
from sordino_lab.thesis_plans import plan_cifar
from sordino_lab.workbench import Workbench


def test_a_row_from_remembered_lengths_is_expected_to_take_a_share_of_the_exact_order():
    bench = Workbench(ExperimentSize.FULL, Path("nowhere"))
    exact = plan_cifar(bench, "sorted", 0.1, 5.0)
    remembered = replace(exact, parameters={"remeasured": 10.0})
    seconds = [expected_seconds(plan.settings(bench.size, 0)) for plan in (exact, remembered)]
    # 25,000 records before a step on average; or ten lots of 200, and 50,000 for each of 250 steps.
    assert seconds[0] - seconds[1] == pytest.approx(7_500 * (25_000 - 2_200) * 3.7e-4)
