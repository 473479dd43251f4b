"""Networks that a run kept, as vectors, and what they say about the test records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from sordino.app.report.evidence import Evidence
from sordino.app.runs.directory import CONFIG, INITIAL, MODEL

Network = Mapping[str, Tensor]

_CHUNK = 2000


def load(path: Path) -> Network | None:
    """The tensors of a file by name; None when there is no such file."""
    if not path.is_file():
        return None
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a network as a run writes it ({error})") from error


def initial(evidence: Evidence) -> Network | None:
    """Before training."""
    return load(evidence.folder / INITIAL)


def final(evidence: Evidence) -> Network | None:
    """After training; None of a run that did not finish."""
    return load(evidence.folder / MODEL)


def alike(one: Network, other: Network) -> bool:
    """Whether they have the same tensors, whatever is in them."""
    return {k: v.shape for k, v in one.items()} == {k: v.shape for k, v in other.items()}


def same(one: Network, other: Network) -> bool:
    """Whether they are equal bit by bit."""
    return alike(one, other) and all(torch.equal(one[name], other[name]) for name in one)


def vector(network: Network) -> Tensor:
    """All floating-point tensors in one row, in float64, in the order of their names."""
    parts = [network[name].double().flatten() for name in sorted(network) if network[name].is_floating_point()]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


class Tested:
    """A run's network and its test records, to ask what a kept network predicts."""

    def __init__(self, evidence: Evidence) -> None:
        from sordino.app.runs import build
        from sordino.app.runs.run_data import run_data
        from sordino.app.runs.settings import read

        settings = read(evidence.folder / CONFIG).settings()
        prepared = run_data(settings.recipe, settings.options.records, lambda text: None, settings.own).prepared
        self.model: nn.Module = build(settings.recipe, prepared, settings.options.init_seed).model.eval()
        self.inputs, self.labels = prepared.test.tensors

    def predictions(self, network: Network) -> Tensor:
        """The class of every test record."""
        self.model.load_state_dict(dict(network))
        self.model.eval()
        with torch.no_grad():
            return torch.cat([self.model(chunk).argmax(dim=1) for chunk in self.inputs.split(_CHUNK)])
