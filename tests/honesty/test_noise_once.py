"""Noise is never used twice: not by a copy, a fork, a pickle, a state that is loaded again, or a stream handed to `ask`.

All records here have a gradient of zero, so what is released is the noise itself. Two releases that are equal let anyone
subtract the noise: on other records they would give away the difference of the sums.
"""

import copy
import os
import pickle
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.statistics import Mean
from tests.contracts.hunter import Rng

EMPTY = TensorDataset(torch.zeros(16, 6))


class Silent(nn.Module):
    """No gradient, whatever comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return 0 * self.layer(x)


def silent(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).sum(1)


@dataclass
class Run:
    """A model and its Private, copied and stored together."""

    model: nn.Module
    private: sd.Private


def made() -> Run:
    model = Silent()
    return Run(model, sd.Private(model, silent, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))))


def step(run: Run) -> Tensor:
    """One more release."""
    for lot in run.private.draws(EMPTY, sd.Poisson(0.5), steps=1, expected_batch=1.0):
        run.private.backward(lot)
    return torch.cat([p.grad.flatten() for p in run.model.parameters()])


def claimed(*runs: Run) -> bool:
    return all(isinstance(run.private.claim(1e-5), sd.Guarantee) for run in runs)


def unlike(one: Tensor, other: Tensor, *runs: Run) -> None:
    assert not torch.equal(one, other) or not claimed(*runs), "the same noise was released twice, and both are claimed"


def test_a_copy_has_noise_of_its_own():
    one = made()
    step(one)
    try:
        two = copy.deepcopy(one)
    except (sd.Refusal, TypeError):
        return  # copying a run is refused: fine
    unlike(step(one), step(two), one, two)


def test_a_pickle_has_noise_of_its_own():
    one = made()
    step(one)
    try:
        stored = pickle.dumps(one)
    except Exception:
        return  # a run that cannot be stored is not used twice
    two, three = pickle.loads(stored), pickle.loads(stored)
    second, third = step(two), step(three)
    unlike(second, third, two, three)
    unlike(step(one), second, one, two)


def test_a_fork_has_noise_of_its_own():
    one = made()
    step(one)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            os.write(writer, step(one).numpy().tobytes())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        theirs = pipe.read()
    os.waitpid(child, 0)
    assert theirs != step(one).numpy().tobytes(), "a forked process released the noise of its parent"


def test_a_state_that_is_loaded_twice_has_two_noises():
    """Two runs from one checkpoint: with other learning rates, say."""
    one = made()
    step(one)
    state = one.private.state_dict()
    two, three = made(), made()
    two.private.load_state_dict(state)
    three.private.load_state_dict(state)
    unlike(step(two), step(three), two, three)


def test_a_run_that_went_on_after_its_state_was_saved_is_not_repeated():
    """Going back to a checkpoint after a bad epoch, as loops do."""
    one = made()
    step(one)
    state = one.private.state_dict()
    before = step(one)
    two = made()
    two.private.load_state_dict(state)
    unlike(before, step(two), one, two)


def test_a_stream_that_is_asked_twice_answers_with_other_noise():
    stream, ledger = Rng.from_entropy(), sd.Ledger()
    mean = Mean(bound=1.0, noise=sd.Gaussian(5.0))
    first = sd.ask(mean, torch.zeros(100, 3), ledger=ledger, expected_batch=100, rng=stream)
    second = sd.ask(mean, torch.zeros(100, 3), ledger=ledger, expected_batch=100, rng=stream)
    assert not torch.equal(first, second), "two questions to one stream were answered with the same noise"


@pytest.mark.parametrize("times", [2, 3])
def test_a_copied_ledger_and_model_do_not_share_noise(times):
    """Cross validation by copies of one prepared run."""
    one = made()
    try:
        runs = [copy.deepcopy(one) for _ in range(times)]
    except (sd.Refusal, TypeError):
        return
    noises = [step(run) for run in runs]
    for other in noises[1:]:
        unlike(noises[0], other, *runs)
