"""Compares training on the CPU and on a GPU, and measures what a lot costs there.

    python -m bench.gpu                                   # one device
    torchrun --nproc-per-node 2 -m bench.gpu              # one rank a device, NCCL

Nothing of this was run by us: there was no GPU. Please send what it prints, whatever that is. Noise is made on the CPU and
copied to the device, lots are moved there chunk by chunk, and a lot is waited for a few times (norms that are not finite,
the agreement of the ranks).
"""

from __future__ import annotations

import json
import os
import time
from statistics import median

import torch
import torch.distributed as dist

import sordino as sd
from bench.scale import LOT, RECORDS, losses, network, records
from sordino.distributed.process_group import Ranks


def train_on(device: torch.device, lots: int = 20) -> tuple[torch.Tensor, float]:
    """Returns the parameters after a few lots, and the seconds of one lot."""
    model = network().to(device)
    mesh = None if dist.is_initialized() else Ranks()
    run = sd.Private(model, losses, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), seed=0, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    taken = []
    for lot in run.draws(records(), sd.Poisson(LOT / RECORDS), lots, expected_batch=LOT, physical_batch=32):
        began = time.perf_counter()
        run.backward(lot)
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - began)
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().cpu(), median(taken[5:])


def main() -> None:
    """Trains on both devices and prints the comparison."""
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing to measure")  # noqa: T201
        return
    if "RANK" in os.environ:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl")
    device = torch.device("cuda", torch.cuda.current_device())
    there, seconds = train_on(device)
    result = {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "ranks": dist.get_world_size() if dist.is_initialized() else 1,
        "lot_ms": round(1e3 * seconds, 2),
    }
    if not dist.is_initialized():
        here, slower = train_on(torch.device("cpu"))
        far = float((here - there).norm() / here.norm())
        result |= {"cpu_lot_ms": round(1e3 * slower, 2), "relative_difference": far}
    print(json.dumps(result))  # noqa: T201


if __name__ == "__main__":
    main()
