"""The noise that is really added in a phase, against the covariance that its strategy declares."""

import os

import numpy as np
import pytest
import torch

import sordino as sd
from sordino.rng.phase_noise import PhaseNoise
from sordino.rng.streams import Rng
from tests.correlated import detectors
from tests.correlated.detectors import noise_of
from tests.correlated.noise_runs import create_run, records

STRATEGIES = [
    sd.Banded(1),
    sd.Banded(3),
    sd.Banded(8),
    sd.Banded(3, (1.0, 0.6, 0.2)),
    sd.InverseBanded(1),
    sd.InverseBanded(4),
    sd.Buffered((0.9, 0.5), (0.2, 0.3)),
]
STEPS = detectors.STEPS


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_released_noise_has_the_declared_covariance(strategy):
    detectors.check_covariance(strategy)


def test_the_noise_of_the_sum_is_smaller_than_that_of_independent_noise():
    plain, banded = noise_of(sd.Banded(1)).sum(axis=0), noise_of(sd.Banded(10)).sum(axis=0)
    assert banded.std() < 0.7 * plain.std()


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_steps_that_are_left_out_advance_the_noise(strategy):
    whole, gaps = noise_of(strategy, width=50), noise_of(strategy, width=50, leave_out=(0, 3, 4, 8))
    kept = ~np.isnan(gaps[:, 0])
    assert kept.sum() == STEPS - 4
    assert np.array_equal(whole[kept], gaps[kept])


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_part_of_the_coordinates_has_the_bits_of_the_whole(strategy):
    detectors.check_parts(strategy)


@pytest.mark.parametrize("strategy", [sd.Banded(3), sd.InverseBanded(4), sd.Buffered((0.9,), (0.4,))], ids=str)
def test_a_replayed_run_goes_on_with_the_same_noise(strategy, tmp_path):
    detectors.check_resume(strategy, tmp_path)


def test_a_run_that_goes_on_with_a_new_key_is_charged_for_a_second_phase():
    data, strategy = records(20), sd.Banded(3)
    private, _ = create_run(strategy)
    lots = iter(private.draws(data, sd.FixedOrder(5), steps=STEPS, expected_batch=1.0))
    for _ in range(4):
        private.backward(next(lots))
    resumed, _ = create_run(strategy, seed=None)
    resumed.load_state_dict(private.state_dict())
    for lot in resumed.draws(data, sd.FixedOrder(5), steps=6, expected_batch=1.0):
        resumed.backward(lot)
    assert [event.steps for event in resumed.event.events] == [STEPS, 6]


def test_two_calls_of_draws_are_two_phases():
    data = records(40)
    private, _ = create_run(sd.Banded(3))
    for _ in range(2):
        for lot in private.draws(data, sd.CyclicPoisson(0.5, 4), steps=6, expected_batch=5.0):
            private.backward(lot)
    assert private.event.count == 2
    assert private.event.event == sd.events.CyclicPoisson(0.5, 4, 6, sd.events.Correlated(1.0, ("banded", 3)))


def test_a_phase_is_charged_as_a_whole_before_its_first_release():
    private, _ = create_run(sd.Banded(3))
    lots = iter(private.draws(records(40), sd.CyclicPoisson(0.5, 4), steps=60, expected_batch=5.0))
    next(lots)
    charged = private.claim(1e-5).epsilon
    assert private.event.steps == 60
    for lot in lots:
        private.backward(lot)
    assert private.claim(1e-5).epsilon == charged


def test_replayable_runs_do_not_stretch_a_phase(tmp_path):
    private, _ = create_run(sd.Banded(3))
    private.save_secret(tmp_path)
    for _ in range(2):
        for lot in private.draws(records(20), sd.FixedOrder(5), steps=4, expected_batch=1.0):
            private.backward(lot)
    assert private.event.count == 2


