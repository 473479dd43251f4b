"""Prepares a recipe or a run directory for a selftest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
from torch.utils.data import TensorDataset

from sordino.app.runs.directory import CONFIG, MODEL, Run
from sordino.app.runs.job import Job, assemble_job
from sordino.app.runs.settings import make_settings, read_config
from sordino.auditing.selftest_subject import Pieces


def load_job(recipe_or_folder: str | Path, given: Mapping[str, Any] | None = None, device: str | None = None) -> Job:
    """Returns the job of the run to be audited: of a run directory, with its noise and steps as they were, or of a
    recipe by its name.

    `given` changes fields; the noise is then calibrated again. `device` is where the job computes, in place of the
    run's own.
    """
    folder = Path(recipe_or_folder)
    # What is no directory is the name of a recipe; there is no earlier noise to keep, so it is calibrated here.
    if not folder.is_dir():
        named = {**(given or {}), **({} if device is None else {"device": device})}
        return assemble_job(make_settings(str(recipe_or_folder), named, {}), lambda _: None)
    config = read_config(Run.open(folder).folder / CONFIG)
    settings = config.to_settings()
    # The device changes where is computed, not what: noise and steps of the run stay valid.
    if device is not None:
        settings = replace(settings, options=replace(settings.options, device=device))
    # An unchanged run keeps the noise and the steps that it was trained with, so the audit is of the run as it was.
    if not given:
        return assemble_job(settings, lambda _: None, config.resolved)
    changes = {**dict(vars(settings.options)), **given}
    return assemble_job(
        make_settings(settings.recipe, changes, dict(settings.parameters), own=settings.own), lambda _: None
    )


def load_pieces(recipe_or_folder: str | Path, device: str | None = None) -> tuple[Pieces, TensorDataset]:
    """Returns what a selftest audits of a run and on which records; for a finished run, with the network it
    ended with.
    """
    job = load_job(recipe_or_folder, device=device)
    problem = job.problem
    path = Path(recipe_or_folder) / MODEL
    if path.is_file():
        problem.model.load_state_dict(safetensors.torch.load(path.read_bytes()))
    pieces = Pieces(
        problem.model, problem.loss_fn, job.create_query(), job.sampler, job.create_penalty(), job.create_backend()
    )
    return pieces, job.data.train
