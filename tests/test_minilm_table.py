"""The table of fine-tuned MiniLM on the pages is what was measured."""

import json
from pathlib import Path

import pytest

from bench.minilm import DELTA, RESULTS, table

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["docs/benchmarks.md", "docs/recipes.md"])
def test_the_pages_show_the_kept_runs(page):
    assert table() in (ROOT / page).read_text(), "run `python -m bench.minilm --table`"


def test_every_private_run_claims_the_epsilon_that_was_asked_for():
    for run in json.loads(RESULTS.read_text()):
        assert not run["held_out"]
        if run["epsilon"]:
            assert 0.99 * run["epsilon"] < run["claimed"] <= run["epsilon"]
    assert DELTA == 1e-5
