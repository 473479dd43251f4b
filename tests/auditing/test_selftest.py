"""The selftest accuses nobody who is right, and says what it could not try."""

import copy
import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import sordino as sd
from sordino.app.cli.main import main
from sordino.auditing import Pieces, e_values, selftest
from sordino.auditing.selftest_checks.sampler_checks import check_sampler
from sordino.auditing.verdict import SelftestFinding, Verdict
from sordino.rng.streams import Rng
from sordino.sampling.sampler import Draw, keep_unamplified
from tests.auditing.settings import network, pieces, records

QUERIES = {
    "dpsgd": None,
    "layerwise": sd.NoisySum.per_layer({"0.": (0.5, 2.0), "3.": (0.2, 1.5)}),
    "quantile": sd.NoisySum(sd.AdaptiveQuantile(0.5, 0.5, count_noise=10.0), sd.Gaussian(1.2)),
    "laplace": sd.NoisySum(sd.FlatL1(0.5, 10_000), sd.Laplace(2.0)),
}


@pytest.mark.parametrize("name", QUERIES)
def test_what_is_right_is_not_accused(name):
    verdict = selftest(pieces(QUERIES[name]), records())
    assert verdict.passed, str(verdict)
    assert sum(f.holds is True for f in verdict.findings) >= 12


@pytest.mark.parametrize("sampler", [sd.FixedSize(20), sd.Shuffle(20), sd.BallsInBins(10), sd.Full()], ids=str)
def test_other_samplers_are_tested_by_what_they_claim(sampler):
    verdict = selftest(pieces(sampler=sampler), records())
    assert verdict.passed, str(verdict)


def test_a_run_is_tested_as_it_stands_and_left_as_it_was():
    dataset, model = records(), network()
    private = sd.Private(model, lambda m, x, y: nn.functional.cross_entropy(m(x), y, reduction="none"),
                         sd.NoisySum(sd.Flat(0.5), sd.Gaussian(1.2)))  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for lot in private.draws(dataset, sd.Poisson(0.1), steps=3):
        private.backward(lot)
        optimizer.step()
    before, weights = private.claim(1e-5), copy.deepcopy(model.state_dict())
    generator = torch.get_rng_state()
    assert selftest(private, dataset, sd.Poisson(0.1)).passed
    after = private.claim(1e-5)
    assert (after.epsilon, after.not_covered) == (before.epsilon, before.not_covered)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert torch.equal(generator, torch.get_rng_state())


def test_dropout_is_switched_off_where_worlds_are_compared():
    model = nn.Sequential(network(), nn.Dropout(0.5))
    verdict = selftest(Pieces(model, pieces().loss_fn, pieces().query, sd.Poisson(0.1)), records())
    assert verdict.passed, str(verdict)


def test_a_query_without_a_proof_is_not_tried_for_its_bound():
    verdict = selftest(pieces(sd.NoisySum(sd.BatchStatistic.median(0.5), sd.Gaussian(1.2))), records())
    assert any(f.check == "bound" and not f.tried for f in verdict.findings)


def test_a_users_own_loss_that_couples_records_is_refused():
    def coupled(model, x, y):
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        return losses * losses.detach().mean()

    with pytest.raises(sd.Refusal):
        selftest(Pieces(network(), coupled, pieces().query, sd.Poisson(0.1)), records())


@pytest.mark.parametrize(
    ("seen", "name"),
    [
        (lambda z: 0.98 * z, "too little noise"),
        (lambda z: 1.02 * z, "too much noise"),
    ],
)
def test_noise_two_percent_off_is_seen_both_ways(seen, name):
    z = np.random.default_rng(0).normal(size=400_000)
    assert e_values.log_e_of_normal_scale(seen(z)) > math.log(1e8)
    assert e_values.log_e_of_normal_scale(z) < 0


