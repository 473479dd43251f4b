"""The simulated accelerator itself: it computes what the CPU computes, and hides, counts and refuses what a device does."""

import copy
import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.device.simulated import start

sim = start()


@pytest.mark.parametrize(
    ("build", "shape", "vocabulary"),
    [
        (lambda: nn.Linear(5, 3), (4, 5), None),
        (
            lambda: nn.Sequential(
                nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, groups=4)
            ),
            (2, 3, 8, 8),
            None,
        ),
        (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 8, 8), None),
        (lambda: nn.Conv1d(3, 4, 3), (2, 3, 8), None),
        (lambda: nn.LSTM(5, 6, batch_first=True), (4, 7, 5), None),
        (lambda: nn.GRU(5, 6, batch_first=True), (4, 7, 5), None),
        (lambda: nn.Embedding(10, 4), (4, 6), 10),
        (lambda: nn.LayerNorm(5), (4, 5), None),
        (lambda: nn.GroupNorm(2, 4), (3, 4, 5, 5), None),
        (lambda: nn.BatchNorm2d(4), (3, 4, 5, 5), None),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (3, 5, 8), None),
    ],
)
def test_layers_give_the_outputs_and_gradients_of_the_cpu(build, shape, vocabulary):
    torch.manual_seed(1)
    here = build()
    there = copy.deepcopy(here).to("sim")
    x = torch.randn(shape) if vocabulary is None else torch.randint(0, vocabulary, shape)
    outputs = [model(x.to(next(model.parameters()).device)) for model in (here, there)]
    outputs = [out[0] if isinstance(out, tuple) else out for out in outputs]
    for out in outputs:
        out.square().sum().backward()
    torch.testing.assert_close(outputs[1].cpu(), outputs[0])
    for a, b in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-5, atol=1e-5)


def test_complex_numbers_and_their_gradients():
    def run(device):
        torch.manual_seed(0)
        x = torch.randn(4, 3, dtype=torch.complex64).to(device).requires_grad_()
        (x @ x.conj().T).abs().sum().backward()
        return x.grad.cpu()

    torch.testing.assert_close(run("sim"), run("cpu"))


def test_random_numbers_come_from_a_generator_of_its_own():
    before = torch.get_rng_state()
    torch.sim.manual_seed_all(0)
    a = F.dropout(torch.ones(1000, device="sim"), 0.5).cpu()
    assert torch.equal(before, torch.get_rng_state())
    torch.sim.manual_seed_all(0)
    assert torch.equal(a, F.dropout(torch.ones(1000, device="sim"), 0.5).cpu())
    torch.manual_seed(0)
    assert not torch.equal(a, F.dropout(torch.ones(1000), 0.5))
    state = torch.sim.get_rng_state()
    drawn = torch.rand(3, device="sim").cpu()
    torch.sim.set_rng_state(state)
    assert torch.equal(drawn, torch.rand(3, device="sim").cpu())


@pytest.mark.parametrize(
    "mix",
    [
        lambda: torch.ones(3, device="sim") + torch.ones(3),
        lambda: torch.ones(3, 3, device="sim") @ torch.ones(3, 3),
        lambda: F.linear(torch.ones(2, 3), torch.ones(4, 3, device="sim")),
        lambda: torch.where(torch.ones(3, dtype=torch.bool), torch.ones(3, device="sim"), 0.0),
        lambda: F.embedding(torch.tensor([1]), torch.ones(3, 2, device="sim")),
        lambda: torch.ones(3, device="sim:0") + torch.ones(3, device="sim:1"),
    ],
)
def test_tensors_of_different_devices_do_not_mix(mix):
    with pytest.raises(RuntimeError, match="at least two devices"):
        mix()


def test_memory_that_an_operation_makes_is_on_the_device_of_its_tensor():
    made = torch.arange(3, device="sim:1")  # an empty output, resized by the operation
    assert made.device == made[:, None].device == (made[:, None] * 2).device == torch.device("sim:1")


def test_the_host_cannot_read_its_memory():
    with pytest.raises(TypeError, match="convert"):
        torch.ones(3, device="sim").numpy()


