"""Checkpoints that all ranks write together are gone on with by any number of them, divided or not."""

import pytest

from tests.distributed import jobs

QUERIES = ["adaptive", "lookahead"]


@pytest.fixture(scope="module")
def undisturbed(gang, tmp_path_factory):
    made = tmp_path_factory.mktemp("whole")
    return {query: gang(jobs.checkpointed, 1, str(made / query), 4, query, False, True)[0] for query in QUERIES}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(
    ("before", "after"), [((2, True), (3, True)), ((3, True), (1, False)), ((1, False), (2, True))]
)
def test_a_run_goes_on_from_a_checkpoint_of_other_ranks(gang, tmp_path, undisturbed, before, after, query):
    folder = str(tmp_path / "checkpoint")
    gang(jobs.checkpointed, before[0], folder, 2, query, before[1], True)
    for found in gang(jobs.checkpointed, after[0], folder, 2, query, after[1], False):
        assert (found.parameters, found.noise) == (undisturbed[query].parameters, undisturbed[query].noise)
        assert found.ledger["entries"] == undisturbed[query].ledger["entries"]
