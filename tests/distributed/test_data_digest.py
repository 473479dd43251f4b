"""Digests of records: the same for the same data, another for another record, and nothing left behind by the reading."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from sordino.distributed.claim_facts import digest_of_record
from sordino.lots import data_digest
from sordino.lots.loading import Loader
from sordino.rng.global_generators import GlobalState

KEY = bytes(range(32))


def rows(n, changed=None):
    x = torch.arange(3.0 * n).view(n, 3).clone()
    if changed is not None:
        x[changed, 1] += 1e-6 * max(1.0, float(x[changed, 1]))
    return Loader(TensorDataset(x, torch.arange(n)), None)


class Learns:
    """A dataset that remembers what was read, and draws at random."""

    def __init__(self):
        self.seen = []

    def __len__(self):
        return 50

    def __getitem__(self, index):
        self.seen.append(index)
        return index, random.random(), float(np.random.rand()), float(torch.rand(()))


def test_any_one_of_few_records_changes_the_digest():
    same = data_digest.digest_rows(KEY, rows(40), 40)
    assert data_digest.digest_rows(KEY, rows(40), 40) == same
    assert all(data_digest.digest_rows(KEY, rows(40, changed), 40) != same for changed in range(40))


def test_of_much_data_some_records_that_the_key_chooses_are_compared(monkeypatch):
    monkeypatch.setattr(data_digest, "ALL_BYTES", 4096)
    n, count = 5000, max(64, 4096 // 20)
    chosen = set(data_digest.choose_records(KEY, n, count).tolist())
    assert len(chosen) == count
    same = data_digest.digest_rows(KEY, rows(n), n)
    noticed = {c for c in (*list(chosen)[:5], 0, 1, 2, 3) if data_digest.digest_rows(KEY, rows(n, c), n) != same}
    assert noticed == {c for c in (*list(chosen)[:5], 0, 1, 2, 3) if c in chosen}
    assert chosen != set(data_digest.choose_records(bytes(32), n, count).tolist())


def test_reading_leaves_dataset_and_generators_as_they_were():
    data, before = Learns(), GlobalState.capture()
    load = Loader(data, None)
    load.remember_unread()
    reads, seconds = data_digest.digest_first_reads(KEY, load, len(data))
    assert reads is not None
    assert seconds > 0
    assert data.seen == []
    assert before.equals(GlobalState.capture())


def test_records_that_change_by_themselves_are_known_for_it():
    source = np.random.default_rng(0)

    class Changes(Learns):
        def __getitem__(self, index):
            return index, source.random() < 0.5

    load = Loader(Changes(), None)
    load.remember_unread()
    assert data_digest.digest_first_reads(KEY, load, 50)[0] is None


def nest(value, depth):
    """Returns a value inside so many tuples."""
    for _ in range(depth):
        value = (value,)
    return value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (np.zeros(2), np.zeros(2, dtype=np.float32)),
        ([1, 2], [12]),
        (["a", "bc"], ["ab", "c"]),
        ({"a": 1}, {"b": 1}),
        (1, 1.0),
        (1, True),
        ("1", b"1"),
        (0.1 + 0.2, 0.3),
        ([[1], 2], [1, [2]]),
        ([{"a": 1}, {}], [{}, {"a": 1}]),
        ({nest(1, 11): 0}, {nest(2, 11): 0}),
        ({0: nest(1, 11)}, {0: nest(2, 11)}),
    ],
)
def test_records_that_differ_have_other_digests(one, other):
    assert digest_of_record(KEY, one) != digest_of_record(KEY, other)
    assert digest_of_record(KEY, one) == digest_of_record(KEY, one)
    assert digest_of_record(KEY, one) != digest_of_record(bytes(32), one)


def test_a_record_that_contains_itself_has_a_digest():
    record = {"a": 1}
    record["itself"] = record
    assert digest_of_record(KEY, record) == digest_of_record(KEY, record)


def test_as_many_records_are_read_as_there_is_time_for():
    assert data_digest.count_reads_in_time(data_digest.SECONDS / 100, 1000) == 100
    assert data_digest.count_reads_in_time(1e-9, 1000) == 1000
