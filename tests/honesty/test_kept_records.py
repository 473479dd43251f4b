"""What a module keeps of the records it is run on is named: it leaves with the model and not with its state dict."""

from collections import deque

import pytest
import torch
from torch import nn

import sordino as sd
from sordino.runtime_checks.kept_records import KeptRecords
from tests.honesty.data import cross_entropy, network, vectors


class Keeping(nn.Module):
    """A network that does something with its input on the way."""

    def __init__(self, keep):
        super().__init__()
        self.body, self.keep = network(), keep
        self.inputs, self.recent, self.calls, self.mean = [], deque(maxlen=4), 0, torch.zeros(6)

    def forward(self, x):
        self.keep(self, x)
        return self.body(x)


def last_input(module, x):
    module.last = x.detach()


def all_inputs(module, x):
    module.inputs.append(x.detach().clone())


def recent_means(module, x):
    module.recent.append(float(x.mean()))


def running_mean(module, x):
    module.mean = 0.9 * module.mean + 0.1 * x.detach().mean(0)


def nothing(module, x):
    pass


def a_counter(module, x):
    module.calls += 1


def a_table_of_positions(module, x):
    module.positions = torch.arange(x.shape[1])


def weights_made_of_weights(module, x):
    module.normalised = module.body[0].weight.detach() / module.body[0].weight.detach().norm()


def trained(keep):
    model = Keeping(keep)
    private = sd.Private(model, cross_entropy, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for lot in private.draws(vectors(0), sd.Poisson(0.3), steps=6, expected_batch=20):
        private.backward(lot)
        optimizer.step()
    return model, private.claim(1e-5)


@pytest.mark.parametrize("keep", [last_input, all_inputs, recent_means, running_mean])
def test_what_is_kept_of_records_is_named(keep):
    _model, said = trained(keep)
    assert isinstance(said, sd.NoGuarantee) or any("keeps in" in what for what in said.not_covered), str(said)


@pytest.mark.parametrize("keep", [nothing, a_counter, a_table_of_positions, weights_made_of_weights])
def test_what_tells_nothing_of_a_record_is_not(keep):
    _, said = trained(keep)
    assert isinstance(said, sd.Guarantee), str(said)
    assert not any("keeps in" in what for what in said.not_covered), str(said)


def test_the_check_leaves_the_model_as_it_was():
    model = Keeping(all_inputs)
    kept = KeptRecords(model)
    x, y = vectors(0)[:6]
    model(x)
    before = list(model.inputs)
    assert kept.find(lambda batch: cross_entropy(model, *batch), lambda: (x, y)) == [("", "inputs")]
    assert len(model.inputs) == len(before)
    assert all(now is then for now, then in zip(model.inputs, before, strict=True))
