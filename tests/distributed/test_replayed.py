"""A run of ranks is run again by one process, bit by bit, and taken apart: `sordino audit replay`."""

import pytest

from sordino.app.audits.replay_audit import audit_by_replay
from sordino.release import release
from tests.distributed import jobs


@pytest.fixture(scope="module")
def run(gang, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "three"
    gang(jobs.fitted, 3, str(folder))
    return folder


def test_a_run_of_three_ranks_is_as_it_was_entered(run):
    found = audit_by_replay(run, choose=(2, 9))
    assert found.passed, str(found)
    assert found.checked == [2, 9]
    assert found.digests >= 8
    assert not found.not_tried
    assert found.farthest_sum < 1e-4
    assert found.farthest_noise < 1e-5


def test_another_noise_is_seen(run, monkeypatch):
    right = release._draw_noise_at
    monkeypatch.setattr(
        release,
        "_draw_noise_at",
        lambda noise, total, own, scale, *more: right(noise, total, own, 0.999 * scale, *more),
    )
    found = audit_by_replay(run, choose=(1,))
    assert "the noise is" in " ".join(found.wrong)
    assert "other parameters" in " ".join(found.wrong)
