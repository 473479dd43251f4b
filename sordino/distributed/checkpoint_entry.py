"""Checkpoint entry: a run as one entry of a checkpoint that all ranks write together.

The checkpoint is one of `torch.distributed.checkpoint`:

    state = {"model": model_state, "optimizer": optimizer_state, "private": sd.InCheckpoint(private)}
    dcp.save(state, checkpoint_id=folder)          # on two ranks
    dcp.load(state, checkpoint_id=folder)          # on three, or on one

Model and optimizer are cut to the pieces that other ranks will hold by torch. Of a run nothing is to be cut: its state is
the same on every rank and does not know how many there were. So it goes in as one entry, which the first rank writes;
taken apart into the entries of its dict, tensors of a query's state that a new run does not have yet would not be loaded.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from sordino.replay import Replay

_ENTRY = "run"


class SavesState(Protocol):
    """A run: `sd.Private`."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the run's state, which is the same on every rank."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], *, replay: Replay | None = None) -> None:
        """Continues the run from a saved state."""
        ...


class InCheckpoint:
    """A run in a checkpoint of torch.distributed; loaded without a `Replay` it goes on with a new key, as always.

    Privacy: what is written does not hold the key of the noise. A `Replay` brings it, from `private.save_secret`.

    Example:
        >>> import sordino as sd
        >>> model = torch.nn.Linear(2, 1)
        >>> private = sd.Private(model, lambda m, x: m(x).square().sum(1), sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
        >>> entry = sd.InCheckpoint(private).state_dict()  # beside model and optimizer in what dcp.save is given
        >>> sd.InCheckpoint(private).load_state_dict(entry)

    """

    def __init__(self, private: SavesState, replay: Replay | None = None) -> None:
        self._private, self._replay = private, replay

    def state_dict(self) -> dict[str, Any]:
        """Returns the run as one entry of a checkpoint that all ranks write: the bytes of a file as torch.save writes
        it.
        """
        file = io.BytesIO()
        torch.save(self._private.state_dict(), file)
        return {_ENTRY: file.getvalue()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues the run from the entry."""
        loaded = torch.load(io.BytesIO(state[_ENTRY]), weights_only=True, map_location="cpu")
        self._private.load_state_dict(loaded, replay=self._replay)
