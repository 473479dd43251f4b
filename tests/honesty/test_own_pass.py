"""Neighbour tests that share the lot's own pass: what they cost, what they see, and that they change nothing."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import sordino as sd
from sordino.per_sample import Captured, PerformanceOptions
from sordino.rng.named_draws import RandomDraws
from sordino.runtime_checks.test_runner import NeighbourTestRunner

LOT, RECORDS, INPUTS = 64, 1024, 20


def records(seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(RECORDS, INPUTS, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def network(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, 16), nn.Tanh(), *between, nn.Linear(16, 2))


def cross_entropy(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none")


def train(model, loss, data, lots, *, seed=0, each=lambda k: None, claim=True, **options):
    """Trains for some lots and returns the run; `each` is told the number of the lot before it is used."""
    query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
    private = sd.Private(model, loss, query, seed=seed, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for k, lot in enumerate(private.draws(data, sd.Poisson(LOT / RECORDS), steps=lots, expected_batch=LOT)):
        each(k)
        private.backward(lot)
        optimizer.step()
    return private.claim(1e-5) if claim else private


@pytest.mark.parametrize(("lots", "most"), [(30, 0.3), (100, 0.12), (300, 0.06)])
def test_checks_take_a_small_share_of_the_records_that_are_run(lots, most):
    """Counted in records that pass the loss beside training's, from `Private(…)` to the claim."""
    passed: Counter[str] = Counter()

    def counted(model, x, y):
        passed["records"] += len(x)
        return cross_entropy(model, x, y)

    counted.__module__ = "torch"  # a test puts back what the user's functions keep, and would take the count back too
    shares = []
    for seed in range(3):
        passed.clear()
        torch.manual_seed(seed)
        drawn = 0

        def count_lot(_):
            nonlocal drawn
            drawn += LOT

        claim = train(network(), counted, records(seed), lots, seed=seed, each=count_lot)
        assert isinstance(claim, sd.Guarantee)
        shares.append(passed["records"] / drawn - 1)
    assert np.mean(shares) < most, shares


@pytest.mark.parametrize("seed", range(6))
def test_a_coupling_at_training_size_in_one_tested_lot_is_seen(seed):
    """At lot 1, which is always tested, and in no other; a test on a few records does not see it."""
    at = {"lot": -1}

    def loss(model, x, y):
        losses = cross_entropy(model, x, y)
        return losses * losses.mean() if at["lot"] == 1 and len(x) > 40 else losses

    torch.manual_seed(seed)
    claim = train(network(), loss, records(seed), 3, seed=seed, each=lambda k: at.update(lot=k))
    assert isinstance(claim, sd.NoGuarantee)


@pytest.mark.parametrize("seed", range(3))
def test_a_coupling_of_directions_at_training_size_is_seen_at_the_end(seed):
    """The last lot's rows are exchanged too, and directions compared: here losses and lengths stay as they are."""
    at = {"lot": -1}

    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h, flip):
            ctx.flip = flip
            return h.clone()

        @staticmethod
        def backward(ctx, g):
            return (-g if ctx.flip else g), None

    class Net(nn.Module):
        """Turns the gradient of its first layer round in large batches that hold one record twice."""

        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(INPUTS, 16), nn.Linear(16, 2)

        def forward(self, x):
            turns = at["lot"] == 29 and len(x) > 40 and len(x.unique(dim=0)) < len(x)
            return self.last(Turned.apply(self.first(x).tanh(), turns))

    torch.manual_seed(seed)
    claim = train(Net(), cross_entropy, records(seed), 30, seed=seed, each=lambda k: at.update(lot=k))
    assert isinstance(claim, sd.NoGuarantee)


class Augmented(Dataset):
    """Records that are read with random changes: a second reading gives another record."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, i):
        x, y = self.inner[i]
        return x + 0.1 * torch.randn(x.shape), y


@pytest.mark.parametrize("seed", range(3))
def test_records_read_with_random_changes_raise_no_alarm(seed):
    torch.manual_seed(seed)
    private = train(network(), cross_entropy, Augmented(records(seed)), 30, seed=seed, claim=False)
    assert not private._checks._neighbour_tests._own_test.company_applies
    assert isinstance(private.claim(1e-5), sd.Guarantee)


class Coin(nn.Module):
    """Leaves its input out in one pass of two, by the generator that is named."""

    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, h):
        return h * float((np.random.rand() if self.by == "numpy" else torch.rand(())) < 0.5)


@pytest.mark.parametrize(
    ("between", "drawn"),
    [
        (nn.Identity(), RandomDraws.NOTHING),
        (nn.Dropout(0.1), RandomDraws.MASKS),
        (Coin("torch"), RandomDraws.OTHER),
        (Coin("numpy"), RandomDraws.OTHER),
    ],
)
def test_what_passes_draw_is_known_after_the_first_test(between, drawn):
    private = train(network(between), cross_entropy, records(0), 2, claim=False)
    assert private._checks._neighbour_tests._random_draws is drawn


@pytest.mark.parametrize("between", [nn.Identity(), nn.Dropout(0.1)])
def test_a_watched_pass_changes_no_bit_of_training(between):
    def trained():
        torch.manual_seed(0)
        model = network(between)
        backend = Captured(PerformanceOptions(measure=False))
        train(model, cross_entropy, records(0), 12, backend=backend, claim=False)
        return torch.nn.utils.parameters_to_vector(model.parameters())

    tested = trained()
    with (
        mock.patch.object(NeighbourTestRunner, "before_backward"),
        mock.patch.object(NeighbourTestRunner, "after_pass"),
    ):
        assert torch.equal(tested, trained())


def test_a_short_run_makes_few_passes_beside_training():
    """Counted from `Private(…)` to the claim; a pass over a few records takes about half as long as a small model's step.

    Before questions shared passes there were 54.
    """
    passed: Counter[str] = Counter()

    def counted(model, x, y):
        passed["passes"] += 1
        return cross_entropy(model, x, y)

    counted.__module__ = "torch"  # a test puts back what the user's functions keep, and would take the count back too
    made = []
    for seed in range(4):
        passed.clear()
        torch.manual_seed(seed)
        assert isinstance(train(network(), counted, records(seed), 30, seed=seed), sd.Guarantee)
        made.append(passed["passes"] - 30)
    assert np.mean(made) < 46, made


def is_large(x):
    return bool(((x > 500) & x.isfinite()).any())


def has_nan(x):
    return bool(x.isnan().any())


def has_infinity(x):
    return bool(x.isinf().any())


@pytest.mark.parametrize("coupled_by", [is_large, has_nan, has_infinity])
@pytest.mark.parametrize("refused", [None, is_large, has_nan, has_infinity])
def test_the_first_test_sees_what_each_altered_record_does_although_two_share_a_batch(coupled_by, refused):
    """A record of one kind doubles everybody's loss, and the user's code may refuse records of another kind."""

    def loss(model, x, y):
        if refused is not None and refused is not coupled_by and refused(x):
            raise ValueError("no such record")
        return cross_entropy(model, x, y) * (2.0 if coupled_by(x) else 1.0)

    torch.manual_seed(0)
    with pytest.raises(sd.Refusal, match="others in its batch"):
        train(network(), loss, records(0), 1)


def test_two_labels_are_not_exchanged_for_one_another():
    """Weights by the counts of two classes: two altered labels could leave the counts as they were."""

    def loss(model, x, y):
        return cross_entropy(model, x, y) * (y == 1).sum() / (1 + (y == 0).sum())

    for seed in range(6):
        torch.manual_seed(seed)
        with pytest.raises(sd.Refusal):
            train(network(), loss, records(seed), 1, seed=seed)
