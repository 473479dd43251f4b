"""One, two and three ranks: the same parameters, ledger, noise and claim, bit by bit, whatever is asked of a lot.

Whether every rank has the whole model or `fully_shard` has divided it among them.
"""

from dataclasses import replace

import pytest
import torch

from tests.distributed import jobs, model_jobs
from tests.distributed.gang import Failed
from tests.distributed.jobs import Case

WHOLE_LOT = ("microbatches", "microbatches-by-position")
"""Queries that go through the records of a lot by themselves; refused on several ranks."""


def the_same(found):
    first, *others = found
    for other in others:
        assert other == first
    return first


def layered(name):
    """Whether a divided model may come and go layer by layer: a penalty inside the clip needs all of it at once."""
    return "penalty" not in jobs.ROWS[name].options


def rows():
    """The first row of every noun; the others, and the one that takes longest, are for the long run of the tests."""
    seen = {"JL"}
    for name, row in jobs.ROWS.items():
        if name not in WHOLE_LOT:
            yield pytest.param(name, marks=[pytest.mark.slow] if row.noun in seen else [])
            seen.add(row.noun)


@pytest.mark.parametrize("name", list(rows()))
def test_every_variant_comes_to_the_same_on_any_number_of_ranks(gang, name):
    kinds = [(1, False, False), (3, False, False), (2, True, layered(name)), (3, True, False)]
    the_same([came for size, *kind in kinds for came in gang(jobs.variant, size, name, *kind)])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in jobs.ROWS if name not in WHOLE_LOT])
def test_so_it_does_on_the_numbers_that_the_short_run_leaves_out(gang, name):
    kinds = [(1, False, False), (2, False, False), (1, True, False), (2, True, False)]
    kinds += [(size, True, layered(name)) for size in (1, 3)]
    the_same([came for size, *kind in kinds for came in gang(jobs.variant, size, name, *kind)])


@pytest.mark.parametrize("name", WHOLE_LOT)
def test_what_needs_the_whole_lot_on_one_rank_is_refused_by_name(gang, name):
    gang(jobs.variant, 1, name)
    with pytest.raises(Failed, match="goes through the records of a lot by itself"):
        gang(jobs.variant, 2, name)


CASES = {
    "lots of one chunk, so that ranks are empty": Case(physical_batch=64),
    "lots that are often empty": Case(rate=0.005, steps=6),
    "dropout": Case(dropout=0.3),
    "records loaded one by one": Case(records=True),
    "chunks by shapes alone": Case(physical_batch=None),
    "float64": Case(dtype=torch.float64),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_lots_of_all_kinds_come_to_the_same(gang, case):
    divided, layered = replace(case, divided=True), replace(case, divided=True, layered=True)
    kinds = [(1, case), (2, case), (3, case), (2, divided), (3, layered)]
    the_same([came for size, each in kinds for came in gang(jobs.train, size, each)])


@pytest.fixture(scope="module")
def undisturbed(gang):
    return gang(jobs.part, 1, 6, None)[0]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_a_run_goes_on_with_another_number_of_ranks(gang, undisturbed, before, after):
    saved = gang(jobs.part, before, 3, None)[0]
    for found in gang(jobs.part, after, 3, saved):
        assert found["parameters"] == undisturbed["parameters"]
        assert found["private"]["ledger"]["entries"] == undisturbed["private"]["ledger"]["entries"]
        assert found["private"]["encrypted"] == undisturbed["private"]["encrypted"]  # where the streams are


@pytest.mark.slow
def test_worker_processes_load_the_chunks_of_their_rank(gang):
    case = Case(records=True, workers=1, steps=2)
    the_same([came for size in (1, 2, 3) for came in gang(jobs.train, size, case)])


def test_without_a_seed_the_ranks_have_one_key_and_another_every_time(gang):
    once, again = (the_same(gang(jobs.train, 3, Case(seed=None))) for _ in range(2))
    assert once.parameters != again.parameters


@pytest.mark.parametrize("name", model_jobs.MODELS)
def test_models_of_all_kinds_come_to_the_same(gang, name):
    found = [came for size in (1, 2, 3) for came in gang(model_jobs.model_run, size, name)]
    alone = model_jobs.model_run("single", name)  # in this process, which has no group
    the_same([*found, alone])


@pytest.mark.slow
def test_two_threads_in_every_process_come_to_the_same(gang):
    the_same([came for size in (1, 2) for came in gang(model_jobs.model_run, size, "perceptron", 2)])


@pytest.mark.parametrize("last", [8, 32])
def test_batches_that_an_engine_met_before_change_no_bit(last):
    """Another process meets other chunks of a lot first."""
    torch.manual_seed(0)
    model = model_jobs.Sometimes()
    short, long, asked = (torch.randn(64, length, 8) for length in (8, 32, last))
    alone = model_jobs.norms_and_sums(model, [(asked,)])
    for before in ([short], [long], [short, long], [long, short]):
        after = model_jobs.norms_and_sums(model, [*((x,) for x in before), (asked,)])
        assert all(map(torch.equal, alone, after))
