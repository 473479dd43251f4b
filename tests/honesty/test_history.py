"""One history per model and per dataset: what was done before, or beside, is in the claim or named by it."""

import gc
import weakref

import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from tests.honesty.data import cross_entropy, network, vectors

QUERY = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
KNOWN = {"dataset size", "seed"}


def trained(model: nn.Module, data: TensorDataset, steps: int = 20, **options) -> sd.Claim:
    """One notebook cell."""
    private = sd.Private(model, cross_entropy, QUERY, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for lot in private.draws(data, sd.Poisson(0.2), steps=steps):
        private.backward(lot)
        optimizer.step()
    return private.claim(1e-5)


def epsilon(steps: int) -> float:
    event = sd.events.Repeat(sd.events.Poisson(0.2, sd.events.Gaussian(1.0)), steps)
    return sd.accounting.PLD().epsilon(event, 1e-5)


def says_all(claim: sd.Claim, steps: int) -> None:
    """No guarantee, or one of everything, or one that names what it leaves out."""
    if isinstance(claim, sd.NoGuarantee):
        return
    named = set(claim.not_covered) - KNOWN
    assert claim.epsilon >= epsilon(steps) - 1e-3 or named, (
        f"{steps} steps cost ε = {epsilon(steps):.2f}, and {claim.epsilon:.2f} was printed without a word of the rest"
    )


def test_a_cell_run_twice_on_one_model():
    model, data = network(), vectors(0)
    for _ in range(4):
        claim = trained(model, data)
    says_all(claim, 80)


def test_the_same_cell_makes_model_and_run_anew():
    """The dataset is the same object; four models were trained on it, and all four are known."""
    data = vectors(0)
    for _ in range(4):
        claim = trained(network(), data)
    says_all(claim, 80)


def test_a_second_run_on_a_part_of_the_model():
    """Linear probing of a body that was trained privately on the same records."""
    data, body = vectors(0), network()
    trained(body, data, 40)
    model = nn.Sequential(body[:2], nn.Linear(8, 3))
    says_all(trained(model, data), 60)


def test_a_copy_of_the_weights_continues_their_history():
    """The weights go to a new model through load_state_dict; the records are the same."""
    data, first, second = vectors(0), network(), network()
    trained(first, data, 40)
    second.load_state_dict(first.state_dict())
    says_all(trained(second, data), 60)


def test_views_of_one_dataset_are_one_dataset():
    """A Subset and a ConcatDataset of records that were drawn from before."""
    data = vectors(0)
    trained(network(), data, 40)
    says_all(trained(network(), torch.utils.data.Subset(data, range(64))), 60)
    says_all(trained(network(), TensorDataset(*data.tensors)), 80)


def test_a_statistic_with_a_ledger_of_its_own_is_named():
    from sordino.statistics import Mean

    data = vectors(0)
    sd.ask(Mean(1.0, sd.Gaussian(1.0)), data, ledger=sd.Ledger(), expected_batch=64)
    claim = trained(network(), data)
    assert isinstance(claim, sd.NoGuarantee) or set(claim.not_covered) - KNOWN, (
        "a mean of the same records was released under another ledger, and the claim does not say so"
    )


def test_two_runs_one_after_the_other_with_one_ledger_simply_work():
    model, data, ledger = network(), vectors(0), sd.Ledger()
    trained(model, data, ledger=ledger)
    claim = trained(model, data, ledger=ledger)
    assert isinstance(claim, sd.Guarantee), str(claim)
    assert abs(claim.epsilon - epsilon(40)) < 1e-3
    assert not set(claim.not_covered) - KNOWN


def interleaved(sampler: sd.Shuffle | sd.BallsInBins, lots: int, in_turn: bool) -> sd.Claim:
    model, data = network(), vectors(0)
    private = sd.Private(model, cross_entropy, QUERY)
    draws = [private.draws(data, sampler, steps=lots) for _ in range(2)]
    order = [d for _ in range(lots) for d in draws] if in_turn else [d for d in draws for _ in range(lots)]
    for draw in order:
        private.backward(next(draw))
    return private.claim(1e-5)


def not_cheaper(sampler: sd.Shuffle | sd.BallsInBins) -> None:
    plain, mixed = (interleaved(sampler, 40, in_turn) for in_turn in (False, True))
    assert isinstance(plain, sd.Guarantee)
    assert isinstance(mixed, sd.NoGuarantee) or mixed.epsilon >= plain.epsilon - 1e-6, (
        f"ten passes cost ε = {plain.epsilon:.2f}, and {mixed.epsilon:.2f} if two iterators take turns"
    )


def test_two_iterators_in_turn_are_charged_for_every_pass_of_a_shuffle():
    not_cheaper(sd.Shuffle(8))


def test_two_iterators_in_turn_are_charged_for_every_pass_of_balls_in_bins():
    not_cheaper(sd.BallsInBins(8))


def test_an_iterator_left_and_a_new_one_begun_are_two_passes():
    """`break` in the middle of a pass, and draws() again: a record may be in both halves."""
    model, data = network(), vectors(0)
    private = sd.Private(model, cross_entropy, QUERY)
    for _ in range(4):
        for k, lot in enumerate(private.draws(data, sd.Shuffle(8), steps=8)):
            private.backward(lot)
            if k == 3:
                break
    whole = sd.Private(network(), cross_entropy, QUERY)
    for lot in whole.draws(data, sd.Shuffle(8), steps=32):
        whole.backward(lot)
    here, there = private.claim(1e-5), whole.claim(1e-5)
    assert isinstance(there, sd.Guarantee)
    assert isinstance(here, sd.NoGuarantee) or here.epsilon >= there.epsilon - 1e-6


def test_a_dataset_is_not_kept_in_memory_by_its_history():
    """Twenty runs in one process would else hold twenty datasets, as long as one ledger lives."""
    data, ledger = vectors(0), sd.Ledger()
    held = weakref.ref(data.tensors[0])
    trained(network(), data, ledger=ledger)
    del data
    gc.collect()
    assert held() is None
    assert not ledger.empty
