"""Divided models whose parameters are gathered layer by layer, and whose sums come together one parameter at a time."""

import pytest

from tests.distributed import jobs, layered_jobs
from tests.distributed.gang import Failed
from tests.distributed.jobs import Case


def test_no_rank_ever_holds_the_whole_model_nor_a_whole_gradient(gang):
    """Of 16 layers: about 32 bytes a parameter where the model is made whole, 16 for each of a rank's own where it is not.

    8 for the sum, 4 for noise and 4 for what is released. Beside that there are four buffers for messages, of 8 bytes for
    each number of one layer: together 2 a parameter. No message is longer than the largest parameter, in even rows.
    """
    for taken, _ in gang(layered_jobs.peak, 2, False):
        assert taken > 28
    for size in (2, 3):
        for taken, largest in gang(layered_jobs.peak, size, True):
            assert taken < 16 / size + 32 / layered_jobs.LAYERS
            assert largest <= (layered_jobs.WIDTH + 2) * layered_jobs.WIDTH


def test_who_watches_the_door_sees_the_same_sum(gang):
    first, *others = (seen for each in (False, True) for seen in gang(layered_jobs.seen_at_the_door, 2, each))
    assert len(first) == 4
    assert all(seen == first for seen in others)


def test_ranks_that_ask_for_other_things_get_them(gang):
    """Of three ranks the first asks for four parameters, the second for three of them, the third for two."""
    found = gang(layered_jobs.out_of_step, 3)
    assert [len(got) for got, _ in found] == [4, 3, 2]
    assert all(all(got) for got, _ in found)
    numbers = [30, 5, 10, 2]
    for number, length in enumerate(numbers):
        brought = range(min(number, 2) + 1)  # the ranks that brought a sum for it
        wanted = [sum(k + rank for rank in brought) for k in range(length)]
        assert [each for _, sums in found for each in sums[number]] == wanted


def test_a_rank_that_stops_leaves_nobody_waiting(gang):
    first, *others = gang(layered_jobs.stopped, 3)
    assert first == ""
    assert all("another rank met an error" in said for said in others)


def test_an_error_on_one_rank_ends_all_of_them(gang):
    with pytest.raises(Failed) as caught:
        gang(jobs.train, 3, Case(broken="one rank fails", divided=True, layered=True))
    said = str(caught.value)
    assert said.count("ValueError: a record that cannot be read") == 1
    assert said.count("StoppedElsewhere: another rank met an error") == 2
    cases = [(1, Case()), (3, Case(divided=True, layered=True))]  # and they go on after that
    assert len({came.parameters for size, case in cases for came in gang(jobs.train, size, case)}) == 1


@pytest.mark.parametrize("name", ["one chunk twice", "an empty rank skips the lot"])
def test_a_disagreement_stops_every_rank(gang, name):
    case = Case(rate=0.05 if "empty" in name else 0.2, steps=8, broken=name, divided=True, layered=True)
    with pytest.raises(Failed) as caught:
        gang(jobs.train, 2, case)
    assert str(caught.value).count("Disagreement: ") == 2


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("reads", "Some parameter is read outside the forward of the module that has it in its charge"),
        ("checkpoints", "the model checkpoints activations"),
        ("penalty", "penalty inside the clip"),
        ("whole", "the model is not divided"),
    ],
)
def test_what_needs_parameters_at_another_time_is_refused(gang, how, said):
    for found in gang(layered_jobs.refused, 2, how):
        assert said in found
