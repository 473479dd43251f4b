"""What a step costs on a device: how often the host waits, and that what it does not wait for arrives unharmed."""

import os
import subprocess
import sys
from functools import cache

import pytest
import torch
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.per_sample import Captured, PerformanceOptions
from sordino.release.noise import Gaussian
from sordino.rng.streams import Rng
from tests.device.simulated import move, start
from tests.device.zoo import ZOO

sim = start()

MOST_WAITS = 2


@cache
def cost_of_steps(name, steps=20):
    """Returns what each step cost after the first, and what a plain pass of the same model costs."""
    torch.manual_seed(0)
    model, data, loss_fn = ZOO[name]()
    optimizer = torch.optim.SGD(move(model).parameters(), lr=0.05)
    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    lots, costs = iter(private.draws(data, sd.Poisson(0.1), steps=steps)), []
    for _ in range(steps):
        with sim.counting() as cost:
            optimizer.zero_grad()
            private.backward(next(lots))
            optimizer.step()
        costs.append(cost)
    # Another model, which no run watches: what is watched is looked at in every step of its optimizer.
    unwatched = move(ZOO[name]()[0])
    plain_optimizer = torch.optim.SGD(unwatched.parameters(), lr=0.05)
    for _ in range(2):  # the second is counted
        with sim.counting() as plain:
            plain_optimizer.zero_grad()
            loss_fn(unwatched, *[column[:20].to("sim") for column in data.tensors]).mean().backward()
            plain_optimizer.step()
    return costs[1:], plain


@pytest.mark.parametrize("name", ["mlp_dropout", "cnn_dropout", "lstm_dropout", "vit_dropout", "gpt2_dropout"])
def test_a_plain_step_waits_at_most_twice(name):
    """Some steps are tested by the runtime checks, which wait; the cheapest of nineteen is one that was not."""
    costs, plain = cost_of_steps(name)
    cheapest = min(costs, key=lambda cost: cost.waits)
    batch_copies = len(ZOO[name]()[1].tensors)  # plain training waits for them, and private training does not
    assert cheapest.waits <= MOST_WAITS + plain.waits - batch_copies, cheapest.waiting_sites()
    assert sum(cost["overwritten_in_flight"] for cost in costs) == 0


@pytest.mark.parametrize("name", ["mlp_dropout", "cnn_dropout", "lstm_dropout", "vit_dropout", "gpt2_dropout"])
def test_a_plain_step_launches_at_most_twice_as_many_kernels_as_plain_training(name):
    """An MLP of two layers has so few launches that clipping, noise and checks outweigh them."""
    costs, plain = cost_of_steps(name)
    cheapest = min(cost.launches for cost in costs)
    most = 3 if name == "mlp_dropout" else 2
    assert cheapest <= most * plain.launches, (cheapest, plain.launches)


def test_a_step_of_a_layer_too_large_to_stack_waits_at_most_twice():
    """Its norms are Gram sums, whose guard must not wait to see which of them cancelled."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.Tanh(), torch.nn.Linear(1000, 2))
    optimizer = torch.optim.SGD(move(model).parameters(), lr=0.05)
    backend = Captured(PerformanceOptions(measure=False))  # by shapes alone, which speak for Gram sums
    query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
    private = sd.Private(model, lambda m, x: m(x).square().sum((1, 2)), query, backend=backend)
    lots, costs = iter(private.draws(TensorDataset(torch.randn(200, 3, 1000)), sd.Poisson(0.1), steps=24)), []
    for _ in range(24):
        with sim.counting(launch_sites=True) as cost:
            optimizer.zero_grad()
            private.backward(next(lots))
            optimizer.step()
        costs.append(cost)
    cheapest = min(costs[1:], key=lambda cost: cost.waits)
    launches = cheapest.launch_sites()
    assert any("matrix_product.py" in site and "topk" in site for site in launches), f"no Gram sums: {launches}"
    assert cheapest.waits <= MOST_WAITS, cheapest.waiting_sites()


def noise_on(device, shapes, dtype=torch.float32):
    value = {str(k): torch.zeros(shape, dtype=dtype, device=device) for k, shape in enumerate(shapes)}
    Gaussian(1.0).add_(value, 1.5, Rng.from_seed(3), factor=0.5)
    return [tensor.cpu() for tensor in value.values()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_on_a_device_has_the_bits_of_the_cpu(dtype):
    shapes = [(3, 5), (1,), (0,), (700, 41), (2, 3, 4)]
    for here, there in zip(noise_on("cpu", shapes, dtype), noise_on("sim", shapes, dtype), strict=True):
        assert torch.equal(here, there)


def test_noise_is_one_copy_that_nobody_waits_for():
    noise_on("sim", [(3,)])
    value = {str(k): torch.zeros(50, device="sim") for k in range(6)}
    with sim.counting() as cost:
        Gaussian(1.0).add_(value, 1.0, Rng.from_seed(0))
    assert cost.waits == 0
    assert cost["to_device_async"] == 1
    assert cost["to_device_async_bytes"] == 4 * 300


_WITHOUT_KERNELS = """
import os, torch
from tests.device.simulated import start
start()
from tests.device.check_costs import noise_on
assert all(map(torch.equal, noise_on("cpu", [(3, 5), (700, 41)]), noise_on("sim", [(3, 5), (700, 41)])))
print("equal", flush=True)
os._exit(0)
"""


def test_noise_without_the_compiled_kernels_has_the_same_bits_too():
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_KERNELS],
        env={**os.environ, "SORDINO_KERNELS": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "equal" in done.stdout, done.stderr


def test_a_gradient_multiplied_by_one_number_is_still_the_released_one_and_any_other_is_not():
    torch.manual_seed(0)
    model, data, loss_fn = ZOO["mlp"]()
    optimizer = torch.optim.SGD(move(model).parameters(), lr=0.05)
    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    for lot in private.draws(data, sd.Poisson(0.1), steps=3):
        optimizer.zero_grad()
        private.backward(lot)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        if lot.step == 1:
            assert "differential privacy" in str(private.claim(1e-5))
    optimizer.zero_grad()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert "no privacy guarantee" in str(private.claim(1e-5)).lower()
