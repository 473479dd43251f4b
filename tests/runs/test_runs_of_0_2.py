"""Run directories that version 0.2 wrote: they go on, report, and hold the bits that are trained today.

`tests/golden/runs_of_0_2.zip` holds three runs of `spiral` by version 0.2 (commit ae324a0), all with the settings `GIVEN`:
`stopped` after step 4 by a signal, `killed` after step 5 with steps up to 8 reserved, and `finished`.
"""

import json
import zipfile
from pathlib import Path

import pytest

import sordino
from sordino.app import report
from sordino.app.runs import write_ahead
from sordino.app.runs.directory import MODEL, PRIVACY
from sordino.app.runs.fit import resume
from sordino.environment import current_environment
from sordino.events import to_json

GIVEN = {
    "steps": 12,
    "widths": (4,),
    "records": 200,
    "rate": 0.1,
    "seed": 0,
    "checkpoint_every": 2,
    "evaluate_every": 4,
}
STORED = Path(__file__).parents[1] / "golden" / "runs_of_0_2.zip"


@pytest.fixture
def runs(tmp_path):
    with zipfile.ZipFile(STORED) as archive:
        archive.extractall(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["stopped", "killed"])
def test_a_run_of_0_2_goes_on_and_is_charged_for_all_its_steps(runs, name):
    history = resume(runs / name)
    assert history.finished
    planned = json.loads((runs / "finished" / PRIVACY).read_text())["claim"]
    assert to_json(history.claim.event) == planned["event"]
    assert history.claim.epsilon == planned["epsilon"]
    assert (runs / name / MODEL).exists()


def test_a_finished_run_of_0_2_gives_its_result_and_a_report(runs):
    folder = runs / "finished"
    before = (folder / MODEL).read_bytes()
    history = resume(folder)
    assert history.finished
    assert (folder / MODEL).read_bytes() == before
    assert history.claim.epsilon == json.loads((folder / PRIVACY).read_text())["claim"]["epsilon"]
    report.write(folder)
    assert (folder / "report.html").stat().st_size > 10_000


def test_a_run_of_0_2_with_another_setting_is_refused(runs):
    config = runs / "stopped" / "config.toml"
    config.write_text(config.read_text().replace("rate = 0.1\n", "rate = 0.2\n"))
    with pytest.raises(ValueError, match=r"rate was 0\.1, is 0\.2"):
        resume(runs / "stopped")


def test_the_same_seed_trains_the_same_bits_as_in_0_2(runs, tmp_path):
    """Every step's parameters are those of 0.2, so draws, sums and noise are. Another machine may round otherwise."""
    stored = write_ahead.read_entries(runs / "finished")
    here = current_environment()
    for name in ("torch", "numpy", "processor", "instructions", "threads"):
        if here[name] != stored.environment[name]:
            pytest.skip(f"{name} is {here[name]}; the stored run was made with {stored.environment[name]}")
    history = sordino.fit("spiral", out=tmp_path / "now", **GIVEN)
    assert write_ahead.read_entries(history.run).digests == stored.digests
    assert (history.run / MODEL).read_bytes() == (runs / "finished" / MODEL).read_bytes()
