"""What looks at a first batch lets go of it: graphs that no backward pass goes through are not kept alive by themselves."""

import gc

import torch
from torch import nn

from sordino.per_sample import Captured
from sordino.per_sample.performance_options import PerformanceOptions
from sordino.per_sample.physical_batch import activation_bytes


class Scored(nn.Module):
    """Parameters outside any layer, and functions that save their own output."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.scores = nn.Parameter(torch.randn(5, 5))
        self.gain = nn.Parameter(torch.ones(5))

    def forward(self, x):
        return (self.first(x).tanh() @ self.scores).softmax(1) * self.gain


def loss(model, x):
    return model(x).square().sum(1)


def alive():
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())  # asks nothing of the objects


def test_counting_activations_leaves_no_graph():
    model, x = Scored(), torch.randn(3, 4)
    before = alive()
    assert activation_bytes(model, loss, (x,)) > 0
    assert alive() == before


def test_a_first_batch_leaves_no_graph():
    model, x = Scored(), torch.randn(6, 4)
    backend = Captured(PerformanceOptions(measure=False))
    assert backend.per_sample(model, loss, (x,)).norms().squared.shape == (6, 4)
    once = alive()
    for _ in range(3):  # engines that know nothing yet
        Captured(PerformanceOptions(measure=False)).per_sample(model, loss, (x,)).norms()
    assert alive() == once
