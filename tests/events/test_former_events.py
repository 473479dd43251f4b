"""Events that version 0.2 wrote, as pickles or as JSON, still load, and mean the same."""

import pickle

import pytest

from sordino.events import (
    Exponential,
    Gaussian,
    Group,
    Laplace,
    Poisson,
    Relation,
    Repeat,
    Shuffle,
    Together,
    TunePoisson,
    from_json,
)

PICKLED = (
    b"(lp0\nccopy_reg\n_reconstructor\np1\n(csordino.events.composition\nTogether\np2\nc__builtin__\nobject\np3\nNtp4\nRp5\n"
    b"(dp6\nVevents\np7\n(g1\n(csordino.events.composition\nRepeat\np8\ng3\nNtp9\nRp10\n(dp11\nVevent\np12\ng1\n"
    b"(csordino.events.draws\nPoisson\np13\ng3\nNtp14\nRp15\n(dp16\nVrate\np17\nF0.01\nsg12\ng1\n"
    b"(csordino.events.mechanisms\nGaussian\np18\ng3\nNtp19\nRp20\n(dp21\nVmultiplier\np22\nF1.1\nsbsbsVcount\np23\nI500\n"
    b"sbg1\n(csordino.events.draws\nShuffle\np24\ng3\nNtp25\nRp26\n(dp27\ng12\ng1\n(csordino.events.mechanisms\nLaplace\n"
    b"p28\ng3\nNtp29\nRp30\n(dp31\nVscale\np32\nF2.0\nsbsbg1\n(csordino.events.composition\nTunePoisson\np33\ng3\nNtp34\n"
    b"Rp35\n(dp36\ng12\ng1\n(csordino.events.composition\nGroup\np37\ng3\nNtp38\nRp39\n(dp40\ng12\ng1\n"
    b"(csordino.events.mechanisms\nExponential\np41\ng3\nNtp42\nRp43\n(dp44\nVepsilon\np45\nF0.1\nsbsVsize\np46\nI2\nsbs"
    b"Vmean\np47\nF3.0\nsbtp48\nsbacsordino.events.base\nRelation\np49\n(Vreplace-one\np50\ntp51\nRp52\na."
)
"""What 0.2 wrote with `pickle.dumps([event, relation], protocol=0)`."""

EVENT = Together(
    Repeat(Poisson(0.01, Gaussian(1.1)), 500), Shuffle(Laplace(2.0)), TunePoisson(Group(Exponential(0.1), 2), 3.0)
)


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_a_pickle_of_0_2_loads():
    event, relation = pickle.loads(PICKLED)
    assert event == EVENT
    assert relation is Relation.REPLACE


def test_json_of_0_2_loads():
    text = (
        '{"type": "Together", "events": [{"type": "Repeat", "event": {"type": "Poisson", "rate": 0.01, "event": '
        '{"type": "Gaussian", "multiplier": 1.1}}, "count": 500}, {"type": "Shuffle", "event": {"type": "Laplace", '
        '"scale": 2.0}}, {"type": "TunePoisson", "event": {"type": "Group", "event": {"type": "Exponential", '
        '"epsilon": 0.1}, "size": 2}, "mean": 3.0}]}'
    )
    assert from_json(text) == EVENT


def test_a_pickle_of_today_loads():
    assert pickle.loads(pickle.dumps(EVENT)) == EVENT
