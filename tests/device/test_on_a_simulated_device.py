"""Runs the files of checks on the simulated accelerator, in processes of their own: no other test meets the device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device.simulated.build import NoSimulatedDevice, build

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("check_*.py"))
SHORT = ("check_honesty", "check_noise_ahead", "check_ranks", "check_stacked_rows", "check_tripwire")
"""Files that share one process, because starting one takes longer than they do."""
GROUPS = [[file] for file in FILES if file.stem not in SHORT] + [[file for file in FILES if file.stem in SHORT]]


@pytest.fixture(scope="module")
def library():
    try:
        return build()
    except NoSimulatedDevice as reason:
        pytest.skip(str(reason))


def run_checks(files, chosen):
    """Runs the checks of some files that a mark chooses, in a process of their own."""
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.device.leave_at_once"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", chosen, *plugins, *map(str, files)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=HERE.parents[1], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("files", GROUPS, ids=lambda files: files[0].stem)
def test_on_a_simulated_device(files, library):
    run_checks(files, "not slow")


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", [file for file in FILES if "mark.slow" in file.read_text()], ids=lambda path: path.stem
)
def test_slowly_on_a_simulated_device(file, library):
    run_checks([file], "slow")


def test_there_are_checks_to_run():
    assert len(FILES) >= 3
    assert sorted(file for group in GROUPS for file in group) == FILES