def test_e_values_have_mean_at_most_one():
    """Over 1,500 right mechanisms each; that the mean of a heavy tail looks so is no accident at these sizes."""
    rng = np.random.default_rng(1)
    for make in (
        lambda: e_values.log_e_of_normal_scale(rng.normal(size=20)),
        lambda: e_values.log_e_of_laplace_scale(rng.laplace(size=20)),
        lambda: e_values.log_e_of_normal_pairs(rng.normal(size=20), rng.normal(size=20)),
        lambda: e_values.log_e_of_count(int(rng.binomial(50, 0.3)), 50, 0.3),
    ):
        values = np.exp([make() for _ in range(1500)])
        assert np.minimum(values, 1e3).mean() < 1.15
        assert (values >= 100).mean() <= 0.01 + 4 * math.sqrt(0.01 / 1500)


def test_one_bad_test_among_many_good_ones_is_enough():
    good = tuple(SelftestFinding(str(i), "", log_e=0.0) for i in range(30))
    assert Verdict(good, 1e-6, 0.0).passed
    assert not Verdict((*good, SelftestFinding("bad", "", log_e=40.0)), 1e-6, 0.0).passed


def test_a_fact_that_does_not_hold_is_a_failure_whatever_its_type():
    """numpy's False is not Python's, and once slipped through."""
    assert not Verdict((SelftestFinding("bad", "", holds=np.bool_(False)),), 1e-6, 0.0).passed


class Sloppy:
    """Poisson draws with something wrong."""

    size_is_public = False

    def __init__(self, change):
        self.rate, self._change = 0.1, change

    def expected_size(self, n):
        return 0.1 * n

    def draws(self, n, rng, start):
        for k, draw in enumerate(sd.Poisson(0.1).draws(n, rng, start)):
            yield replace(draw, indices=self._change(draw.indices, n, k))


