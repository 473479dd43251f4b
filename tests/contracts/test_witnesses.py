"""What has no guarantee has a witness that shows why, what has one claims it, and the documentation says which is which."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import sordino as sd
from tests.contracts.hunter import network, records, squared_error
from tests.contracts.row import BACKENDS
from tests.contracts.variants import VARIANTS

CLAIMS = (Path(__file__).parents[2] / "docs" / "claims.md").read_text()
LINES = [line for line in CLAIMS.splitlines() if line.startswith("| ")]

every_row = pytest.mark.parametrize("row", VARIANTS, ids=lambda row: row.name)
UNPROVEN = [row for row in VARIANTS if not row.guarantee]


@every_row
def test_a_row_with_a_guarantee_prints_an_epsilon_and_one_without_prints_none(row):
    model = network()
    private = sd.Private(model, squared_error, row.query(), backend=BACKENDS[row.backends[0]], seed=0, **row.options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dataset = TensorDataset(*records(np.random.default_rng(0), 12))
    for lot in private.draws(dataset, row.sampler() if row.sampler else sd.Poisson(0.3), steps=3):
        private.backward(lot)
        optimizer.step()
    assert isinstance(private.claim(delta=1e-5), sd.Guarantee if row.guarantee else sd.NoGuarantee)


@every_row
def test_a_row_without_a_guarantee_names_a_witness_and_others_need_none(row):
    assert (row.witness is None) == row.guarantee


@pytest.mark.parametrize("row", UNPROVEN, ids=lambda row: row.name)
def test_the_witness_breaks_the_scale_of_the_noise(row):
    catch = row.witness.catch(row)
    assert catch.broken, f"{row.name}: the witness no longer shows that {row.witness.says}: {catch}"


@every_row
def test_the_documentation_has_a_line_for_the_row(row):
    found = [line for line in LINES if re.match(rf"\| `?{re.escape(row.noun)}\b", line)]
    assert found, f"docs/claims.md has no table line that begins with {row.noun}"
    assert all(("NonPrivate" in line) != row.guarantee for line in found), found


def test_every_reason_to_leave_a_contract_out_is_a_sentence():
    assert all(len(reason) > 10 for row in VARIANTS for reason in row.without.values())
