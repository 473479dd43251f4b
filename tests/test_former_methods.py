"""Functions, classes and methods by the names they had in 0.2: they work for one release, and warn."""

import importlib
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.app.data import Images
from sordino.former_names import FORMER_NAMES
from sordino.sampling.sampler import Draw, Informed, keep_unamplified

RECORDS = 12


@pytest.mark.parametrize("former", sorted(name for name in FORMER_NAMES if not name.startswith("lab")))
def test_a_former_module_is_one_that_exists_by_another_name(former):
    current = find_spec(f"sordino.{FORMER_NAMES[former]}")
    assert current is not None
    assert current.origin is not None, "a file, and not a former name once more"


def test_a_module_keeps_its_own_spec_after_an_import_by_a_former_name():
    current = importlib.import_module("sordino.events")
    sys.modules.pop("sordino.events.mechanisms", None)
    with pytest.warns(DeprecationWarning, match="is now sordino.events"):
        assert importlib.import_module("sordino.events.mechanisms") is current
    assert current.__spec__.name == "sordino.events"
    assert find_spec("sordino.events").origin == current.__file__


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("lots.draw_request", "DrawRequest"),
        ("ledger.divergence", "Diverged"),
        ("runtime_checks.check_schedule", "CheckSchedule"),
    ],
)
def test_what_was_merged_into_another_file_is_found_by_its_former_module(module, name):
    with pytest.warns(DeprecationWarning, match=f"sordino.{module} is now sordino.{FORMER_NAMES[module]}"):
        former = importlib.import_module(f"sordino.{module}")
    assert getattr(former, name) is getattr(importlib.import_module(f"sordino.{FORMER_NAMES[module]}"), name)


def private_run(query=None):
    return sd.Private(
        nn.Linear(3, 1),
        lambda model, x: model(x).square().sum(1),
        sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1)) if query is None else query,
        seed=0,
    )


def dataset():
    return TensorDataset(torch.randn(RECORDS, 3, generator=torch.Generator().manual_seed(1)))


def train(run, sampler, steps):
    for lot in run.draws(dataset(), sampler, steps=steps):
        run.backward(lot)


def old_sampler():
    """A user's sampler as 0.2 asked for it; a class of its own, because what is adopted stays adopted."""

    class EveryRecord:
        size_is_public = False

        def expected(self, n):
            return float(n)

        def draws(self, n, rng, start):
            while True:
                yield Draw(np.arange(n), keep_unamplified)

    return EveryRecord()


def test_a_sampler_that_defines_only_expected_trains_and_warns_once():
    run, sampler = private_run(), old_sampler()
    with pytest.warns(DeprecationWarning, match="EveryRecord.expected is now expected_size") as warned:
        train(run, sampler, 2)
    assert len([one for one in warned if issubclass(one.category, DeprecationWarning)]) == 1
    assert sampler.expected_size(RECORDS) == RECORDS
    assert run.claim(1e-5).epsilon > 0


def test_it_can_be_dry_run_and_asked_for_a_statistic():
    with pytest.warns(DeprecationWarning, match="expected_size"):
        event = sd.dry_run(sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1)), old_sampler(), RECORDS, 2)
    assert event == sd.events.Repeat(sd.events.Gaussian(1.1), 2)


def test_a_former_sampler_that_asks_the_records_is_still_known_to_ask_them():
    """Otherwise it would be charged as if it had drawn without a look."""

    class Looks:
        size_is_public = False

        def expected(self, n):
            return 4.0

        def draws(self, n, rng, start):
            while True:
                yield Draw(np.arange(4), keep_unamplified)

        def draws_from(self, records, rng, start, memory):
            while True:
                yield Draw(np.argsort(-records.lengths(np.arange(len(records))))[:4], keep_unamplified)

    run, sampler = private_run(), Looks()
    with pytest.warns(DeprecationWarning, match="expected_size"):
        train(run, sampler, 1)
    assert isinstance(sampler, Informed)
    assert isinstance(run.claim(1e-5), sd.NoGuarantee)


def test_a_subclass_that_overrides_the_former_name_keeps_its_own_method():
    class Half(sd.Poisson):
        def expected(self, n):
            return n / 2

    with pytest.warns(DeprecationWarning, match="Half.expected is now expected_size"):
        sd.dry_run(sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1)), Half(0.1), RECORDS, 1)
    assert Half(0.1).expected_size(RECORDS) == RECORDS / 2
    assert sd.Poisson(0.1).expected_size(RECORDS) == pytest.approx(RECORDS / 10)


@pytest.mark.parametrize(
    "sampler",
    [sd.Poisson(0.5), sd.Full(), sd.FixedSize(4), sd.Shuffle(4), sd.BallsInBins(3), sd.CyclicPoisson(0.5, 2)],
    ids=lambda one: type(one).__name__,
)
def test_our_samplers_answer_to_expected(sampler):
    with pytest.warns(DeprecationWarning, match="expected is now expected_size"):
        assert sampler.expected(RECORDS) == sampler.expected_size(RECORDS)


def test_a_noise_that_defines_only_bound_is_added_and_warns():
    class Steady(sd.Gaussian):
        def bound(self, sensitivity):
            return 2 * sensitivity.l2

    with pytest.warns(DeprecationWarning, match="Steady.bound is now bound_for"):
        query = sd.NoisySum(sd.Flat(1.0), Steady(1.1))
    run = private_run(query)
    train(run, sd.Poisson(0.5), 1)
    with pytest.warns(DeprecationWarning, match="Gaussian.bound is now bound_for"):
        assert sd.Gaussian(1.1).bound(sd.Flat(1.0).rule(None, lambda: None).sensitivity) == 1.0
    assert query.noise.bound_for(sd.Flat(1.0).rule(None, lambda: None).sensitivity) == 2.0


