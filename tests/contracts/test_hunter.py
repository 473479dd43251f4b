"""No neighbour moves a sum by more than declared; and the hunter catches those who let it."""

import pytest

import sordino as sd
from sordino.clipping import clipping_rule
from sordino.per_sample import Captured, Vmap
from sordino.refusal import Refusal
from sordino.sampling import Informed
from tests.contracts.broken import BROKEN, BROKEN_SAMPLERS
from tests.contracts.chosen import rows_and_backends
from tests.contracts.hunter import hunt, hunt_draws

PROVEN = {name: pair for name, pair in rows_and_backends("hunt").items() if pair[0].guarantee}


@pytest.mark.parametrize(
    ("variant", "backend"),
    [
        pytest.param(*pair, id=name, marks=[pytest.mark.slow] * name.endswith("vmap-chunk"))
        for name, pair in PROVEN.items()
    ],
)
def test_no_neighbour_moves_a_sum_by_more_than_declared(variant, backend):
    catch = hunt(variant.query, backend, trials=30, options=variant.options, units=variant.units)
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


@pytest.fixture
def believed(monkeypatch):
    """Weights and rates are taken as they are given, so that the hunter has something to catch."""
    monkeypatch.setattr(clipping_rule, "bound_weights", lambda weights, *_: weights)
    monkeypatch.setattr(clipping_rule, "works_row_by_row", lambda *_: True)


@pytest.mark.parametrize("name", BROKEN_SAMPLERS)
def test_the_hunter_catches_a_sampler_that(name, believed):
    dpsgd = sd.NoisySum(sd.Flat(0.5), sd.Gaussian(1.0))
    assert hunt_draws(BROKEN_SAMPLERS[name], lambda: dpsgd, Captured(), trials=15).broken


@pytest.mark.parametrize("name", BROKEN)
def test_the_hunter_catches(name, believed):
    assert hunt(BROKEN[name], Vmap(), trials=30).broken


@pytest.mark.parametrize("name", ["no_clip", "bias_left_out_of_the_norm", "squared_norm_taken_for_the_norm"])
def test_what_a_weigher_gets_wrong_of_its_own_row_is_held_to_the_bound(name):
    assert not hunt(BROKEN[name], Vmap(), trials=30).broken


@pytest.mark.parametrize("name", ["compares_a_record_with_the_median", "divides_by_the_total"])
def test_a_rate_that_looks_at_other_records_is_refused(name):
    dpsgd = sd.NoisySum(sd.Flat(0.5), sd.Gaussian(1.0))
    with pytest.raises(Refusal, match="changes with the other records"):
        hunt_draws(BROKEN_SAMPLERS[name], lambda: dpsgd, Captured(), trials=15)


def test_a_tapped_run_can_print_no_epsilon():
    import numpy as np
    import torch

    from sordino.release.release import tap_releases
    from tests.contracts.hunter import Recorder, Scripted, network, records, squared_error

    private = sd.Private(network(), squared_error, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), seed=0)
    dataset = torch.utils.data.TensorDataset(*records(np.random.default_rng(0), 5))
    with tap_releases(Recorder(torch.Generator())):
        for lot in private.draws(dataset, Scripted(((0, 1),)), steps=1):
            private.backward(lot)
    assert private.claim(1e-5) == sd.NoGuarantee("a tap saw what was released before its noise was added")
