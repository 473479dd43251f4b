"""A record that stands in the dataset several times is one person several times: refused, charged for it, or named."""

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import sordino as sd
from tests.honesty.data import RARE, cross_entropy, network, vectors
from tests.honesty.script import Script

DATA = vectors(0)


REPEATED = {
    "a rare class taken eight times": lambda: Subset(DATA, [*range(64), *[i for i in RARE for _ in range(7)]]),
    "a subset drawn with replacement": lambda: Subset(DATA, torch.arange(64).remainder(40).tolist()),
    "a subset of a subset": lambda: Subset(Subset(DATA, [i // 2 for i in range(64)]), range(60)),
    "a concatenation with itself": lambda: ConcatDataset([DATA, DATA, DATA]),
    "overlapping subsets": lambda: ConcatDataset([Subset(DATA, range(40)), Subset(DATA, range(20, 64))]),
    "a concatenation of a subset and all": lambda: ConcatDataset([DATA, Subset(DATA, list(RARE))]),
}


class Rows(Dataset):
    """Rows and classes; `row` says which row record i is made of, `change` what becomes of it."""

    def __init__(self, n, row=lambda i: i, change=lambda x, i: x, x=DATA.tensors[0], y=DATA.tensors[1]):
        self.n, self.row, self.change, self.x, self.y = n, row, change, x, y

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.change(self.x[self.row(i)], i), self.y[self.row(i)]


class Around(Dataset):
    """Another dataset with records repeated or changed."""

    def __init__(self, inner, n, row=lambda i: i, change=lambda x, i: x):
        self.inner, self.n, self.row, self.change = inner, n, row, change

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        x, y = self.inner[self.row(i)]
        return self.change(x, i), y


class ByList(Around):
    """Oversampled by a list of indices."""

    def __init__(self, inner, places, change=lambda x, i: x):
        super().__init__(inner, len(places), change=change)
        self.places = places

    def __getitem__(self, i):
        x, y = self.inner[self.places[i]]
        return self.change(x, i), y


def noisy(x, i):
    return x + 0.1 * torch.randn_like(x)


def flipped_later(x, i):
    return -x if i >= 64 else x


class InOwnArrays(Rows):
    """Oversampled by a list of indices into arrays of its own."""

    def __init__(self, places):
        super().__init__(len(places))
        self.places = places

    def __getitem__(self, i):
        return self.x[self.places[i]], self.y[self.places[i]]


OVERSAMPLED = [*range(64), *(i for i in RARE for _ in range(4))]
COPIED = torch.tensor(OVERSAMPLED)
REPEATED |= {
    "a wrapper that repeats": lambda: Around(Rows(64), 128, lambda i: i % 64),
    "a wrapper that repeats at random": lambda: Around(Rows(64), 256, lambda i: i % 64, noisy),
    "a wrapper that repeats side by side": lambda: Around(Rows(64), 192, lambda i: i // 3),
    "a wrapper that repeats flipped": lambda: Around(Rows(64), 128, lambda i: i % 64, flipped_later),
    "arrays that are repeated": lambda: Rows(128, lambda i: i % 64),
    "arrays that are repeated at random": lambda: Rows(128, lambda i: i // 2, noisy),
    "arrays that are repeated flipped": lambda: Rows(128, lambda i: i % 64, flipped_later),
    "a list of indices in a wrapper": lambda: ByList(Rows(64), OVERSAMPLED),
    "a list of indices in a wrapper at random": lambda: ByList(Rows(64), OVERSAMPLED, noisy),
    "an array of indices in a wrapper": lambda: ByList(Rows(64), COPIED.numpy()),
    "a list of indices into arrays": lambda: InOwnArrays(OVERSAMPLED),
    "a bootstrap of the same length": lambda: InOwnArrays([i // 2 for i in range(64)]),
    "plain and augmented": lambda: ConcatDataset([Rows(64), Rows(64, change=noisy)]),
    "plain and augmented around one dataset": lambda: ConcatDataset([Around(DATA, 64), Around(DATA, 64, change=noisy)]),
    "plain and augmented around two wrappers": lambda: ConcatDataset(
        [Around(Rows(64), 64), Around(TensorDataset(*DATA.tensors), 64, change=noisy)]
    ),
    "numpy, plain and augmented": lambda: ConcatDataset(
        [Rows(64, x=DATA.tensors[0].numpy()), Rows(64, x=DATA.tensors[0].numpy()[:], change=lambda x, i: -x)]
    ),
    "copied tensors": lambda: TensorDataset(*(torch.cat([t, t]) for t in DATA.tensors)),
    "oversampled tensors": lambda: TensorDataset(*(t[COPIED] for t in DATA.tensors)),
    "tensors repeated side by side": lambda: TensorDataset(*(t.repeat_interleave(3, 0) for t in DATA.tensors)),
    "copied arrays in a dataset of one's own": lambda: Rows(
        128, x=DATA.tensors[0].repeat(2, 1), y=DATA.tensors[1].repeat(2)
    ),
    "copied arrays of numpy": lambda: Rows(
        192, x=DATA.tensors[0].repeat_interleave(3, 0).numpy(), y=DATA.tensors[1].repeat_interleave(3).numpy()
    ),
    "a few copied tensors": lambda: TensorDataset(*(t[torch.tensor([*range(64), 0, 1])] for t in DATA.tensors)),
}
SAID = {"dataset size", "seed", "dataset size, by the rate"}


@pytest.mark.parametrize("name", REPEATED)
def test_repeated_records_are_refused_charged_or_named(name):
    plain = Script(network(), cross_entropy, vectors(1)).run(20)
    assert isinstance(plain, sd.Guarantee)
    try:
        claim = Script(network(), cross_entropy, REPEATED[name]()).run(20)
    except sd.Refusal:
        return
    if isinstance(claim, sd.Guarantee) and not set(claim.not_covered) - SAID:
        assert claim.epsilon > 1.5 * plain.epsilon, (
            f"{name}: one person is at least two records, and ε = {claim.epsilon:.2f} was printed as for one"
        )


HONEST = {
    "different tensors": lambda: TensorDataset(*vectors(3).tensors),
    "few different values": lambda: TensorDataset(
        torch.arange(64.0)[:, None].remainder(4) * torch.ones(6), DATA.tensors[1]
    ),
    "binary tables": lambda: TensorDataset((DATA.tensors[0] > 0.5).float(), DATA.tensors[1]),
    "two wrappers of different data": lambda: ConcatDataset([Rows(64), Rows(64, x=vectors(5).tensors[0])]),
    "halves of one table": lambda: ConcatDataset(
        [
            Rows(32, x=DATA.tensors[0][:32], y=DATA.tensors[1][:32]),
            Rows(32, x=DATA.tensors[0][32:], y=DATA.tensors[1][32:]),
        ]
    ),
    "a wrapper that augments": lambda: Around(Rows(64), 64, change=noisy),
    "a part of a dataset": lambda: Around(Rows(64), 40, lambda i: i + 3),
    "a part by a list of indices": lambda: ByList(Rows(64), [63 - i for i in range(50)]),
    "positions looked up in a short table": lambda: Rows(64, change=lambda x, i: x * SIGNS[i % 4]),
    "classes looked up in a table": lambda: Rows(64, change=lambda x, i: x + SHIFTS[int(DATA.tensors[1][i])]),
}
SIGNS, SHIFTS = torch.tensor([1.0, -1.0, 0.5, 2.0]), torch.arange(60.0).reshape(10, 6)


@pytest.mark.parametrize("name", HONEST)
def test_records_that_are_there_once_are_charged_once_and_nothing_is_said(name):
    plain = Script(network(), cross_entropy, vectors(1)).run(20)
    claim = Script(network(), cross_entropy, HONEST[name]()).run(20)
    assert isinstance(claim, sd.Guarantee), claim
    assert not set(claim.not_covered) - SAID
    assert claim.epsilon == pytest.approx(plain.epsilon)
