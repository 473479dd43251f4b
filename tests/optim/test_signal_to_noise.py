"""How much of a step is noise: known before the first step, measured on released gradients, and told when nothing else."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.optim import SignalToNoise, StepNoise
from sordino.optim.step_noise import ENOUGH, TYPICAL_SIGNAL

D, N = 400, 500


class Point(nn.Module):
    """Parameters whose loss is −⟨θ, x⟩: a record's gradient is −x, whatever the parameters are."""

    def __init__(self, size=D):
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(size))


def inner_product(model, x):
    return -(x @ model.theta)


def records(length, seed=0):
    """Records that all point in one direction, `length` long; opposite ones if `length` is 0, so that they cancel."""
    direction = nn.functional.normalize(torch.randn(D, generator=torch.Generator().manual_seed(seed)), dim=0)
    if length:
        return TensorDataset(length * direction.expand(N, D).clone())
    signs = torch.tensor([1.0, -1.0]).repeat(N // 2).unsqueeze(1)
    return TensorDataset(0.2 * signs * direction)


def trained(length, sigma, steps=40):
    """Draws the whole dataset at every step, so that the mean gradient is exactly `length` long."""
    model = Point()
    private = sd.Private(model, inner_product, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(sigma)), seed=3)
    signal, optimizer, walks = SignalToNoise(private), torch.optim.SGD(model.parameters(), lr=0.1), []
    for lot in private.draws(records(length), sd.Full(), steps, expected_batch=N):
        private.backward(lot)
        signal.update()
        walks.append(signal.finds_random_walk())
        optimizer.step()
    return private, signal, walks


def test_the_public_figures_are_the_formula():
    noise = StepNoise.of_query(
        sd.NoisySum(sd.Flat(0.5), sd.Gaussian(3.0)), expected_batch=200, coordinates=900, steps=49
    )
    length = 3.0 * 0.5 / 200 * 30  # σC/L √d
    signal = TYPICAL_SIGNAL * 0.5
    assert noise.length == pytest.approx(length)
    assert noise.share == pytest.approx(length**2 / (length**2 + signal**2))
    assert noise.signal_to_noise == pytest.approx(7 * signal / length)
    assert noise.bound == pytest.approx(0.5)


@pytest.mark.parametrize(
    "query",
    [
        sd.NoisySum(sd.Flat(1.0), sd.Gaussian(0.0)),
        sd.NoisySum(sd.FlatL1(1.0, 5), sd.Laplace(1.0)),
        sd.NoisySum(sd.Layerwise([1.0, 2.0], share=sd.EqualShare()), sd.Gaussian(1.0)),
        sd.NoisySum(sd.AdaptiveQuantile(1.0, quantile=0.5, count_noise=10.0), sd.Gaussian(1.1)),
    ],
    ids=["no noise", "Laplace", "layer by layer", "a bound that moves"],
)
def test_noise_without_one_public_scale_has_no_figure(query):
    assert StepNoise.of_query(query, expected_batch=10, coordinates=5, steps=5) is None


def test_the_noise_of_a_step_is_as_long_as_released_gradients_say():
    private, _, _ = trained(0.0, sigma=25.0, steps=5)
    released = float(private.trained_parameters()["theta"].grad.norm())
    # ‖z‖ / (s √d) has mean 1 and deviation 1/√(2d): 5 deviations
    assert released / private.step_noise.length == pytest.approx(1.0, abs=5 / math.sqrt(2 * D))


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_the_measured_figure_of_steps_and_run_is_that_of_known_signal_and_noise(ratio):
    # Noise of length σ √d / N = 1 with this σ; the mean gradient is `length` long at every step.
    sigma, length, steps = N / math.sqrt(D), 0.4, 40
    sigma *= length / ratio
    _, signal, _ = trained(length, sigma, steps)
    step = signal.of_step()
    # ‖g̃‖²/n² − 1 over 40 steps has mean r² and variance (2/d + 4r²/d)/40: 5 deviations
    spread = 5 * math.sqrt((2 + 4 * ratio**2) / D / steps)
    assert step**2 == pytest.approx(ratio**2, abs=spread)
    # Of the run: √t r, as all steps agree.
    spread = 5 * math.sqrt((2 + 4 * steps * ratio**2) / D)
    assert signal.of_run() ** 2 == pytest.approx(steps * ratio**2, abs=spread)
    assert signal.of_step() is None  # nothing since the last look


def test_noise_alone_is_told_once_after_a_quarter_of_the_steps_and_learning_is_not():
    private, signal, walks = trained(0.0, sigma=25.0)
    assert [step for step, told in enumerate(walks, start=1) if told] == [10]
    assert "walks at random" in signal.warning()
    assert "train fewer numbers: 400 now" in signal.warning()
    assert isinstance(private.claim(1e-5), sd.Guarantee)  # looking at released gradients costs nothing
    _, _, walks = trained(0.4, sigma=25.0)
    assert not any(walks)


