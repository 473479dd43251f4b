"""No neighbour moves a sum by more than declared; and the hunter catches those who let it."""

import pytest

import sordino as sd
from sordino.gradients import Captured, Vmap
from sordino.sampling import Informed
from tests.contracts.broken import BROKEN, BROKEN_SAMPLERS
from tests.contracts.hunter import hunt, hunt_draws
from tests.contracts.variants import rows_and_backends

PROVEN = {name: pair for name, pair in rows_and_backends("hunt").items() if pair[0].guarantee}


@pytest.mark.parametrize(("variant", "backend"), PROVEN.values(), ids=PROVEN)
def test_no_neighbour_moves_a_sum_by_more_than_declared(variant, backend):
    catch = hunt(variant.query, backend, trials=30, options=variant.options)
    assert not catch.broken, catch
    assert catch.worst > 0.3  # the hunter came near the bound, so it was looking in the right place


DRAWN = {
    name: pair
    for name, pair in rows_and_backends("hunt", scripted=False).items()
    if pair[0].guarantee and pair[0].sampler and isinstance(pair[0].sampler(), Informed)
}


@pytest.mark.parametrize(("variant", "backend"), DRAWN.values(), ids=DRAWN)
def test_no_record_moves_another_s_coin_or_a_sum_by_more_than_declared(variant, backend):
    catch = hunt_draws(variant.sampler, variant.query, backend, trials=30, options=variant.options)
    assert not catch.broken, catch
    assert catch.worst > 0.3


@pytest.mark.parametrize("name", BROKEN_SAMPLERS)
def test_the_hunter_catches_a_sampler_that(name):
    dpsgd = sd.NoisySum(sd.Flat(0.5), sd.Gaussian(1.0))
    assert hunt_draws(BROKEN_SAMPLERS[name], lambda: dpsgd, Captured(), trials=15).broken


@pytest.mark.parametrize("name", BROKEN)
def test_the_hunter_catches(name):
    assert hunt(BROKEN[name], Vmap(), trials=30).broken


def test_a_tapped_run_can_print_no_epsilon():
    import numpy as np
    import torch

    from sordino.door.release import tapped
    from tests.contracts.hunter import Recorder, Scripted, network, records, squared_error

    private = sd.Private(network(), squared_error, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), seed=0)
    dataset = torch.utils.data.TensorDataset(*records(np.random.default_rng(0), 5))
    with tapped(Recorder(torch.Generator())):
        for lot in private.draws(dataset, Scripted(((0, 1),)), steps=1):
            private.backward(lot)
    assert private.claim(1e-5) == sd.NoGuarantee("the door was tapped")
