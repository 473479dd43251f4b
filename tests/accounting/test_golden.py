"""Every reference number, within its own tolerance, and no upper bound below a certified lower one."""

import pytest

from tests.accounting.golden import ENTRIES, value


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])
def test_reference_number_is_met_within_its_tolerance(entry):
    expected = entry[entry["quantity"]]
    tolerance = entry["tolerance"]
    allowed = tolerance["abs"] if "abs" in tolerance else tolerance["rel"] * expected
    found = value(entry)
    assert abs(found - expected) <= allowed
    assert found >= entry.get("certified_lower", found)