def test_a_step_is_released_once():
    private, _ = create_run(sd.Banded(3))
    lot = next(iter(private.draws(records(20), sd.FixedOrder(5), steps=4, expected_batch=1.0)))
    private.backward(lot)
    with pytest.raises(sd.Refusal, match="second release"):
        private.backward(lot)


def test_another_bound_within_a_phase_is_refused():
    rng = Rng.from_seed(0)
    rng.phase = PhaseNoise(Rng.from_seed(1), 4)
    noise = sd.Correlated(1.0, sd.Banded(2))
    rng.phase.draw_step(0)
    noise.values_at(3, [(0, 3)], 1.0, rng, torch.float32)
    rng.phase.draw_step(1)
    with pytest.raises(sd.Refusal, match="bound changed"):
        noise.values_at(3, [(0, 3)], 0.5, rng, torch.float32)


def test_other_coordinates_within_a_phase_are_refused():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
    query = sd.NoisySum(sd.Flat(1.0), sd.Correlated(1.0, sd.Banded(2)))
    private = sd.Private(model, lambda m, x: m(x).sum(1), query)
    lots = iter(private.draws(records(20), sd.FixedOrder(5), steps=4, expected_batch=1.0))
    private.backward(next(lots))
    model[0].weight.requires_grad_(False)
    with pytest.raises(sd.Refusal, match=r"phase|parameter"):
        private.backward(next(lots))


@pytest.mark.parametrize("path", ["plain", "compiled"])
def test_a_forked_process_does_not_go_on_with_a_phase(path):
    stream = Rng.from_seed(1)
    phase = PhaseNoise(stream, 4)
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            {"plain": lambda: phase.vector(0, 3, [(0, 3)], torch.float32), "compiled": phase.key_of_vectors}[path]()
            os.write(write, b"made")
        except sd.Refusal:
            os.write(write, b"refused")
        finally:
            os._exit(0)
    os.wait()
    assert os.read(read, 10) == b"refused"


def test_noise_without_a_phase_is_refused():
    with pytest.raises(sd.Refusal, match="no phase"):
        sd.Correlated(1.0, sd.Banded(2)).values_at(3, [(0, 3)], 1.0, Rng.from_seed(0), torch.float32)


@pytest.mark.parametrize(
    "sampler",
    [sd.Poisson(0.5), sd.Shuffle(5), sd.BallsInBins(4), sd.FixedSize(5), sd.TruncatedPoisson(0.5, 20)],
    ids=str,
)
def test_draws_without_a_theorem_are_refused_before_anything_is_drawn(sampler):
    private, _ = create_run(sd.Banded(2))
    with pytest.raises(sd.Refusal, match="no price"):
        next(iter(private.draws(records(20), sampler, steps=4, expected_batch=5.0)))
    with pytest.raises(TypeError, match="correlated noise"):
        sd.dry_run(sd.NoisySum(sd.Flat(1.0), sd.Correlated(1.0, sd.Banded(2))), sampler, 20, 4)


@pytest.mark.parametrize("strategy", [sd.Banded(5), sd.InverseBanded(2), sd.Buffered((0.5,), (0.3,))], ids=str)
def test_more_bands_than_groups_are_refused(strategy):
    private, _ = create_run(strategy)
    with pytest.raises(ValueError, match="groups"):
        next(iter(private.draws(records(20), sd.CyclicPoisson(0.5, 4), steps=12, expected_batch=5.0)))


def test_a_record_that_is_twice_in_the_data_is_refused():
    private, _ = create_run(sd.Banded(2))
    data = records(20)
    twice = torch.utils.data.ConcatDataset([data, torch.utils.data.Subset(data, [0])])
    with pytest.raises(sd.Refusal, match="2 times"):
        next(iter(private.draws(twice, sd.CyclicPoisson(0.5, 4), steps=12, expected_batch=5.0)))


def test_estimated_norms_are_refused():
    from sordino.release.sensitivity import FromProjections

    with pytest.raises(TypeError, match="estimated norms"):
        sd.Correlated(1.0, sd.Banded(2)).event(FromProjections(40))
