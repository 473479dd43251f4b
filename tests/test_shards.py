"""Streams in shards: read once and in order, a few in memory, with the claim of the sampler."""

import copy
import itertools
import math
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import sordino as sd
from bench.stream import measure
from sordino.per_sample import Captured, PerformanceOptions
from sordino.release.release import tap_releases
from tests.contracts.hunter import Scripted, network, records, squared_error
from tests.contracts.taps import Recorder, Replayer
from tests.untested import untested

SIZES = (5, 3, 6, 4)
BATCH = 4


def parts(sizes=SIZES, seed=0):
    """Records of some shards, as lists of tuples."""
    x, y = records(np.random.default_rng(seed), sum(sizes))
    rows = list(zip(x, y, strict=True))
    ends = list(itertools.accumulate(sizes))
    return [rows[end - size : end] for size, end in zip(sizes, ends, strict=True)]


class Stream(IterableDataset):
    """A stream that counts how often it is begun and how many records it gave."""

    def __init__(self, rows):
        self.rows, self.begun, self.given = rows, 0, 0

    def __iter__(self):
        self.begun += 1
        for row in self.rows:
            self.given += 1
            yield row


def dpsgd(multiplier=2.0):
    return sd.NoisySum(sd.Flat(1.0), sd.Gaussian(multiplier))


def train(data, steps, seed=0, batch=BATCH, **more):
    model = network()
    private = sd.Private(
        model, squared_error, dpsgd(), seed=seed, backend=Captured(PerformanceOptions(measure=False)), **more
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for lot in private.draws(data, sd.FixedOrder(batch), steps, expected_batch=float(batch), physical_batch=4):
        private.backward(lot)
        optimizer.step()
    return model, private


def test_shards_are_the_records_one_after_the_other():
    held = parts()
    data = sd.Shards(range(4), SIZES, held.__getitem__, keep=1)
    rows = [row for part in held for row in part]
    assert len(data) == len(rows)
    assert all(data[i] is rows[i] for i in range(len(rows)))
    assert data.times_opened == 4
    wanted = [17, 0, 5, 4, 17]
    assert all(found is rows[i] for found, i in zip(data.__getitems__(wanted), wanted, strict=True))
    with pytest.raises(IndexError, match="18 of them"):
        data[18]


@pytest.mark.parametrize("kind", ["shards", "stream"])
def test_one_pass_has_the_bits_and_the_claim_of_a_plain_dataset_and_opens_every_shard_once(kind):
    rows = [row for part in parts() for row in part]
    stream = Stream(rows)
    if kind == "shards":
        data = sd.Shards(range(4), SIZES, parts().__getitem__)
    else:
        data = sd.Shards.from_stream(stream, records=18, shard_size=5)
    model, private = train(data, steps=5)
    plain, plain_private = train(rows, steps=5)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters(), strict=True))
    claim, plain_claim = private.claim(1e-5), plain_private.claim(1e-5)
    assert isinstance(claim, sd.Guarantee), claim
    assert claim.epsilon == plain_claim.epsilon
    assert data.times_opened == 4
    if kind == "stream":
        assert (stream.begun, stream.given) == (1, 18)


def test_a_second_pass_costs_a_second_release_of_every_record():
    one, two = (train(sd.Shards(range(4), SIZES, parts().__getitem__), steps)[1] for steps in (5, 10))
    # Without amplification, k releases of multiplier σ are one Gaussian mechanism of μ = √k/σ.
    for private, releases in ((one, 1), (two, 2)):
        wanted = sd.accounting.gaussian_epsilon(math.sqrt(releases) / 2.0, 1e-5)
        assert private.claim(1e-5).epsilon == pytest.approx(wanted, rel=1e-3)


class Moves(Replayer):
    """Notes how far every single release moved between two neighbouring worlds."""

    def __call__(self, value, sensitivity, noise):
        there, bound, _ = self.doors[self.passed]
        self.moves.append(float(torch.cat([(value[n] - there[n]).flatten() for n in value]).norm()) / bound)
        return super().__call__(value, sensitivity, noise)


