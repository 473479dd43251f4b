"""A run of a model that `fully_shard` divides, as a user writes one that must outlive its processes.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=… MASTER_PORT=… python -m tests.distributed.divided_run FOLDER STEPS

Every few steps all ranks write a checkpoint together (torch.distributed.checkpoint); begun again, by any number of ranks,
the run goes on from the last one that is whole. The first rank enters a step on its disk before anyone draws it, and
the parameters that the step came to.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import sordino as sd
from sordino.distributed.process_group import Ranks
from tests.distributed.jobs import digest, engine, sharded
from tests.problems import cross_entropy, linear

EVERY = 7
"""Steps between checkpoints."""
STEPS_FILE = "steps.txt"
_WHOLE = ".metadata"  # torch writes it last


def train(ranks: Ranks, folder: str, steps: int, layered: bool = False) -> None:
    """From the last checkpoint in the folder, if there is one, to the last step."""
    torch.manual_seed(0)
    model = sharded(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2)), ranks)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    saved = ranks.broadcast_from_first(_last(Path(folder)))
    if saved is not None:
        of_model, of_optimizer = get_state_dict(model, optimizer)
        dcp.load({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=saved, process_group=ranks.group)
        set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
    query = sd.NoisySum(sd.AdaptiveQuantile(1.0, 0.5, 2.0), sd.Gaussian(1.0))
    private = sd.Private(model, cross_entropy, query, seed=0, mesh=ranks, backend=engine(layered))
    run = sd.InCheckpoint(private, sd.Replay("the same script, data and machine, from a checkpoint of its own"))
    if saved is not None:
        dcp.load({"private": run}, checkpoint_id=saved, process_group=ranks.group)
    lots = private.draws(linear(60), sd.Poisson(0.2), steps - private.steps, expected_batch=12, physical_batch=4)
    for step in range(private.steps, steps):
        _enter(ranks, Path(folder), step, "drawn")
        private.backward(next(lots))
        optimizer.step()
        _enter(ranks, Path(folder), step, digest(model))
        if private.steps % EVERY == 0:
            of_model, of_optimizer = get_state_dict(model, optimizer)
            state = {"model": of_model, "optimizer": of_optimizer, "private": run}
            dcp.save(state, checkpoint_id=str(Path(folder) / str(private.steps)), process_group=ranks.group)
    lots.close()


def _enter(ranks: Ranks, folder: Path, step: int, said: str) -> None:
    """One line on the first rank's disk; when this returns it is there, and all ranks know."""
    if ranks.rank == 0:
        with (folder / STEPS_FILE).open("a") as entered:
            print(step, said, file=entered, flush=True)
            os.fsync(entered.fileno())
    ranks.broadcast_from_first(step)


def _last(folder: Path) -> str | None:
    """The last checkpoint that all ranks have written to the end."""
    whole = [int(found.parent.name) for found in folder.glob(f"*/{_WHOLE}")]
    return str(folder / str(max(whole))) if whole else None


def reached(folder: Path) -> int:
    """The last step that was entered before it was drawn."""
    return max((int(step) for step, said in _entered(folder) if said == "drawn"), default=-1)


def came_to(folder: Path) -> dict[int, set[str]]:
    """The parameters that each step came to, every time it was made."""
    found: dict[int, set[str]] = {}
    for step, said in _entered(folder):
        if said != "drawn":
            found.setdefault(int(step), set()).add(said)
    return found


def made(folder: Path) -> int:
    """Steps that were made, those that were made twice counted twice."""
    return sum(said != "drawn" for _, said in _entered(folder))


def _entered(folder: Path) -> list[list[str]]:
    path = folder / STEPS_FILE
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""  # a line cut short was not acted on
    return [line.split() for line in whole.splitlines()]


def alone(environment: Mapping[str, str], folder: str, steps: int, layered: bool = False) -> None:
    """One rank, told by the environment who it is."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    train(Ranks(dist.group.WORLD), folder, steps, layered)
    dist.destroy_process_group()


if __name__ == "__main__":
    alone({}, sys.argv[1], int(sys.argv[2]))