def test_the_meter_changes_neither_the_run_nor_its_claim():
    def parameters(watched):
        model = Point()
        private = sd.Private(model, inner_product, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(2.0)), seed=5)
        signal, optimizer = SignalToNoise(private), torch.optim.SGD(model.parameters(), lr=0.1)
        for lot in private.draws(records(0.4), sd.Poisson(0.5), 5, expected_batch=250):
            private.backward(lot)
            if watched:
                signal.update()
            optimizer.step()
        return model.theta.detach(), private.claim(1e-5).epsilon

    (plain, spent), (seen, spent_too) = parameters(False), parameters(True)
    assert torch.equal(plain, seen)
    assert spent == spent_too


def test_gradients_changed_since_their_release_are_left_out():
    model = Point()
    private = sd.Private(model, inner_product, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(2.0)), seed=5)
    signal = SignalToNoise(private)
    for lot in private.draws(records(0.4), sd.Poisson(0.5), 1, expected_batch=250):
        private.backward(lot)
        model.theta.grad = torch.ones(D)
        signal.update()
    assert signal.steps == 0


def test_advice_says_what_to_change_and_its_figures_are_those_of_the_changed_run():
    # 6,920 sentences, LoRA r 8 on query and value of MiniLM, lots of 512, 4 epochs at ε = 8: it learnt nothing.
    records_count, epsilon, delta, steps = 6920, 8.0, 1e-5, 54
    sigma = sd.calibrate(
        lambda s: sd.NoisySum(sd.Flat(1.0), sd.Gaussian(s)),
        sd.Poisson(512 / records_count),
        steps,
        epsilon=epsilon,
        delta=delta,
        dataset_size=records_count,
    )
    noise = StepNoise(sigma / 512, 74_498, 1.0, 512, steps)
    assert noise.walks_at_random
    text = noise.advise(records=records_count, epsilon=epsilon, delta=delta, last="call finetune")
    assert "This run will walk at random" in text
    assert "of a step will be noise" in text
    assert text.endswith("  - call finetune")
    # The advised number of parameters gives the promised figure.
    fewer = int(text.split("now, ")[1].split(" or fewer")[0].replace(",", ""))
    assert ENOUGH <= StepNoise(sigma / 512, fewer, 1.0, 512, steps).signal_to_noise < 1.1 * ENOUGH
    # The advised lot does too, calibrated by hand.
    larger = sd.calibrate(
        lambda s: sd.NoisySum(sd.Flat(1.0), sd.Gaussian(s)),
        sd.Poisson(0.5),
        steps,
        epsilon=epsilon,
        delta=delta,
        dataset_size=records_count,
    )
    figure = StepNoise(larger / 3460, 74_498, 1.0, 3460, steps).signal_to_noise
    assert f"draw larger lots: 3,460 records, {steps} steps, 27 epochs give {figure:.2g}" in text
    # A head alone is told nothing but its share.
    head = StepNoise(sigma / 512, 770, 1.0, 512, steps)
    assert "enough to learn" in head.advise(records=records_count, epsilon=epsilon, delta=delta)
    assert "To change" not in head.advise(records=records_count, epsilon=epsilon, delta=delta)


def test_a_loop_can_ask_before_its_first_step():
    private = sd.Private(Point(), inner_product, epsilon=1.0, delta=1e-5)
    assert private.step_noise is None
    private.draws(records(0.4), sd.Poisson(0.1), 10, expected_batch=50)
    assert private.step_noise.steps == 10
    assert "of a step will be noise" in private.step_noise.describe()


class Settling(nn.Module):
    """Parameters that are pulled to a public target 1 away: the gradient is their distance to it, so it ends when they are
    there.
    """

    def __init__(self):
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(D))


def test_a_run_that_learnt_early_and_then_settled_is_not_said_to_walk_at_random():
    target = torch.full((D,), 1 / math.sqrt(D))
    model = Settling()
    # The distance to the target is at most about 1, so no gradient is clipped below the bound of 4.
    query = sd.NoisySum(sd.Flat(4.0), sd.Gaussian(0.25 * N / (4.0 * math.sqrt(D))))
    private = sd.Private(model, lambda m, x: 0.5 * (m.theta - target).square().sum() + 0 * x.sum(1), query, seed=3)
    signal, optimizer, walks = SignalToNoise(private), torch.optim.SGD(model.parameters(), lr=0.5), []
    for lot in private.draws(records(0.4), sd.Full(), 400, expected_batch=N):
        private.backward(lot)
        signal.update()
        walks.append(signal.finds_random_walk())
        optimizer.step()
    # Later gradients pull back what noise moved: at the end the sum of all is shorter than that of noise alone.
    assert signal.of_run() < 1
    assert signal.highest > ENOUGH
    assert not any(walks)
    # A run that goes on from a checkpoint remembers it.
    again = SignalToNoise(private)
    again.load_state_dict(signal.state_dict())
    assert again.highest == signal.highest


def test_a_count_above_todays_is_no_advice_to_train_fewer_numbers():
    noise = StepNoise(deviation=1e-4, coordinates=39_700, bound=1.0, lot=3750, steps=640)
    assert noise.signal_to_noise > ENOUGH
    (change,) = noise.list_changes()
    assert change.startswith("train fewer numbers: 39,700 now. ")