WRONG = {
    "the last record never": lambda drawn, n, k: drawn[drawn < n - 1],
    "one size": lambda drawn, n, k: np.sort(np.random.default_rng(k).permutation(n)[: n // 10]),
    "neighbours together": lambda drawn, n, k: np.unique(np.concatenate([drawn // 2 * 2, drawn // 2 * 2 + 1])) % n,
    "every lot twice": lambda drawn, n, k: np.flatnonzero(np.random.default_rng(k // 2).random(n) < 0.1),
    "too often": lambda drawn, n, k: np.flatnonzero(np.random.default_rng(k).random(n) < 0.103),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_sloppy_sampler_is_seen(name):
    found = check_sampler(Sloppy(WRONG[name]), 500, Rng.from_seed(9))
    assert e_values.log_mean(f.log_e for f in found) > math.log(1e6)
    right = check_sampler(sd.Poisson(0.1), 500, Rng.from_seed(9))
    assert e_values.log_mean(f.log_e for f in right) < math.log(1e3)


BRINGS_ITS_TEST = [
    sd.Poisson(0.1),
    sd.Full(),
    sd.FixedSize(20),
    sd.Shuffle(20),
    sd.BallsInBins(10),
    sd.CyclicPoisson(0.3, groups=4),
    sd.FixedOrder(30),
    sd.TruncatedPoisson(0.1, max_batch=60),
]


@pytest.mark.parametrize("sampler", BRINGS_ITS_TEST, ids=lambda one: type(one).__name__)
def test_every_sampler_passes_the_test_that_it_brings(sampler):
    """Draws that are charged as one phase once were one pass without end to the selftest, which never came back."""
    found = check_sampler(sampler, 250, Rng.from_seed(4))
    assert all(one.holds is not False for one in found), found
    assert e_values.log_mean([one.log_e for one in found if one.log_e is not None] or [0.0]) < math.log(1e3)
    assert any(one.tried for one in found)


class Wrong:
    """A sampler of ours, with its lots changed and its event kept."""

    def __init__(self, right, change):
        self.right, self.change, self.size_is_public = right, change, right.size_is_public

    def expected_size(self, n):
        return self.right.expected_size(n)

    def check_draws(self, checks):
        return type(self.right).check_draws(self.right, checks)

    def draws(self, n, rng, start):
        for k, draw in enumerate(self.right.draws(n, rng, start)):
            yield replace(draw, indices=self.change(draw.indices, n, k))


def one_more(drawn, n, k):
    """The first record is in every lot."""
    return np.union1d(drawn, [0])


def turned(drawn, n, k):
    """Another order in every lot."""
    return np.sort((drawn + k) % n)


SEEN_EXACTLY = {
    "everybody": (sd.Full(), lambda drawn, n, k: drawn[1:]),
    "fixed size": (sd.FixedSize(20), lambda drawn, n, k: drawn[1:]),
    "shuffled": (sd.Shuffle(20), one_more),
    "balls in bins": (sd.BallsInBins(10), one_more),
    "cyclic": (sd.CyclicPoisson(0.3, groups=4), one_more),
    "fixed order": (sd.FixedOrder(30), turned),
    "truncated": (sd.TruncatedPoisson(0.1, max_batch=30), lambda drawn, n, k: np.arange(31)),
}


@pytest.mark.parametrize("name", SEEN_EXACTLY)
def test_lots_that_break_the_rule_of_their_event_are_seen(name):
    found = check_sampler(Wrong(*SEEN_EXACTLY[name]), 250, Rng.from_seed(4))
    assert any(one.holds is False for one in found), found


def test_cyclic_coins_of_another_rate_are_seen():
    def too_often(drawn, n, k):
        return members_of_turn[k % 4][np.random.default_rng(k).random(len(members_of_turn[k % 4])) < 0.32]

    members_of_turn = [np.arange(turn, 250, 4) for turn in range(4)]
    found = check_sampler(Wrong(sd.CyclicPoisson(0.3, groups=4), too_often), 250, Rng.from_seed(4))
    assert all(one.holds is not False for one in found)
    assert e_values.log_mean(one.log_e for one in found if one.log_e is not None) > math.log(1e6)


def test_a_sampler_that_is_charged_otherwise_than_it_is_tested_fails():
    class Undeclared(sd.Poisson):
        def draws(self, n, rng, start):
            for draw in super().draws(n, rng, start):
                yield replace(draw, amplify=lambda event: event)

    (found,) = check_sampler(Undeclared(0.1), 250, Rng.from_seed(4))
    assert found.holds is False
    assert "charged as Gaussian" in found.about


def test_a_users_sampler_brings_a_test_of_its_own():
    class Alternating:
        """Even records and odd records by turns."""

        size_is_public = False

        def expected_size(self, n):
            return n / 2

        def draws(self, n, rng, start):
            for k in itertools.count(start):
                yield Draw(np.arange(k % 2, n, 2), keep_unamplified)

        def check_draws(self, checks):
            even, odd = (set(draw.indices) for draw in itertools.islice(self.draws(checks.n, checks.rng, 0), 2))
            return [SelftestFinding("turns", "even and odd by turns", holds=not even & odd)]

    (found,) = check_sampler(Alternating(), 250)
    assert (found.check, found.holds) == ("turns", True)
    Alternating.check_draws = lambda self, checks: checks.check_coins()
    assert check_sampler(Alternating(), 250)[0].holds is False


def test_the_command_tests_a_recipe(capsys):
    assert main(["audit", "selftest", "spiral", "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["passed"]
    assert said["exact"] >= 12


@pytest.mark.slow
def test_two_hundred_selftests_raise_no_alarm():
    """At one in a million each; the largest mean e-value of 200 stays far below the budget."""
    dataset = records(60)
    largest = max(_log_e(selftest(pieces(), dataset)) for _ in range(200))
    assert largest < math.log(1e4)


def _log_e(verdict: Verdict) -> float:
    assert verdict.passed, str(verdict)
    return verdict.log_e


@pytest.mark.slow
def test_the_mnist_network_is_tested_in_ten_seconds():
    from sordino.app.audits.audited_run import load_pieces

    pieces, dataset = load_pieces("mnist-opacus-1")
    import time

    began = time.process_time()
    verdict = selftest(pieces, dataset)
    assert verdict.passed, str(verdict)
    assert time.process_time() - began < 10