def test_optimizers_vmap_autocast_copies_and_files():
    parameter = nn.Parameter(torch.ones(3, device="sim"))
    parameter.grad = torch.ones(3, device="sim")
    torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.0).step()
    torch.testing.assert_close(parameter.detach().cpu(), torch.full((3,), 0.9))
    sums = torch.func.vmap(lambda x: x.sum())(torch.ones(3, 4, device="sim"))
    assert sums.tolist() == [4.0, 4.0, 4.0]
    with torch.autocast("sim", dtype=torch.bfloat16):
        assert (torch.ones(2, 2, device="sim") @ torch.ones(2, 2, device="sim")).dtype is torch.bfloat16
        assert F.softmax(torch.ones(2, 2, device="sim"), -1).dtype is torch.float32
    file = io.BytesIO()
    torch.save({"a": torch.arange(3.0, device="sim")}, file)
    file.seek(0)
    loaded = torch.load(file)["a"]
    assert loaded.device == torch.device("sim:0")
    assert loaded.tolist() == [0.0, 1.0, 2.0]
    assert copy.deepcopy(nn.Linear(2, 2).to("sim")).double().weight.device == torch.device("sim:0")


def test_launches_copies_and_waits_are_counted_with_their_callers():
    x = torch.arange(10.0).to("sim")
    with sim.counting() as cost:
        y = x * 2 + 1
        y.sum().item()
        y[y > 5].cpu()
        torch.ones(8).to("sim")
    assert cost["item"] == 1
    assert cost["to_host"] == 1
    assert cost["to_device"] == 1
    assert cost["to_device_bytes"] == 32
    assert cost.waits == 4
    assert cost.launches == 6  # multiply, add, sum, compare, the index by a mask, and the fill of ones is the host's
    assert all("check_the_simulator.py" in where for _, _, where in cost.sites)


def test_a_list_of_tensors_is_one_launch():
    tensors = [torch.ones(3, device="sim") for _ in range(5)]
    with sim.counting() as cost:
        torch._foreach_mul_(tensors, 2.0)
    assert cost.launches == 1
    assert tensors[4].tolist() == [2.0, 2.0, 2.0]


def test_an_asynchronous_copy_waits_for_nobody_and_its_source_must_be_left_alone():
    pinned = torch.arange(4.0).pin_memory()
    with sim.counting() as cost:
        there = pinned.to("sim", non_blocking=True)
    assert cost.waits == 0
    assert cost["to_device_async"] == 1
    assert cost["to_device_async_bytes"] == 16
    with sim.counting() as cost:
        pinned.fill_(0)
        torch.sim.synchronize()
    assert cost["overwritten_in_flight"] == 1
    assert there.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_what_is_copied_to_the_host_asynchronously_is_there_after_the_next_wait():
    target = torch.zeros(3).pin_memory()
    target.copy_(torch.ones(3, device="sim"), non_blocking=True)
    assert np.isnan(target.numpy()).all()
    torch.sim.synchronize()
    assert target.tolist() == [1.0, 1.0, 1.0]


def test_products_round_as_tf32_only_where_pytorch_allows_it():
    a = torch.full((1, 1), 1 + 2**-12, device="sim")
    try:
        with sim.switches(tf32=True):
            torch.backends.cuda.matmul.allow_tf32 = True
            assert (a @ torch.ones(1, 1, device="sim")).item() == 1.0
            torch.backends.cuda.matmul.allow_tf32 = False
            assert (a @ torch.ones(1, 1, device="sim")).item() == 1 + 2**-12
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_sums_in_no_order_differ_and_deterministic_algorithms_hold_them():
    x, index = torch.randn(40, 3, device="sim"), torch.zeros(40, dtype=torch.long, device="sim")

    def sums():
        return {tuple(torch.zeros(4, 3, device="sim").index_add_(0, index, x).flatten().tolist()) for _ in range(6)}

    with sim.switches(unordered=True):
        assert len(sums()) > 1
        torch.use_deterministic_algorithms(True)
        try:
            assert len(sums()) == 1
        finally:
            torch.use_deterministic_algorithms(False)


def test_rounding_by_shape_depends_on_the_batch_and_on_nothing_else():
    torch.manual_seed(0)
    x, w = torch.randn(6, 4, device="sim"), torch.randn(4, 5, device="sim")
    with sim.switches(round_by_shape=True):
        assert torch.equal((x @ w).cpu(), (x @ w).cpu())
        assert not torch.equal((x @ w)[:3].cpu(), (x[:3] @ w).cpu())
    torch.testing.assert_close((x @ w)[:3].cpu(), (x[:3] @ w).cpu())


def test_without_float64_it_says_so_as_mps_does():
    with sim.switches(no_float64=True), pytest.raises(TypeError, match="doesn't support float64"):
        torch.ones(3, device="sim").double()


def test_streams_and_events_have_the_usual_interface():
    stream = torch.Stream("sim")
    with stream:
        event = stream.record_event()
    event.synchronize()
    assert event.query()
