"""Locks on files: held against other processes until the file is closed, and refused in words where there are none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sordino.file_lock import Locked, lock_file

TRY = """
import sys
from sordino.file_lock import Locked, lock_file
with open(sys.argv[1], "r+") as file:
    try:
        lock_file(file, exclusive=sys.argv[2] == "exclusive", wait=False)
    except Locked:
        print("locked")
    else:
        print("free")
"""


def elsewhere(path: Path, kind: str) -> str:
    """What another process finds."""
    ran = subprocess.run([sys.executable, "-c", TRY, str(path), kind], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def test_a_lock_holds_against_another_process_until_the_file_is_closed(tmp_path):
    path = tmp_path / "ledger"
    path.touch()
    with open(path, "r+") as file:
        lock_file(file, wait=False)
        assert elsewhere(path, "exclusive") == elsewhere(path, "shared") == "locked"
    assert elsewhere(path, "exclusive") == "free"


@pytest.mark.skipif(os.name == "nt", reason="there are no shared locks")
def test_readers_share(tmp_path):
    path = tmp_path / "budget"
    path.touch()
    with open(path) as file:
        lock_file(file, exclusive=False)
        assert elsewhere(path, "shared") == "free"
        assert elsewhere(path, "exclusive") == "locked"


def test_locked_is_told_from_other_errors(tmp_path):
    file = open(tmp_path / "closed", "w")  # noqa: SIM115
    file.close()
    with pytest.raises(ValueError, match="closed file"):
        lock_file(file)
    assert issubclass(Locked, OSError)


WITHOUT = """
import importlib, sys
from pathlib import Path
sys.modules["fcntl"] = sys.modules["resource"] = sys.modules["pwd"] = sys.modules["grp"] = None
import sordino
root = Path(sordino.__file__).parent
names = {".".join(path.relative_to(root.parent).with_suffix("").parts) for path in root.rglob("*.py")}
for name in sorted(names):
    if not name.endswith("__main__") and "integrations" not in name:  # those import libraries that need fcntl themselves
        importlib.import_module(name.removesuffix(".__init__"))
assert sys.modules["fcntl"] is None
from sordino.accounting import Budget
budget = Budget.create(sys.argv[1], 1.0, 1e-5)
try:
    budget.spent_epsilon()
except NotImplementedError as error:
    print(error)
"""


def test_every_module_is_imported_without_fcntl_and_a_lock_is_refused(tmp_path):
    """As on Windows, whose own locks are not here to be tried: only what needs a lock stops, and says why."""
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path / "budget")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "no locks on files" in ran.stdout
