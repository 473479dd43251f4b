"""skorch's nets train for real and end in a claim; its split for validation and misuses do not pass."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import sordino as sd
from sordino.integrations import Privacy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    skorch = pytest.importorskip("skorch", reason="skorch is in the extra [skorch]")
    from skorch.helper import predefined_split

    from sordino.integrations.skorch import NeuralNetClassifier, NeuralNetRegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(500, 6)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")
TARGET = Privacy.target(epsilon=5.0, delta=1e-4, bound=1.0)


def net(**more):
    torch.manual_seed(0)
    usual = {"privacy": TARGET, "max_epochs": 4, "batch_size": 100, "optimizer": torch.optim.Adam, "lr": 0.05}
    return NeuralNetClassifier(nn.Linear(6, 2), **usual | {"classes": [0, 1], "verbose": 0} | more)


def test_a_net_learns_and_meets_its_target():
    made = net(max_epochs=16).fit(X[:400], Y[:400])
    assert (made.predict(X[400:]) == Y[400:]).mean() > 0.8  # 0.93 or more in 25 runs
    assert isinstance(made.claim_, sd.Guarantee), made.claim_
    assert 4.8 < made.claim_.epsilon <= 5.0
    assert np.isnan(made.history[:, "train_loss"]).all()  # none was released
    assert made.private_.steps == 64


def test_a_loss_that_is_released_is_in_the_history():
    privacy = Privacy.target(epsilon=5.0, delta=1e-4, bound=1.0, loss_bound=2.0)
    assert np.isfinite(net(privacy=privacy).fit(X, Y).history[:, "train_loss"]).all()


def test_a_regressor_trains():
    made = NeuralNetRegressor(nn.Linear(6, 1), privacy=TARGET, max_epochs=1, batch_size=100, verbose=0)
    assert isinstance(made.fit(X, X[:, :1]).claim_, sd.Guarantee)


def test_their_split_for_validation_is_refused_and_held_out_records_are_taken():
    with pytest.raises(sd.Refusal, match="predefined_split"):
        net(train_split=skorch.dataset.ValidSplit(5)).fit(X, Y)
    held_out = predefined_split(skorch.dataset.Dataset(X[400:], Y[400:]))
    made = net(train_split=held_out).fit(X[:400], Y[:400])
    assert len(made.history[:, "valid_acc"]) == 4
    assert isinstance(made.claim_, sd.Guarantee)


def test_their_mean_loss_is_refused():
    with pytest.raises(sd.Refusal, match="one loss per sample"):
        net(criterion__reduction="mean").fit(X, Y)


class AccumulatesByHand(skorch.callbacks.Callback):
    def on_batch_begin(self, net, **_):
        nn.functional.cross_entropy(net.module_(torch.as_tensor(X)), torch.as_tensor(Y)).backward()


class ClipsFirst(skorch.callbacks.Callback):
    def on_grad_computed(self, net, **_):
        for p in net.module_.parameters():
            p.grad = nn.functional.normalize(p.grad, dim=0)


class SecondOptimizer(skorch.callbacks.Callback):
    def on_batch_end(self, net, training, **_):
        beside = nn.Parameter(torch.zeros(2))
        beside.grad = torch.ones(2)
        torch.optim.SGD([beside], lr=0.1).step()


def test_scoring_the_training_set_voids_the_claim():
    made = net(max_epochs=1).fit(X, Y)
    assert isinstance(made.claim_, sd.Guarantee)
    made.score(X, Y)
    assert "training set was scored" in made.claim_.reason


@pytest.mark.parametrize("callback", [AccumulatesByHand, ClipsFirst, SecondOptimizer])
def test_natural_misuses_print_no_epsilon(callback):
    assert isinstance(net(max_epochs=1, callbacks=[callback()]).fit(X, Y).claim_, sd.NoGuarantee)


def test_records_can_be_isolated():
    privacy = Privacy.target(epsilon=5.0, delta=1e-4, bound=1.0, isolate=True)
    made = net(privacy=privacy, max_epochs=1, batch_size=20).fit(X[:60], Y[:60])
    assert any("by construction" in what for what in made.claim_.rests_on)
