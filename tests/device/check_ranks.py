"""Ranks whose model is on a device: over gloo, which sends tensors of the host alone, they have the bits of one process."""

import os
import subprocess
import sys

import pytest

PATIENCE = 240

_TRAIN = """
import os, sys, torch
import torch.distributed as dist
from tests.device.simulated import move, start
start()
import sordino as sd
from sordino.app.runs.write_ahead import parameter_digest
from sordino.distributed.shared_lot import Disagreement
from tests.device.zoo import ZOO
rank, size, store, name, device = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6]
torch.set_num_threads(1)
if size > 1:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
torch.manual_seed(0)
model, data, loss_fn = ZOO[name]()
move(model, device)
try:
    mesh = None if size > 1 else "single"
    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), seed=3, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for lot in private.draws(data, sd.Poisson(0.2), steps=3, physical_batch=8):
        optimizer.zero_grad()
        private.backward(lot)
        optimizer.step()
    claim = private.claim(1e-5)
    assert isinstance(claim, sd.Guarantee), claim
    print("found", parameter_digest(model), claim.epsilon, flush=True)
except (sd.Refusal, Disagreement) as refusal:
    print("refused", refusal, flush=True)
os._exit(0)
"""


def train(size, store, name="mlp_dropout", devices=("sim", "sim:1")):
    """Trains by so many processes, each with its model on a device, and returns what each printed last."""
    started = []
    for rank in range(size):
        command = [sys.executable, "-W", "ignore", "-c", _TRAIN, str(rank), str(size), str(store), name, devices[rank]]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, text=True, env=dict(os.environ), **pipes))
    texts = [process.communicate(timeout=PATIENCE) for process in started]
    assert all(printed for printed, _ in texts), texts
    return [printed for printed, _ in texts]


def test_two_ranks_over_gloo_have_the_bits_and_the_claim_of_one_process(tmp_path):
    (alone,) = train(1, tmp_path / "one")
    assert alone.startswith("found")
    assert train(2, tmp_path / "two") == [alone, alone]


@pytest.mark.slow
def test_ranks_whose_models_are_on_different_kinds_of_devices_are_refused_before_anything_is_drawn(tmp_path):
    printed = train(2, tmp_path / "store", devices=("sim", "cpu"))
    assert all(text.startswith("refused") and "kind of the model's device" in text for text in printed), printed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2_dropout", "cnn_dropout", "lstm_dropout"])
def test_larger_models_have_the_same_bits_on_two_ranks_too(name, tmp_path):
    (alone,) = train(1, tmp_path / "one", name)
    assert train(2, tmp_path / "two", name) == [alone, alone]
