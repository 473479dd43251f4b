"""What is imported when: accounting needs no torch, public names are there, and nothing else is."""

import subprocess
import sys

import pytest

import sordino


@pytest.mark.parametrize(
    "code",
    [
        "import sordino.events",
        "import sordino.accounting",
        "import sordino.ledger.claims",
        "import sordino.app.cli.main",
    ]
    + ["from sordino.accounting import PLD; from sordino.events import *; PLD().epsilon(Gaussian(2.0), 1e-5)"],
)
def test_accounting_never_imports_torch(code):
    check = f"{code}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_every_public_name_resolves():
    for name in sordino.__all__:
        assert getattr(sordino, name) is not None
    assert set(sordino.__all__) <= set(dir(sordino))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'PrivacyEngine'"):
        sordino.PrivacyEngine  # noqa: B018


def test_without_torch_accounting_works_and_all_else_says_what_is_missing():
    code = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import sordino as sd
from sordino.accounting import PLD
assert PLD().epsilon(sd.events.Gaussian(5.0), 1e-5) < 1
try:
    sd.Private
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "sordino.Private needs torch" in done.stdout
