"""Numbers that tell how many records there are: the claim names them."""

import math

import pytest

import sordino as sd
from sordino.ledger.claims import BY_THE_BATCH, BY_THE_RATE, DATASET_SIZE
from sordino.sampling.size_disclosure import numbers_telling_size, size_not_covered
from sordino.statistics import Mean
from tests.problems import linear, private

N = 60_037


@pytest.mark.parametrize("batch", [1, 16, 100, 256, 1000, 4096])
@pytest.mark.parametrize("n", [61, 999, N, 1_281_167])
def test_a_rate_computed_from_the_size_is_noticed(batch, n):
    if batch < n:
        assert numbers_telling_size(sd.Poisson(batch / n), n, None) == [BY_THE_RATE]


def test_so_is_one_over_the_root_of_the_size():
    assert numbers_telling_size(sd.Poisson(1 / math.sqrt(N)), N, None) == [BY_THE_RATE]


@pytest.mark.parametrize("rate", [0.5, 0.25, 0.01, 0.0164, 0.004, 0.1234])
@pytest.mark.parametrize("n", [10_000, 50_000, 60_000, N])
def test_a_round_rate_is_taken_to_be_chosen(rate, n):
    assert numbers_telling_size(sd.Poisson(rate), n, None) == []


def test_rates_chosen_without_the_size_are_hardly_ever_taken_for_others():
    """Of 2,000 rates, each within 1e-11 of a whole number with a chance below 1e-7."""
    assert not any(numbers_telling_size(sd.Poisson(math.exp(-1 - k / 300)), N, None) for k in range(2000))


def test_the_claim_says_may():
    run = private()
    list(run.draws(linear(61), sd.Poisson(16 / 61), steps=1, expected_batch=16))
    said = run.claim(1e-5)
    assert BY_THE_RATE in said.not_covered
    assert "it may have been computed from it; choose a round one" in str(said)


@pytest.mark.parametrize(("expected", "told"), [(12.2, True), (12, False), (13, False), (12.3, False)])
def test_a_divisor_computed_from_the_size_is_noticed(expected, told):
    run = private()
    list(run.draws(linear(61), sd.Poisson(0.2), steps=1, expected_batch=expected))
    assert (BY_THE_BATCH in run.claim(1e-5).not_covered) == told


@pytest.mark.parametrize("sampler", [sd.Shuffle(16), sd.FixedSize(16)], ids=str)
def test_where_the_size_is_public_nothing_is_said(sampler):
    assert numbers_telling_size(sampler, N, 16.0) == []


def test_other_samplers_have_rates_too():
    assert numbers_telling_size(sd.Threshold(1.0, 16 / N, 0.01), N, None) == [BY_THE_RATE]


def test_a_statistic_divided_by_the_size():
    ledger = sd.Ledger()
    x = linear(613).tensors[0]
    sd.ask(Mean(1.0, sd.Gaussian(2.0)), x, ledger=ledger, expected_batch=len(x))
    assert ledger.claim(1e-5).not_covered == (BY_THE_BATCH,)


ONE_RECORD_MORE = (
    sd.Poisson(0.1),
    sd.CyclicPoisson(0.1, 4),
    sd.TruncatedPoisson(0.1, 16),
    sd.BallsInBins(4),
    sd.Full(),
    sd.ByLength(lambda lengths: 0.1 + 0 * lengths, most=0.1),
    sd.Threshold(1.0, 0.1, 0.01),
)
SAME_SIZE = (sd.Shuffle(16), sd.FixedSize(16), sd.FixedOrder(16))
"""Samplers by their neighbours: with one record more or fewer, or with one replaced or without effect."""


@pytest.mark.parametrize("sampler", [*ONE_RECORD_MORE, *SAME_SIZE], ids=lambda sampler: type(sampler).__name__)
def test_the_number_of_records_is_public_only_where_neighbours_have_equally_many(sampler):
    assert sampler.size_is_public == (sampler in SAME_SIZE)
    # A step that is divided by rate × N tells N, and the claim says so where N is not public.
    assert (DATASET_SIZE in size_not_covered(sampler, N, None)) == (sampler in ONE_RECORD_MORE)
