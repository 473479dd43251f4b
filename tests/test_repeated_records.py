"""A record that is several times in a dataset is charged several times over."""

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import sordino as sd
from sordino.events import Gaussian, Group, Poisson, Repeat
from sordino.lots.repeated_records import count_most_copies
from sordino.statistics import Count
from tests.problems import Rows, linear, private

ROWS, TENSORS = Rows(20), linear(20)
LIST = [linear(3)[i] for i in range(3)]


class Wrapped(Dataset):
    """As people write them, to transform each record."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.data[i]


CASES = {
    "plain": (TENSORS, 1),
    "rows": (ROWS, 1),
    "subset": (Subset(ROWS, [0, 1, 2]), 1),
    "subset repeated": (Subset(ROWS, [0, 1, 1, 2, 1]), 3),
    "subset from behind": (Subset(ROWS, [0, 19, -1]), 2),
    "subset of a subset": (Subset(Subset(ROWS, [3, 3, 4]), [0, 1, 1, 2]), 3),
    "tensors repeated": (Subset(TENSORS, [0, 0]), 2),
    "indices in a tensor": (Subset(TENSORS, torch.tensor([0, 1, 0])), 2),
    "joined to itself": (ConcatDataset([ROWS, ROWS]), 2),
    "joined parts": (ConcatDataset([Subset(ROWS, range(10)), Subset(ROWS, range(10, 20))]), 1),
    "joined parts that overlap": (ConcatDataset([Subset(ROWS, range(11)), Subset(ROWS, range(10, 20))]), 2),
    "the same tensors in two datasets": (ConcatDataset([TENSORS, TensorDataset(*TENSORS.tensors)]), 2),
    "slices of the same tensors": (
        ConcatDataset(
            [TensorDataset(*(t[:12] for t in TENSORS.tensors)), TensorDataset(*(t[8:] for t in TENSORS.tensors))]
        ),
        2,
    ),
    "different tensors": (ConcatDataset([linear(20), linear(20, seed=1)]), 1),
    "subset of joined": (Subset(ConcatDataset([ROWS, linear(5)]), [0, 21, 21, -4]), 3),
    "three deep": (ConcatDataset([Subset(ConcatDataset([ROWS, ROWS]), [0, 20]), Subset(ROWS, [0])]), 3),
    "expanded": (TensorDataset(torch.zeros(1, 6).expand(4, 6), torch.zeros(1).long().expand(4)), 4),
    "constant inputs": (TensorDataset(torch.zeros(1, 6).expand(4, 6), torch.arange(4) % 2), 1),
    "list": (LIST, 1),
    "list repeated": (LIST * 4, 4),
    "wrapped": (Wrapped(Subset(ROWS, [0, 1, 1])), 2),
    "wrapped twice": (Wrapped(Wrapped(ConcatDataset([TENSORS, TENSORS]))), 2),
}


@pytest.mark.parametrize(("dataset", "copies"), CASES.values(), ids=CASES)
def test_copies_are_counted_and_charged(dataset, copies):
    assert count_most_copies(dataset, len(dataset)) == copies
    run = private()
    for lot in run.draws(dataset, sd.Poisson(0.2), steps=2):
        run.backward(lot)
    step = Poisson(0.2, Gaussian(1.0))
    assert run.event == Repeat(step if copies == 1 else Group(step, copies), 2)
    claim = run.claim(1e-5)
    assert isinstance(claim, sd.Guarantee)
    # The claim says why it is dearer than one of records that are there once.
    assert (f"a record is up to {copies} times in the data" in str(claim)) == (copies > 1)


RICH = torch.rand(60, 20, generator=torch.Generator().manual_seed(0))
BY_CONTENT = {
    "different rows": (TensorDataset(RICH), 1),
    "three of each": (TensorDataset(torch.cat([RICH, RICH, RICH])), 3),
    "labels copied too": (TensorDataset(torch.cat([RICH, RICH]), torch.arange(60).repeat(2)), 2),
    "other labels": (TensorDataset(torch.cat([RICH, RICH]), torch.arange(120)), 1),
    "wide rows": (TensorDataset(RICH.repeat(2, 100).half()), 2),
    "poor rows, equal by accident": (TensorDataset(RICH.round()[:, :1].repeat(2, 1)), 1),
}


@pytest.mark.parametrize(("dataset", "copies"), BY_CONTENT.values(), ids=BY_CONTENT)
def test_copies_that_were_written_out_are_found_by_their_contents(dataset, copies):
    assert count_most_copies(dataset, len(dataset)) == copies


def test_copies_cost_what_they_cost():
    def epsilon(dataset):
        run = private()
        list(run.draws(dataset, sd.Full(), steps=1))
        return run.claim(1e-5).epsilon

    twice = sd.accounting.PLD().epsilon(Gaussian(0.5), 1e-5)
    assert epsilon(ConcatDataset([ROWS, ROWS])) == pytest.approx(twice, rel=1e-6)
    assert epsilon(ROWS) < twice / 2


@pytest.mark.parametrize("sampler", [sd.Shuffle(4), sd.BallsInBins(4), sd.FixedSize(4)], ids=str)
def test_where_copies_have_no_theorem_they_are_refused(sampler):
    run = private()
    with pytest.raises(sd.Refusal, match=r"(?s)3 times in the dataset.*unique indices.*Poisson"):
        next(run.draws(Subset(ROWS, [1, 1, 1, 2]), sampler, steps=1))
    assert run.event == sd.events.Together()


def test_statistics_count_copies_too():
    ledger = sd.Ledger()
    sd.ask(Count(sd.Gaussian(2.0)), Subset(TENSORS, [0, 0, 1]), ledger=ledger)
    assert ledger.event() == Group(Gaussian(2.0), 2)


def test_what_a_sampler_released_of_the_lengths_is_charged_for_the_copies():
    run = private()
    sampler = sd.Threshold(sd.PrivateQuantile(0.5, ceiling=1.0, epsilon=0.1), 0.1, 0.2)
    next(run.draws(Subset(TENSORS, [0, 0, 1]), sampler, steps=1))
    assert Group(sd.events.Exponential(0.1), 2) in run.event.events


def tables():
    """Tables of Hugging Face's `datasets`, and how often a row is in them."""
    datasets = pytest.importorskip("datasets")
    one = datasets.Dataset.from_dict({"x": torch.rand(20, 3).tolist(), "y": list(range(20))})
    other = datasets.Dataset.from_dict({"x": torch.rand(20, 3).tolist(), "y": list(range(20))})
    return [
        (one, 1),
        (one.shuffle(seed=0), 1),
        (one.select([0, 1, 1, 2, 1]), 3),
        (one.select([0, 1, 1, 2]).select([1, 2, 0]), 2),
        (datasets.concatenate_datasets([one, other]), 1),
        (datasets.concatenate_datasets([one, one]), 2),
        (datasets.concatenate_datasets([one.select([3, 3]), other, one]), 3),
        (datasets.concatenate_datasets([one.select(range(10)), one.select(range(10, 20))]), 1),
        (ConcatDataset([one, one.with_transform(lambda batch: batch)]), 2),
        (Wrapped(one.select([0, 0, 1])), 2),
    ]


def test_rows_of_tables_are_counted():
    for table, copies in tables():
        assert count_most_copies(table, len(table)) == copies
