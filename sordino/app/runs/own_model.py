"""Builds a model from a user's own file: `net.py:build` names the function `build` of net.py.

The function is called with the shape of one record and the number of classes, or of numbers to predict.

Privacy: the function sees no record. Its file is part of what defines a run: if the file has changed, the run does not
go on.
"""

from __future__ import annotations

import hashlib
import runpy
from collections.abc import Sequence
from pathlib import Path

from torch import nn

FILE_MARK = ".py:"


def build_from_file(model: str, shape: Sequence[int], classes: int) -> nn.Module:
    """Runs the file and returns the model that its function builds."""
    # The file is the user's own code and may raise anything, so every error becomes a message that names the file.
    path, name = _split_name(model)
    try:
        build = runpy.run_path(str(path)).get(name)
    except Exception as error:  # a stranger's code may raise anything
        raise ValueError(f"model={model!r}: {path.name} cannot be run ({type(error).__name__}: {error})") from error
    if not callable(build):
        raise ValueError(
            f"model={model!r}: {path.name} has no function {name!r}; need one of the shape and the classes"
        )
    try:
        model_built = build(tuple(shape), classes)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"model={model!r}: {name}({tuple(shape)}, {classes}) failed ({said})") from error
    if not isinstance(model_built, nn.Module):
        raise ValueError(f"model={model!r}: {name} gave a {type(model_built).__name__}; need a torch.nn.Module")
    return model_built


def file_digest(model: str) -> str | None:
    """Returns the SHA-256 of the file that a model comes from, or None if it comes from none."""
    return hashlib.sha256(_split_name(model)[0].read_bytes()).hexdigest() if FILE_MARK in model else None


def with_absolute_path(model: str) -> str:
    """Returns the name of the model with an absolute path, so that a run finds the file from any folder."""
    if FILE_MARK not in model:
        return model
    path, name = _split_name(model)
    return f"{path.absolute()}:{name}"


def _split_name(model: str) -> tuple[Path, str]:
    """Returns the path and the function name; raises if the file does not exist."""
    file, _, name = model.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"model={model!r}: {file} is not there; need FILE.py:FUNCTION")
    return path, name