def test_a_number_called_bound_is_no_method():
    """A field of a user's noise that happens to have the former name is left alone."""

    class Named(sd.Gaussian):
        bound = 3.0

    sd.NoisySum(sd.Flat(1.0), Named(1.1))
    assert "bound_for" not in vars(Named)


def test_functions_and_classes_are_found_by_their_former_names():
    with pytest.warns(DeprecationWarning, match=r"sordino\.events\.counted is now event_counts"):
        assert sd.events.counted is sd.events.event_counts
    with pytest.warns(DeprecationWarning, match="amplify_by_sampling"):
        assert sd.accounting.amplified is sd.accounting.amplify_by_sampling
    with pytest.warns(DeprecationWarning, match="repeat_until_threshold"):
        assert sd.accounting.thresholded is sd.accounting.repeat_until_threshold
    with pytest.warns(DeprecationWarning, match="ClippingRule"):
        assert sd.clipping.Weigher is sd.clipping.ClippingRule
    with pytest.raises(AttributeError, match="no attribute 'tallied'"):
        _ = sd.events.tallied


def test_methods_are_found_by_their_former_names(tmp_path):
    budget = sd.accounting.Budget.create(tmp_path / "budget.jsonl", epsilon=3.0, delta=1e-5)
    budget.spend(sd.events.Gaussian(2.0))
    with pytest.warns(DeprecationWarning, match="spent_epsilon"):
        assert budget.spent() == budget.spent_epsilon() > 0
    with pytest.warns(DeprecationWarning, match="remaining_epsilon"):
        assert budget.left() == budget.remaining_epsilon() < 3.0
    run = private_run()
    with pytest.warns(DeprecationWarning, match="spent_epsilon"):
        assert run.spent(1e-5) == run.spent_epsilon(1e-5)
    model = nn.Linear(2, 1)
    average = sd.optim.Average(model, decay=0.9)
    with pytest.warns(DeprecationWarning, match="swap_temporarily"), average.swapped():
        pass


def test_images_scaled_is_now_to_dataset():
    images = Images(torch.full((2, 1, 3, 3), 255, dtype=torch.uint8), torch.tensor([0, 1]))
    with pytest.warns(DeprecationWarning, match="to_dataset"):
        x, _ = images.scaled(0.5, 0.5).tensors
    assert x.eq(1.0).all()


NOISE = sd.Gaussian(1.1)


def follows(name):
    """A clipping rule whose bound follows a quantile, with the rule of a bound given by one of its names."""
    return sd.AdaptiveQuantile(1.0, quantile=0.5, count_noise=10.0, **{name: sd.Automatic})


@pytest.mark.parametrize(
    "make",
    [
        lambda name: sd.NoisySum(**{name: sd.Flat(1.0)}, noise=NOISE),
        lambda name: sd.L1Sum(**{name: sd.Flat(1.0)}, noise=sd.Laplace(30.0)),
        lambda name: sd.Microbatches(**{name: sd.Flat(1.0)}, noise=NOISE, grouping=sd.ByCoin(4)),
        lambda name: sd.Projected(**{name: sd.Flat(1.0)}, noise=NOISE, learning_rate=0.1),
        lambda name: sd.NoisyLookahead(**{name: sd.Flat(1.0)}, noise=NOISE, learning_rate=0.1),
        lambda name: sd.OptimisticLookahead(**{name: sd.Flat(1.0)}, noise=NOISE, learning_rate=0.1),
        lambda name: sd.Scheduled(sd.schedules.Linear(2.0, 0.5, steps=10), **{name: sd.Automatic}),
        lambda name: sd.AdaptiveLayerwise([1.0, 1.0], quantile=0.5, count_noise=10.0, **{name: sd.Layerwise}),
        follows,
    ],
)
def test_the_clipping_of_a_query_can_still_be_given_and_read_as_its_weigher(make):
    current = make("clipping")
    with pytest.warns(DeprecationWarning, match=r"\(weigher=…\) is now \w+\(clipping=…\)"):
        assert make("weigher") == current
    with pytest.warns(DeprecationWarning, match="weigher is now clipping"):
        assert current.weigher is current.clipping


def test_the_former_field_can_be_replaced():
    with pytest.warns(DeprecationWarning, match="weigher"):
        changed = replace(sd.NoisySum(sd.Flat(1.0), NOISE), weigher=sd.Flat(2.0))
    assert changed == sd.NoisySum(sd.Flat(2.0), NOISE)


def test_a_state_that_was_saved_with_the_former_name_goes_on():
    query = sd.NoisyLookahead(sd.AdaptiveQuantile(1.0, quantile=0.5, count_noise=10.0), NOISE, learning_rate=0.1)
    run = private_run(query)
    train(run, sd.Poisson(0.5), 3)
    saved = run.state_dict()
    followed = saved["state"]["clipping"]
    assert followed != 1.0, "the bound has moved from where it began"
    # As 0.3 saved it.
    saved["query"] = saved["query"].replace("clipping=", "weigher=")
    saved["state"]["weigher"] = saved["state"].pop("clipping")
    resumed = private_run(query)
    resumed.load_state_dict(saved)
    assert resumed.state_dict()["state"] == {"step": 3, "clipping": followed}
