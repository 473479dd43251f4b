"""Models that `fully_shard` divides: layers of all kinds, what a user may do between lots, what is refused."""

import pytest

from tests.distributed import sharded_jobs
from tests.distributed.test_same_bits import the_same


def test_layers_of_all_kinds_come_to_the_same(gang):
    """On every rank, divided, and divided with layers that come and go."""
    kinds = [(1, False, False), *((size, True, layered) for size in (1, 2, 3) for layered in (False, True))]
    the_same([came for size, *kind in kinds for came in gang(sharded_jobs.words, size, *kind)])


@pytest.mark.parametrize("between", ["nothing", "evaluate", "clip"])
def test_what_uses_released_values_alone_keeps_the_claim(gang, between):
    for said, divided in gang(sharded_jobs.looked_at, 2, between):
        assert "differential privacy" in said
        assert all(divided)  # what was released lies where the rows are, and nowhere else


@pytest.mark.parametrize(
    ("between", "said"),
    [("write", "was changed other than by an optimizer step"), ("backward", "outside private.backward")],
)
def test_what_escapes_the_door_voids_the_claim_on_every_rank(gang, between, said):
    for found, _ in gang(sharded_jobs.looked_at, 2, between):
        assert said in found


def test_a_rank_makes_the_noise_of_its_own_rows_and_no_other(gang):
    """Of linear layers 6-5-2: rows of 6, 1, 5 and 1 numbers, of which three ranks have 2, 2, 1 and 1, 1, 0."""
    by_rank = [[counts for _, counts in asked] for asked in gang(sharded_jobs.noise, 3)]
    assert by_rank == [[[12, 2, 5, 1]] * 2, [[12, 2, 5, 1]] * 2, [[6, 1, 0, 0]] * 2]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("beside", "is not divided among the ranks and others are"),
        ("tensor parallel", "Tensor, context and expert parallelism are not supported"),
        ("sequence parallel", "Tensor, context and expert parallelism are not supported"),
        ("expert parallel", "Tensor, context and expert parallelism are not supported"),
        ("pipeline", "model=PipelineStage: pipeline parallelism is not supported"),
        ("pipeline's schedule", "model=ScheduleGPipe: pipeline parallelism is not supported"),
        ("hybrid", "hybrid sharding, tensor and expert parallelism are not supported"),
        ("mixed precision", "param_dtype"),
        ("another group", "divided among other ranks than the records are"),
    ],
)
def test_other_divisions_are_refused_by_name(gang, how, said):
    for found in gang(sharded_jobs.refused, 2, how):
        assert said in found


@pytest.mark.parametrize("how", ["all_reduce", "all_gather", "context parallel"])
def test_a_loss_that_needs_the_other_ranks_is_refused_before_it_sends_anything(gang, how):
    for found in gang(sharded_jobs.talks, 2, how):
        assert "sends messages to other ranks (" in found
