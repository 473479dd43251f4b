"""Prepares a recipe or a run directory for a selftest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch.utils.data import TensorDataset

from sordino.app.runs.directory import CONFIG, MODEL, Run
from sordino.app.runs.job import Job, assemble
from sordino.app.runs.settings import read, settle
from sordino.auditing.selftest_subject import Pieces


def job_of(what: str | Path, given: Mapping[str, Any] | None = None) -> Job:
    """Returns the job of a run directory, with its noise and steps as they were, or of a recipe by its name.

    `given` changes fields; the noise is then calibrated again.
    """
    folder = Path(what)
    if not folder.is_dir():
        return assemble(settle(str(what), given or {}, {}), lambda _: None)
    config = read(Run.open(folder).folder / CONFIG)
    settings = config.settings()
    if not given:
        return assemble(settings, lambda _: None, config.resolved)
    changes = {**dict(vars(settings.options)), **given}
    return assemble(settle(settings.recipe, changes, dict(settings.parameters), own=settings.own), lambda _: None)


def pieces_of(what: str | Path) -> tuple[Pieces, TensorDataset]:
    """Returns what is tested and on which records; for a finished run, with the network it ended with."""
    job = job_of(what)
    problem = job.problem
    path = Path(what) / MODEL
    if path.is_file():
        problem.model.load_state_dict(safetensors.torch.load(path.read_bytes()))
    pieces = Pieces(problem.model, problem.loss_fn, job.query(), job.sampler, job.penalty(), job.backend())
    return pieces, job.data.prepared.train