def moves_without(data, gone, steps):
    """How far every release of a pass moves if record `gone` contributes nothing; both worlds see the same outputs."""
    order = [tuple(range(first, min(len(data), first + BATCH))) for first in range(0, len(data), BATCH)]
    without = [tuple(i for i in lot if i not in gone) for lot in order]
    recorder = Recorder(torch.Generator().manual_seed(1))
    taps = (recorder, None)
    for lots in (order, without):
        tap = taps[0] if lots is order else Moves(recorder.doors, recorder.choices)
        if lots is without:
            tap.moves = []
        model = network()
        private = sd.Private(model, squared_error, dpsgd(), seed=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with tap_releases(tap, tap.choose), untested():
            for lot in private.draws(data, Scripted(tuple(lots)), steps, expected_batch=4.0, physical_batch=3):
                private.backward(lot)
                optimizer.step()
    return tap.moves


@pytest.mark.parametrize("seed", range(6))
def test_the_hunter_finds_no_record_that_moves_more_than_its_one_release(seed):
    """The lots are those of `FixedOrder`; a neighbour's record contributes nothing, as its claim says."""
    held = parts(seed=seed)
    data = sd.Shards(range(4), SIZES, held.__getitem__)
    drawn = sd.FixedOrder(BATCH).draws(len(data), None, 0)
    assert next(drawn).indices.tolist() == [0, 1, 2, 3]
    gone = int(np.random.default_rng(seed).integers(len(data)))
    moves = moves_without(data, {gone}, 5)
    assert len(moves) == 5
    assert max(moves) <= 1 + 1e-9
    assert [k for k, moved in enumerate(moves) if moved > 0] in ([gone // BATCH], [])


def test_the_hunter_catches_a_stream_that_gives_one_record_in_two_shards():
    """If a person's record is in the stream twice, it moves two releases: the claim is about records, not persons."""
    held = parts(seed=3)
    held[2][0] = held[0][1]
    data = sd.Shards(range(4), SIZES, held.__getitem__)
    moves = moves_without(data, {1, 8}, 5)
    assert sum(moved > 0 for moved in moves) == 2


def test_a_shard_of_another_size_is_refused_and_its_size_is_not_told():
    data = sd.Shards(range(2), (5, 7), lambda k: range(5))
    assert data[4] == 4
    with pytest.raises(sd.Refusal, match="shard 1 does not have the 7 records") as found:
        data[5]
    assert "5" not in str(found.value)
    short = sd.Shards.from_stream(iter(range(3)), records=5, shard_size=5)
    with pytest.raises(sd.Refusal, match="does not have the 5 records"):
        short[0]


def test_streams_are_refused_with_the_road_named():
    rows = [row for part in parts() for row in part]
    private = sd.Private(network(), squared_error, dpsgd())
    for stream in (Stream(rows), DataLoader(Stream(rows), batch_size=2), iter(rows)):
        with pytest.raises(sd.Refusal, match=r"a stream was given(.|\n)*sd\.FixedOrder(.|\n)*sd\.Shards\.from_stream"):
            private.draws(stream, sd.FixedOrder(4), steps=2)


def test_copies_share_what_is_open():
    data = sd.Shards(range(4), SIZES, parts().__getitem__)
    first = data[0]
    assert copy.copy(data)[0] is first
    assert data.times_opened == 1


class Part(list):
    """A shard that can be watched."""


def test_no_more_shards_are_alive_than_are_kept():
    alive, most = weakref.WeakSet(), 0

    def load(k):
        nonlocal most
        part = Part(parts()[k])
        alive.add(part)
        most = max(most, len(alive))
        return part

    Part.__hash__ = object.__hash__
    train(sd.Shards(range(4), SIZES, load), steps=5)
    assert most <= 2


@pytest.mark.slow
def test_memory_is_flat_over_a_stream_of_200_000_records():
    found = measure(shards=20)
    assert found["times_opened"] == 20
    # What the stream holds is 26 MB; what is not given back would show.
    assert found["memory_megabytes_at_the_end"] < found["memory_megabytes_after_a_tenth"] + 10


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="one size for each shard"):
        sd.Shards(["a"], [1, 2], list)
    with pytest.raises(TypeError, match="load"):
        sd.Shards(["a"], [1], "load")
    with pytest.raises(TypeError, match="source"):
        sd.Shards.from_stream(3, records=5, shard_size=5)
