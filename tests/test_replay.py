"""Noise is never used twice: not by a copy, a fork, a pickle, a state loaded once more; a replay is an explicit act."""

import copy
import json
import os
import pickle

import pytest
import torch
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.ledger.claims import REPLAYED
from sordino.private import NOTHING_LEFT_SINCE
from sordino.rng.streams import Rng
from tests.problems import linear, network, private

NOBODY = TensorDataset(torch.zeros(1, 6), torch.zeros(1).long())


def noise(run):
    """One release of an almost surely empty lot: nothing but noise."""
    run.backward(next(run.draws(NOBODY, sd.Poisson(1e-9), steps=1)))
    return torch.cat([p.grad.flatten() for p in run._model.parameters()])


def in_a_fork(function):
    """What a forked process makes of it."""
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(here, pickle.dumps(function()))
        os._exit(0)
    os.close(here)
    with os.fdopen(there, "rb") as answer:
        found = pickle.loads(answer.read())
    os.waitpid(child, 0)
    return found


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy in a list": lambda stream: copy.deepcopy([stream])[0],
    "pickle": lambda stream: pickle.loads(pickle.dumps(stream)),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("made", [Rng.from_entropy, lambda: Rng.from_seed(3)], ids=["entropy", "seed"])
def test_a_copy_of_a_stream_has_other_values(copied, made):
    stream = made()
    other = copied(stream)
    assert not torch.equal(other.normal(8), stream.normal(8))
    assert list(other.child("a").words(4)) != list(stream.child("a").words(4))


def test_a_pickled_stream_holds_no_key():
    stream = Rng.from_seed(3)
    assert bytes.fromhex(stream.state_dict()["key"]) not in pickle.dumps(stream)


def test_a_forked_process_has_other_values():
    stream = Rng.from_seed(3)
    drawn, derived, saved = in_a_fork(
        lambda: (stream.normal(8).tolist(), stream.child("a").words(4).tolist(), stream.state_dict())
    )
    assert stream.normal(8).tolist() != drawn
    assert stream.child("a").words(4).tolist() != derived
    assert stream.state_dict()["key"] != saved["key"]


def test_two_forks_and_a_fork_of_a_fork_all_differ():
    stream = Rng.from_seed(3)
    seen = [in_a_fork(lambda: stream.normal(8).tolist()) for _ in range(2)]
    seen.append(in_a_fork(lambda: in_a_fork(lambda: stream.normal(8).tolist())))
    seen.append(in_a_fork(lambda: (stream.normal(1), in_a_fork(lambda: stream.normal(8).tolist()))[1]))
    seen.append(stream.normal(8).tolist())
    assert len(set(map(tuple, seen))) == 5


def test_the_parent_of_a_fork_goes_on_as_it_would_have():
    one, other = Rng.from_seed(3), Rng.from_seed(3)
    in_a_fork(lambda: one.normal(8).tolist())
    assert torch.equal(one.normal(8), other.normal(8))


def test_streams_split_from_one_all_differ_and_are_repeated_by_a_seed():
    one, other = Rng.from_seed(3), Rng.from_seed(3)
    split = [list(one.split().words(2)) for _ in range(3)]
    assert split == [list(other.split().words(2)) for _ in range(3)]
    assert len(set(map(tuple, split))) == 3


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("seed", [None, 0])
def test_a_copied_run_has_noise_of_its_own_and_writes_in_the_same_ledger(copied, seed):
    run = private(seed=seed)
    before = copied(run)  # nothing was drawn yet
    noise(run)
    after = copied(run)
    assert not torch.equal(noise(before), noise(run))
    assert not torch.equal(noise(after), noise(run))
    step = sd.events.Poisson(1e-9, sd.events.Gaussian(1.0))
    assert run.event == before.event == after.event == sd.events.Repeat(step, 5)


def test_a_copied_run_is_watched_like_the_first():
    run = private()
    noise(run)
    other = copy.deepcopy(run)
    model = other._model
    noise(other)
    model[0].weight.grad.mul_(2.0)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert "by hand" in run.claim(1e-5).reason


def test_passes_of_a_copied_run_are_other_passes():
    run = private()
    list(run.draws(linear(), sd.Shuffle(16), steps=4))
    other = copy.deepcopy(run)
    list(other.draws(linear(), sd.Shuffle(16), steps=4))
    one = sd.events.Shuffle(sd.events.Repeat(sd.events.Gaussian(1.0), 4))
    assert run.event == sd.events.Repeat(one, 2)


def test_a_run_is_not_pickled():
    with pytest.raises(TypeError, match=r"save its state_dict"):
        pickle.dumps(private())


def test_a_forked_run_has_noise_of_its_own():
    run = private(seed=3)
    there = in_a_fork(lambda: noise(run).tolist())
    assert noise(run).tolist() != there


