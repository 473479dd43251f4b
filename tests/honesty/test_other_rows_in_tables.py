"""The same test of reading where rows are in tables of pandas and `datasets`, and in arrays too large to copy."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from sordino.lots.loading import Loader
from sordino.runtime_checks import dataset_view
from sordino.runtime_checks.reading_check import ReadingOutcome, check_reading_of_records
from tests.honesty.attacks.model import far

check_reading_of_records.__test__ = False  # a function of the library, not a test
X, Y = far(0).tensors


def outcome(dataset):
    load = Loader(dataset, None)
    load.remember_unread()
    return check_reading_of_records(load, np.random.default_rng(0).permutation(len(dataset))[:8].tolist(), 3)


class Held(Dataset):
    """Records made of what is held by a function of it and of a number."""

    def __init__(self, held, make, n=64, places=None):
        self.held, self.make, self.n, self.places = held, make, n, places

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.make(self.held, i if self.places is None else int(self.places[i]))


def row_of(frame, i):
    return torch.tensor(frame.iloc[i].to_numpy()[:6].astype("float32"))


FRAMES = {
    "plain": (row_of, ReadingOutcome.CLEAN),
    "by label": (lambda f, i: torch.tensor(f.loc[f.index[i]].to_numpy().astype("float32")), ReadingOutcome.CLEAN),
    "mean": (lambda f, i: row_of(f, i) - row_of(f.mean().to_frame().T, 0), ReadingOutcome.COUPLED),
    "of one class": (lambda f, i: row_of(f, i) * float(f[f.y == f.iloc[i].y][0].mean()), ReadingOutcome.COUPLED),
}


@pytest.mark.parametrize("name", FRAMES)
def test_data_frames(name):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X.numpy())
    frame["y"] = Y.numpy()
    make, expected = FRAMES[name]
    assert outcome(Held(frame, make)) is expected
    assert outcome(Held(frame.sample(frac=1, random_state=0), make)) is expected


def vector(table, i):
    return torch.tensor(table[i]["x"])


TABLES = {
    "plain": (vector, ReadingOutcome.CLEAN),
    "mixed": (lambda t, i: vector(t, i) + vector(t, random.randrange(64)), ReadingOutcome.COUPLED),
    "the next": (lambda t, i: vector(t, i) - vector(t, (i + 1) % 64), ReadingOutcome.COUPLED),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_datasets(name):
    table = pytest.importorskip("datasets").Dataset.from_dict({"x": X.tolist(), "y": Y.tolist()})
    make, expected = TABLES[name]
    assert outcome(Held(table, make)) is expected
    assert outcome(Held(table.shuffle(seed=0), make)) is expected
    places = np.random.default_rng(0).permutation(64)[:50]
    assert outcome(Held(table, make, n=50, places=places)) is expected


def test_transforms_of_datasets():
    table = pytest.importorskip("datasets").Dataset.from_dict({"x": X.tolist(), "y": Y.tolist()})
    copied = np.array(table["x"])

    def noisy(batch):
        return {"x": [torch.tensor(v) + torch.randn(6) for v in batch["x"]], "y": batch["y"]}

    def mixed(batch):
        return {"x": [torch.tensor(v) + torch.tensor(copied[random.randrange(64)]) for v in batch["x"]]}

    assert outcome(table) is ReadingOutcome.CLEAN
    assert outcome(table.with_transform(noisy)) is ReadingOutcome.CLEAN
    assert outcome(table.with_transform(mixed)) is ReadingOutcome.COUPLED


LARGE = {
    "plain": (lambda b, i: b[i], ReadingOutcome.CLEAN),
    "part of a row": (lambda b, i: b[i, :3], ReadingOutcome.CLEAN),
    "the next": (lambda b, i: b[i] - b[(i + 1) % len(b)], ReadingOutcome.COUPLED),
    "mean": (lambda b, i: b[i] - b.mean(0), ReadingOutcome.COUPLED),
    "largest": (lambda b, i: b[i] / abs(b).max(), ReadingOutcome.COUPLED),
    "some rows": (lambda b, i: b[i] + b[[1, 2, 3]].sum(0) + b[4:9].sum(0), ReadingOutcome.COUPLED),
    "a function": (
        lambda b, i: (torch.mean if isinstance(b[0], torch.Tensor) else np.mean)(b, 0) + b[i],
        ReadingOutcome.COUPLED,
    ),
}


@pytest.mark.parametrize("kind", [torch.from_numpy, np.asarray], ids=["torch", "numpy"])
@pytest.mark.parametrize("name", LARGE)
def test_arrays_too_large_to_copy(name, kind, monkeypatch):
    monkeypatch.setattr(dataset_view, "COPIED_BYTES", 1000)
    make, expected = LARGE[name]
    rows = np.random.default_rng(0).normal(size=(300, 6)).astype("float32")
    assert outcome(Held(kind(rows), make, n=300)) is expected


def test_an_array_too_large_to_go_through_is_not_taken_for_a_breach(monkeypatch):
    monkeypatch.setattr(dataset_view, "COPIED_BYTES", 1000)
    monkeypatch.setattr(dataset_view, "MATERIALISED_BYTES", 2000)
    rows = np.random.default_rng(0).normal(size=(300, 6)).astype("float32")
    assert outcome(Held(rows, lambda b, i: b[i] - b.mean(0), n=300)) is ReadingOutcome.NOT_SEEN
