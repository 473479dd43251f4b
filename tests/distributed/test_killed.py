"""Whichever rank is killed, and whenever: the run goes on, with more or fewer ranks, to the bits of an undisturbed one."""

import random
import signal
import time

import pytest

from sordino.app.runs.directory import MODEL
from tests.distributed import divided_run
from tests.distributed.gang import fork_server
from tests.distributed.killed import PATIENCE, environments, killed, undisturbed

STEPS = 18


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("whole") / "run", 3)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "after"), [(2, 3), (3, 1), (2, 2)])
def test_a_killed_rank_loses_nothing(tmp_path, wanted, size, after):
    killed(tmp_path / "run", size, after, random.Random(size * 10 + after))
    assert (tmp_path / "run" / MODEL).read_bytes() == wanted


@pytest.mark.parametrize(("size", "victim", "after", "layered"), [(2, 0, 3, False), (3, 2, 1, True)])
def test_nor_does_a_killed_rank_that_held_rows_of_the_model(gang, tmp_path, size, victim, after, layered):
    """Divided by `fully_shard`; killed after a checkpoint, also while layers come and go, and gone on with from it."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    whole.mkdir(), run.mkdir()
    gang(divided_run.train, 1, str(whole), STEPS)
    processes = _started(size, run, layered)
    moment = random.Random(size).randrange(divided_run.EVERY, STEPS - 1)
    while divided_run.reached(run) < moment and all(process.is_alive() for process in processes):
        time.sleep(0.001)
    processes[victim].kill()
    for process in processes:
        process.join(PATIENCE)
    assert processes[victim].exitcode == -signal.SIGKILL
    assert all(process.exitcode for process in processes)  # none goes on alone
    gang(divided_run.train, after, str(run), STEPS)
    assert divided_run.came_to(run) == divided_run.came_to(whole)  # of steps made twice too
    assert len(divided_run.came_to(whole)) == STEPS


def _started(size, folder, layered):
    run = divided_run.alone
    made = [fork_server().Process(target=run, args=(told, str(folder), STEPS, layered)) for told in environments(size)]
    for process in made:
        process.start()
    return made