def test_the_book_of_what_was_done_is_not_copied():
    ledger = sd.Ledger()
    assert copy.deepcopy(ledger) is ledger
    ledger.release(sd.events.Gaussian(2.0))
    assert pickle.loads(pickle.dumps(ledger)).event() == ledger.event()


@pytest.mark.parametrize("seed", [None, 0])
def test_a_state_loaded_twice_goes_on_with_two_noises(seed):
    run = private(seed=seed)
    noise(run)
    saved = json.loads(json.dumps(run.state_dict()))
    found = [noise(run)]
    for _ in range(2):
        other = private(seed=seed)
        other.load_state_dict(saved)
        assert other.steps == 1
        found.append(noise(other))
        assert other.event == sd.events.Repeat(sd.events.Poisson(1e-9, sd.events.Gaussian(1.0)), 2)
    assert not any(torch.equal(found[i], found[j]) for i in range(3) for j in range(i))


def test_a_replay_is_bit_equal_and_the_claim_says_so():
    run = private(seed=None)
    noise(run)
    secret, saved = run.secret_state(), run.state_dict()
    other = private(seed=None)
    other.load_state_dict(saved, replay=sd.Replay("nothing was released after it", secret=secret))
    assert torch.equal(noise(other), noise(run))
    assert f"{REPLAYED}: nothing was released after it" in other.claim(1e-5).not_covered


def test_a_state_is_of_plain_types_that_torch_loads_without_trust(tmp_path):
    run = private(seed=None)
    run.secret_state()
    torch.save(run.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == json.loads(json.dumps(run.state_dict()))


def test_the_claim_of_a_resumed_run_says_what_it_takes_on_the_users_word():
    """What was drawn after a state was saved is in no file, and may have been seen."""
    run, other = private(seed=None), private(seed=None)
    noise(run)
    other.load_state_dict(run.state_dict())
    noise(other)
    assert NOTHING_LEFT_SINCE in other.claim(1e-5).rests_on
    assert NOTHING_LEFT_SINCE not in run.claim(1e-5).rests_on
    assert NOTHING_LEFT_SINCE not in copy.deepcopy(run).claim(1e-5).rests_on
    # A caller who logs every draw needs nobody's word for what came after the state.
    logged = private(seed=None)
    logged.continue_logged_run(run.state_dict())
    noise(logged)
    assert NOTHING_LEFT_SINCE not in logged.claim(1e-5).rests_on
    assert NOTHING_LEFT_SINCE in other.state_dict()["ledger"]["declared"]  # and those who go on from there say it too


@pytest.mark.parametrize("because", ["", "  ", None])
def test_a_replay_needs_a_reason(because):
    with pytest.raises(ValueError, match="why every bit"):
        sd.Replay(because)


def test_the_rest_of_a_pass_from_a_new_key_is_another_pass():
    """Its order is another, so a record may be in both parts."""
    run = private()
    list(run.draws(linear(), sd.Shuffle(16), steps=2))
    other = private()
    other.load_state_dict(run.state_dict())
    list(other.draws(linear(), sd.Shuffle(16), steps=2))
    half = sd.events.Shuffle(sd.events.Repeat(sd.events.Gaussian(1.0), 2))
    assert other.event == sd.events.Repeat(half, 2)
    assert other.state_dict()["position"] == 4


def test_a_replayed_pass_is_one_pass():
    run = private()
    list(run.draws(linear(), sd.Shuffle(16), steps=2))
    secret, other = run.secret_state(), private(seed=None)
    other.load_state_dict(run.state_dict(), replay=sd.Replay("a test", secret=secret))
    list(other.draws(linear(), sd.Shuffle(16), steps=2))
    assert other.event == sd.events.Shuffle(sd.events.Repeat(sd.events.Gaussian(1.0), 4))


def test_draws_that_began_before_a_state_was_loaded_end_there():
    run = private()
    lots = run.draws(linear(), sd.Shuffle(16), steps=4)
    next(lots)
    secret = run.secret_state()
    run.load_state_dict(run.state_dict(), replay=sd.Replay("a test", secret=secret))
    with pytest.raises(sd.Refusal, match=r"Call draws\(\) again"):
        next(lots)


def test_a_network_trained_on_from_a_state_with_another_rate_has_other_noise():
    """The usual answer to a run that diverged: the last state once more, with smaller steps."""
    model = network()
    run = private(model, seed=None)
    noise(run)
    saved, weights = run.state_dict(), copy.deepcopy(model.state_dict())
    first = noise(run)
    again = network()
    again.load_state_dict(weights)
    other = private(again, seed=None)
    other.load_state_dict(saved)
    assert not torch.equal(noise(other), first)
