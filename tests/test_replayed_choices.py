"""A replay measures nothing: whatever a stopwatch would say in it, one noise goes on one sum."""

import copy
import itertools
import json

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.noise_key import WrongKey
from sordino.per_sample import Captured, PerformanceOptions
from sordino.per_sample.first_batch import memory_format
from sordino.per_sample.formulas import formula_timing
from tests.problems import linear, private
from tests.test_replay import in_a_fork
from tests.untested import untested

DATA = TensorDataset(torch.randn(24, 2, 6, 6, generator=torch.Generator().manual_seed(3)))


torch.optim.SGD([torch.zeros(1)], lr=0.1)  # imports seconds' worth of torch, here once and not in every process


def convolutional():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(2), nn.Linear(36, 5))


def made(model):
    query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
    return sd.Private(model, lambda m, x: m(x).square().flatten(1).sum(1), query)


def released(run, model, steps=2):
    """The bits of what some steps release."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    with untested():
        for lot in run.draws(DATA, sd.Poisson(0.5), steps=steps):
            run.backward(lot)
            found.append(b"".join(p.grad.numpy().tobytes() for p in model.parameters()))
            optimizer.step()
    return found


def let_the_last_win(times):
    """From here on, in this process, every candidate is faster than those before it, or than those after it."""
    clock = itertools.count()

    class Time:
        @staticmethod
        def thread_time():
            return times * next(clock) ** 2

        perf_counter = thread_time

    formula_timing.time = memory_format.time = Time


def original(before, times):
    """A run that is saved before its first batch, or after it, and goes on."""

    def work():
        let_the_last_win(times)
        model = convolutional()
        run = made(model)
        if before:
            released(run, model, before)
        secret = run.secret_state()
        saved = {"private": run.state_dict(), "model": copy.deepcopy(model.state_dict())}
        return secret, saved, [*released(run, model, 1), *released(run, model, 1)]  # by two calls of draws

    return in_a_fork(work)


def replayed(secret, saved, times):
    def work():
        let_the_last_win(times)
        model = convolutional()
        model.load_state_dict(saved["model"])
        run = made(model)
        run.load_state_dict(saved["private"], replay=sd.Replay("a test", secret=secret))
        return released(run, model)

    return in_a_fork(work)


@pytest.mark.parametrize("before", [0, 1], ids=["before the first batch", "after it"])
def test_real_replays_by_several_processes_release_the_same_bits(before):
    """Each process has a clock of its own, by which it would choose other formulas than the first."""
    secret, saved, first = original(before, 1)
    for other in (1, -1, -1.5):
        assert replayed(secret, saved, other) == first


def test_the_clocks_of_this_test_choose_different_formulas():
    """Otherwise it would show nothing."""

    def choices(times):
        def work():
            let_the_last_win(times)
            model = convolutional()
            run = made(model)
            found = released(run, model)
            return run.state_dict()["backend"]["choices"], [len(one) for one in found]

        return in_a_fork(work)[0]

    assert choices(1) != choices(-1)


def test_a_state_saved_while_the_run_still_measured_is_not_replayed():
    model = convolutional()
    run = made(model)
    early = run.state_dict()
    released(run, model)
    middle = run.state_dict()
    secret = run.secret_state()
    for state in (early, middle):
        with pytest.raises(sd.Refusal, match=r"call private\.save_secret\(folder\) before the first is saved"):
            made(convolutional()).load_state_dict(state, replay=sd.Replay("a test", secret=secret))
        made(convolutional()).load_state_dict(state)  # with a new key it goes on
    made(convolutional()).load_state_dict(run.state_dict(), replay=sd.Replay("a test", secret=secret))


def test_a_state_is_replayed_with_its_own_key_alone():
    """Another key would be new noise on sums that were released, and nobody would charge it."""
    one, other = private(seed=None), private(seed=None)
    secrets = [run.secret_state() for run in (one, other)]
    with pytest.raises(WrongKey, match="not the one that the state was saved under"):
        private(seed=None).load_state_dict(one.state_dict(), replay=sd.Replay("a test", secret=secrets[1]))
    with pytest.raises(WrongKey):
        private(seed=None).load_state_dict(one.state_dict(), replay=sd.Replay("a test"))
    resumed = private(seed=None)
    resumed.load_state_dict(one.state_dict())
    with pytest.raises(WrongKey):  # it went on with a new key, which was not saved
        private(seed=None).load_state_dict(resumed.state_dict(), replay=sd.Replay("a test", secret=secrets[0]))


def test_a_changed_state_is_not_replayed():
    run = private(seed=None)
    secret, state = run.secret_state(), run.state_dict()
    text = state["encrypted"]
    state["encrypted"] = ("1" if text[0] == "0" else "0") + text[1:]
    with pytest.raises(WrongKey):
        private(seed=None).load_state_dict(state, replay=sd.Replay("a test", secret=secret))


def test_a_state_is_replayed_where_it_was_saved_alone():
    run = private(seed=None)
    secret, state = run.secret_state(), run.state_dict()
    state["environment"] = {**state["environment"], "threads": 99}
    with pytest.raises(sd.Refusal, match=r"threads was 99(.|\n)*new key"):
        private(seed=None).load_state_dict(state, replay=sd.Replay("a test", secret=secret))
    private(seed=None).load_state_dict(state)


def test_what_is_refused_leaves_the_run_as_it_was():
    run, other = private(seed=None), private(seed=None)
    list(run.draws(linear(), sd.Poisson(0.3), steps=2))
    other.secret_state()
    before = other.state_dict()
    with pytest.raises(WrongKey):
        other.load_state_dict(run.state_dict(), replay=sd.Replay("a test"))
    assert other.state_dict() == before


def test_how_many_records_are_processed_at_once_does_not_depend_on_free_memory(monkeypatch):
    """Sums of other parts round differently."""

    def chunk(free):
        monkeypatch.setattr("sordino.per_sample.physical_batch.free_bytes", lambda device: free)
        run = private(seed=None)
        run.secret_state()
        next(run.draws(linear(), sd.Poisson(0.5), steps=1))
        return run.state_dict()["physical_batch"]

    assert chunk(1 << 34) == chunk(1 << 10)


def test_a_stopped_stopwatch_keeps_its_choices_and_makes_no_others(monkeypatch):
    model, backend = convolutional(), Captured()
    loss = lambda m, x: m(x).square().flatten(1).sum(1)  # noqa: E731
    backend.per_sample(model, loss, (torch.randn(8, 2, 6, 6),)).norms()
    chosen = backend.state_dict()
    assert backend.measures
    backend.choose_by_shapes()
    assert not backend.measures

    class NoClock:
        def __getattr__(self, name):
            raise AssertionError(f"time.{name} was asked for")

    monkeypatch.setattr(formula_timing, "time", NoClock())
    for shape in ((8, 2, 6, 6), (8, 2, 12, 3)):
        grads = backend.per_sample(model, loss, (torch.randn(shape),))
        grads.norms()
        grads.weighted_sum(torch.ones(8, 1))
    assert backend.state_dict() == chosen
    assert not Captured(PerformanceOptions(measure=False)).measures


def state_of_0_2(run):
    """A state as version 0.2 saved it: streams and memory in the clear."""
    state = {name: value for name, value in run.state_dict().items() if name not in ("encrypted", "repeatable")}
    del state["environment"], state["remembers_records"]
    streams = {name: getattr(run, f"_{name}").state_dict() for name in ("root", "noise", "forward")}
    return json.loads(json.dumps({**state, **streams, "format": 3, "memory": None}))


def test_states_of_version_0_2_are_gone_on_with():
    run = private(seed=None)
    list(run.draws(linear(), sd.Poisson(0.3), steps=3))
    other = private(seed=None)
    other.load_state_dict(state_of_0_2(run))
    assert other.steps == 3
    assert other.event == run.event
    assert "root" not in other.state_dict()
    with pytest.raises(sd.Refusal, match="measured which formulas"):
        private(seed=None).load_state_dict(state_of_0_2(run), replay=sd.Replay("a test"))
    options = PerformanceOptions(measure=False)
    again = private(seed=None, backend=Captured(options))
    again.load_state_dict(state_of_0_2(run), replay=sd.Replay("a test"))
    assert again.secret_state() == run.secret_state()
