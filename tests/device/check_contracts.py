"""Every row of the table of contracts on a device: it comes to what the CPU comes to, at the same cost."""

import pytest
import torch
from torch.utils.data import TensorDataset

import sordino as sd
from tests.contracts.hunter import Scripted, network, squared_error
from tests.contracts.row import BACKENDS
from tests.contracts.test_contracts import LOTS, data, unit_of
from tests.contracts.variants import VARIANTS
from tests.device.simulated import move, start
from tests.untested import untested

start()


def train(variant, device, backend):
    """Returns the parameters after four lots on a device, and the event of the run."""
    model = network() if device == "cpu" else move(network())
    query = variant.query()
    private = sd.Private(model, squared_error, query, backend=backend, seed=3, **variant.options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sampler = Scripted(LOTS) if variant.sampler is None else variant.sampler()
    records: TensorDataset = data(variant)
    for lot in private.draws(records, sampler, steps=len(LOTS), unit=unit_of(variant)):
        private.backward(lot)
        optimizer.step()
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()]), private.event


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_row_comes_to_what_the_cpu_comes_to(variant):
    backend = BACKENDS[variant.backends[-1]]
    with untested():
        here, event_here = train(variant, "cpu", backend)
        there, event_there = train(variant, "sim", backend)
    assert event_there == event_here
    torch.testing.assert_close(there, here, rtol=1e-8, atol=1e-8)
