"""Adam corrected for the noise: Adam where there is none, the formula where there is, and right on average."""

import math

import pytest
import torch

import sordino as sd
from sordino.optim import AdamCorrected, noise_scale
from tests.contracts.hunter import Scripted
from tests.problems import linear, network, parameters, private


def run(make, gradients):
    p = torch.nn.Parameter(torch.ones(gradients.shape[1], dtype=torch.float64))
    optimizer = make([p])
    for gradient in gradients:
        p.grad = gradient.clone()
        optimizer.step()
    return p.detach()


GRADIENTS = torch.randn(20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_without_noise_it_is_adam(decay):
    ours = run(lambda p: AdamCorrected(p, 0.01, noise=0.0, floor=1e-30, weight_decay=decay), GRADIENTS)
    theirs = run(lambda p: torch.optim.AdamW(p, 0.01, eps=0.0, weight_decay=decay), GRADIENTS)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


@pytest.mark.parametrize("noise", [0.7, lambda t: 0.7 / (t + 1)], ids=["constant", "schedule"])
def test_it_is_the_formula_of_the_paper(noise):
    lr, b1, b2, floor = 0.05, 0.8, 0.95, 0.03
    ours = run(lambda p: AdamCorrected(p, lr, noise=noise, betas=(b1, b2), floor=floor), GRADIENTS)
    theta, m, v = [1.0] * 5, [0.0] * 5, [0.0] * 5
    at_the_floor = 0
    for t, row in enumerate(GRADIENTS.tolist(), start=1):
        s = noise(t - 1) if callable(noise) else noise
        for k, g in enumerate(row):
            m[k] = b1 * m[k] + (1 - b1) * g
            v[k] = b2 * v[k] + (1 - b2) * g * g
            corrected = v[k] / (1 - b2**t) - s * s
            at_the_floor += corrected < floor
            theta[k] -= lr * (m[k] / (1 - b1**t)) / math.sqrt(max(corrected, floor))
    torch.testing.assert_close(ours, torch.tensor(theta, dtype=torch.float64), rtol=1e-12, atol=0)
    assert 0 < at_the_floor < 100  # both sides of the maximum were taken


def test_the_second_moment_is_that_of_the_gradient_without_noise():
    """v̂ − s² of 10,000 coordinates after 2000 steps: g² = 0.25 to well within 1 %; Adam's own is 4.25."""
    generator = torch.Generator().manual_seed(0)
    p = torch.nn.Parameter(torch.zeros(10_000))
    optimizer = AdamCorrected([p], 0.0, noise=2.0)
    for _ in range(2000):
        p.grad = 0.5 + 2.0 * torch.randn(10_000, generator=generator)
        optimizer.step()
    second = optimizer.state[p]["second"] / (1 - 0.999**2000)
    assert second.mean().item() == pytest.approx(4.25, rel=0.01)
    assert (second - 2.0**2).mean().item() == pytest.approx(0.25, abs=0.01)  # se of the mean about 0.0013


@pytest.mark.parametrize(
    "query",
    [
        sd.NoisySum(sd.Flat(0.5), sd.Gaussian(2.0)),
        sd.NoisySum(sd.Layerwise([0.3, 0.4]), sd.Gaussian(2.0)),
        sd.NoisyLookahead(sd.Flat(0.5), sd.Gaussian(2.0), learning_rate=0.1),
        sd.OptimisticLookahead(sd.Flat(0.5), sd.Gaussian(2.0), learning_rate=0.1),
    ],
    ids=lambda q: type(q).__name__,
)
def test_the_scale_it_is_told_is_that_of_the_noise_it_sees(query):
    """20,200 values on an empty lot: 2 % is 4 standard errors."""
    torch.manual_seed(0)
    model = torch.nn.Linear(100, 200)
    p = sd.Private(model, lambda m, x: m(x).sum(1), query, seed=0)
    for lot in p.draws(torch.utils.data.TensorDataset(torch.zeros(1, 100)), Scripted(((),)), steps=1):
        p.backward(lot)
    seen = torch.cat([q.grad.flatten() for q in model.parameters()]).std().item()
    assert seen == pytest.approx(noise_scale(query, lot.expected_batch), rel=0.02)


def test_it_resumes_bit_equal_and_keeps_the_claim():
    def begin():
        model = network()
        return model, private(model), AdamCorrected(model.parameters(), 0.01, noise=1.0 / 19.2)

    model, p, optimizer = begin()
    secret = p.secret_state()
    for lot in p.draws(linear(), sd.Poisson(0.3), steps=6):
        p.backward(lot)
        optimizer.step()
        if p.steps == 3:
            saved = [{k: v.clone() for k, v in model.state_dict().items()}, p.state_dict(), optimizer.state_dict()]
            saved[2]["state"] = {
                k: {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in s.items()}
                for k, s in saved[2]["state"].items()
            }
    assert isinstance(p.claim(1e-5), sd.Guarantee)
    again, q, second = begin()
    again.load_state_dict(saved[0])
    q.load_state_dict(saved[1], replay=sd.Replay("the same steps follow", secret=secret))
    second.load_state_dict(saved[2])
    for lot in q.draws(linear(), sd.Poisson(0.3), steps=3):
        q.backward(lot)
        second.step()
    assert torch.equal(parameters(model), parameters(again))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": -1.0}, "noise=-1.0: must be finite and >= 0"),
        ({"noise": 1.0, "betas": (1.0, 0.9)}, r"betas\[0\]=1.0: must lie in \[0, 1\)"),
        ({"noise": 1.0, "floor": 0.0}, "floor=0.0: must be > 0"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        AdamCorrected([torch.nn.Parameter(torch.zeros(1))], 0.1, **options)


def test_noise_without_one_scale_is_refused():
    with pytest.raises(TypeError, match="need one Gaussian noise"):
        noise_scale(sd.NoisySum(sd.FlatL1(1.0, 1), sd.Laplace(1.0)), 10)
