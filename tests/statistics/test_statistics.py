"""Statistics of the data: right without noise, bounded for every record, in one ledger with the training."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.events import Gaussian, Laplace, Poisson, Repeat, Together, compose
from sordino.release.sensitivity import Sensitivity
from sordino.rng.streams import Rng
from sordino.statistics import PCA, ClippedSum, Count, Mean, Normalise, Normaliser, Ranges, ask, dry_ask
from tests.contracts.hunter import SLACK
from tests.problems import cross_entropy, dpsgd, linear, network
from tests.statistics.hunt import hunt

STATISTICS = {
    "mean": (Mean(0.7, sd.Gaussian(2.0)), (4,)),
    "mean-laplace": (Mean(0.7, sd.Laplace(2.0)), (4,)),
    "mean-scalar": (Mean(0.7, sd.Laplace(2.0)), ()),
    "count": (Count(sd.Gaussian(2.0)), (4,)),
    "pca": (PCA(2, sd.Gaussian(2.0)), (2, 2)),
    "normaliser": (Normaliser(0.7, sd.Gaussian(2.0)), (3, 2, 2)),
    "normaliser-flat": (Normaliser(0.7, sd.Laplace(2.0), (0.5, 1.0, 2.0)), (3,)),
    "ranges": (Ranges(3, sd.Gaussian(2.0)), (4,)),
}
every_statistic = pytest.mark.parametrize(("statistic", "shape"), STATISTICS.values(), ids=STATISTICS)


@every_statistic
def test_no_neighbour_moves_a_sum_by_more_than_declared(statistic, shape):
    assert 0.9 < hunt(statistic, shape, trials=60) <= 1 + SLACK


@every_statistic
def test_the_documentation_has_a_line_for_it(statistic, shape):
    claims = (Path(__file__).parents[2] / "docs" / "claims.md").read_text()
    assert f"\n| `{type(statistic).__name__}(" in claims


@dataclass(frozen=True)
class OneSum:
    sum: ClippedSum

    @property
    def sums(self):
        return (self.sum,)

    def value(self, noisy, records):
        return noisy[0]


@dataclass(frozen=True)
class TotalOf:
    """A sum that promises a bound and does something else."""

    of: object
    sensitivity = Sensitivity(l2=1.0)
    noise = sd.Gaussian(1.0)

    def total(self, rows):
        return self.of(rows)


@pytest.mark.parametrize(
    "of",
    [
        lambda x: x.sum(0),
        lambda x: x.sum(0) / x.sum(0).norm().clamp(min=1),
        lambda x: x.nan_to_num().clamp(-1, 1).sum(0),
    ],
    ids=["no clip", "clip the sum", "clip each coordinate"],
)
def test_the_hunter_catches_a_sum_that_breaks_its_promise(of):
    assert hunt(OneSum(TotalOf(of)), (4,), trials=60) > 1 + SLACK


@every_statistic
@pytest.mark.parametrize("sampler", [None, sd.Poisson(0.5), sd.Shuffle(4), sd.FixedSize(4)], ids=str)
def test_a_dry_ask_has_the_event_of_the_real_one(statistic, shape, sampler):
    ledger = sd.Ledger()
    ask(statistic, torch.rand(10, *shape), ledger=ledger, sampler=sampler, seed=0)
    assert ledger.event() == dry_ask(statistic, sampler, dataset_size=10)


@every_statistic
def test_an_empty_draw_is_a_draw(statistic, shape):
    ledger = sd.Ledger()
    ask(statistic, torch.rand(2, *shape), ledger=ledger, sampler=sd.Poisson(1e-9), seed=0)
    assert ledger.event() == dry_ask(statistic, sd.Poisson(1e-9))


def test_without_noise_and_clipping_it_is_the_mean():
    x = torch.randn(50, 3, dtype=torch.float64)
    ledger = sd.Ledger()
    mean = ask(Mean(1e9, sd.Gaussian(0.0)), x, ledger=ledger, physical_batch=7)
    torch.testing.assert_close(mean, x.mean(0))
    assert isinstance(ledger.claim(1e-5), sd.NoGuarantee)


def test_without_noise_and_clipping_features_are_normalised():
    x = 3 + 2 * torch.randn(400, 3, 4, 4)
    normalise = ask(Normaliser(1e9, sd.Gaussian(0.0)), TensorDataset(x, x), ledger=sd.Ledger())
    out = normalise(x).transpose(0, 1).flatten(1)
    torch.testing.assert_close(out.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.std(1, correction=0), torch.ones(3), atol=1e-5, rtol=0)


def test_noise_on_a_mean_has_the_scale_of_its_multiplier():
    x = torch.zeros(10, 40_000)
    noisy = ask(Mean(3.0, sd.Gaussian(2.0)), x, ledger=sd.Ledger(), expected_batch=5.0, seed=0)
    assert noisy.std().item() == pytest.approx(2.0 * 3.0 / 5.0, rel=0.02)  # 5.6 standard errors
    noisy = ask(Mean(3.0, sd.Laplace(2.0)), x, ledger=sd.Ledger(), expected_batch=5.0, seed=0)
    assert noisy.abs().mean().item() == pytest.approx(2.0 * 3.0 / 5.0, rel=0.025)  # 5 standard errors


def test_what_a_claim_about_a_statistic_does_not_cover():
    ledger = sd.Ledger()
    ask(Mean(1.0, sd.Gaussian(2.0)), torch.rand(10, 2), ledger=ledger)
    assert ledger.claim(1e-5).not_covered == ("dataset size",)
    ask(Mean(1.0, sd.Gaussian(2.0)), torch.rand(10, 2), ledger=ledger, expected_batch=10, seed=1)
    assert ledger.claim(1e-5).not_covered == ("dataset size", "seed")
    assert ledger.event() == Repeat(Gaussian(2.0), 2)


def test_what_is_not_divided_does_not_tell_the_size_and_a_noisy_count_is_something_to_divide_by():
    ledger, x = sd.Ledger(), torch.rand(1000, 4)
    ask(PCA(2, sd.Gaussian(20.0)), x, ledger=ledger)
    count = ask(Count(sd.Gaussian(20.0)), x, ledger=ledger)
    assert abs(count - 1000) < 120  # 6 standard deviations
    ask(Mean(1.0, sd.Gaussian(20.0)), x, ledger=ledger, expected_batch=count)
    assert ledger.claim(1e-5).not_covered == ()


def test_a_statistic_and_training_are_one_claim_and_can_be_calibrated_together():
    statistic, sampler = Normaliser(9.0, sd.Gaussian(4.0)), sd.Poisson(0.25)
    ledger, data = sd.Ledger(), linear()
    model = torch.nn.Sequential(ask(statistic, data, ledger=ledger), network())
    private = sd.Private(model, cross_entropy, dpsgd(), ledger=ledger)
    for lot in private.draws(data, sampler, steps=3):
        private.backward(lot)
    planned = compose([dry_ask(statistic), sd.dry_run(dpsgd(), sampler, 64, 3)])
    assert private.event == ledger.event() == planned
    assert planned == Together(Gaussian(4.0), Repeat(Poisson(0.25, Gaussian(1.0)), 3))
    alone = sd.accounting.PLD().epsilon(sd.dry_run(dpsgd(), sampler, 64, 3), 1e-5)
    assert private.claim(1e-5).epsilon == ledger.claim(1e-5).epsilon > alone


def test_a_statistic_asked_while_a_lot_is_open_is_not_amplified_by_it():
    ledger, data = sd.Ledger(), linear()
    private = sd.Private(network(), cross_entropy, dpsgd(), ledger=ledger)
    for lot in private.draws(data, sd.Poisson(0.25), steps=1):
        ask(Mean(1.0, sd.Laplace(2.0)), data, ledger=ledger)
        private.backward(lot)
    assert ledger.event() == Together(Laplace(2.0), Poisson(0.25, Gaussian(1.0)))


def test_two_trainings_on_one_ledger_keep_their_own_draws_and_passes():
    ledger, data = sd.Ledger(), linear()
    one, other = (sd.Private(network(), cross_entropy, dpsgd(), ledger=ledger) for _ in range(2))
    first, second = one.draws(data, sd.Poisson(0.25), steps=2), other.draws(data, sd.Full(), steps=2)
    for a, b in zip(first, second, strict=True):  # both lots are open when each is used
        other.backward(b)
        one.backward(a)
    assert ledger.event() == Together(*[Poisson(0.25, Gaussian(1.0)), Gaussian(1.0)] * 2)


def test_a_run_with_a_statistic_before_it_resumes_with_an_equal_ledger():
    data, statistic = linear(), Mean(1.0, sd.Laplace(2.0))

    def run(private, steps):
        for lot in private.draws(data, sd.Shuffle(20), steps=steps):
            private.backward(lot)
        return private

    def begin():
        ledger = sd.Ledger()
        ask(statistic, data, ledger=ledger, seed=1)
        return sd.Private(network(), cross_entropy, dpsgd(), ledger=ledger, seed=0)

    whole, half = run(begin(), 6), run(begin(), 3)
    whole.secret_state()
    secret = half.secret_state()
    saved = json.loads(json.dumps(half.state_dict()))
    ledger = sd.Ledger()
    beside = sd.Private(network(), cross_entropy, dpsgd(), ledger=ledger)
    resumed = sd.Private(network(), cross_entropy, dpsgd(), ledger=ledger)
    resumed.load_state_dict(saved, replay=sd.Replay("a test", entered=True, secret=secret))
    run(resumed, 3)
    assert resumed.event == whole.event
    assert resumed.state_dict() == whole.state_dict()
    run(beside, 1)  # a page of its own, although it was made first
    assert ledger.event() == compose([whole.event, sd.dry_run(dpsgd(), sd.Shuffle(20), 64, 1)])


def test_a_stream_that_the_caller_keeps_gives_new_noise_every_time():
    ledger, stream = sd.Ledger(), Rng.from_seed(4)
    zeros, statistic = torch.zeros(10, 3), Mean(1.0, sd.Gaussian(2.0))
    found = [ask(statistic, zeros, ledger=ledger, expected_batch=10, rng=stream) for _ in range(3)]
    assert not any(torch.equal(found[i], found[j]) for i in range(3) for j in range(i))
    again = Rng.from_seed(4)
    assert torch.equal(found[0], ask(statistic, zeros, ledger=ledger, expected_batch=10, rng=again))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Mean(0.0, sd.Gaussian(1.0)), "bound=0.0: must be > 0"),
        (lambda: replace(Normaliser(1.0, sd.Gaussian(1.0)), bound=-1.0), "bound=-1.0: must be > 0"),
        (lambda: Normaliser(1.0, sd.Gaussian(1.0), (1.0, 0.0)), "typical=0.0: must be > 0"),
        (lambda: Normalise(3, (1.0, 2.0)), "2 typical sizes for 3 channels: must divide their number"),
        (lambda: ask(Mean(1.0, sd.Gaussian(1.0)), torch.tensor(1.0), ledger=sd.Ledger()), "one row per record"),
        (lambda: ask(Mean(1.0, sd.Gaussian(1.0)), [1, 2], ledger=sd.Ledger(), expected_batch=0), "must be > 0"),
    ],
)
def test_refusals(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
