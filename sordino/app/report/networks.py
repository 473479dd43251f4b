"""Loads the networks that a run kept, compares them as vectors, and computes their predictions."""

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


def load_network(path: Path) -> Network | None:
    """Returns the tensors of a network that a run kept, by name, or None if there is no such file."""
    if not path.is_file():
        return None
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a network as a run writes it ({error})") from error


def initial_network(evidence: Evidence) -> Network | None:
    """Returns the network before training."""
    return load_network(evidence.folder / INITIAL)


def final_network(evidence: Evidence) -> Network | None:
    """Returns the network after training, or None for a run that did not finish."""
    return load_network(evidence.folder / MODEL)


def have_same_shapes(one: Network, other: Network) -> bool:
    """Returns whether two networks have tensors of the same names and shapes."""
    return {k: v.shape for k, v in one.items()} == {k: v.shape for k, v in other.items()}


def are_equal(one: Network, other: Network) -> bool:
    """Returns whether two networks are equal bit by bit."""
    return have_same_shapes(one, other) and all(torch.equal(one[name], other[name]) for name in one)


def flatten(network: Network) -> Tensor:
    """Returns all floating-point tensors of a network as one float64 vector, in the order of their names."""
    # Counters are no parameters, so whole numbers are left out.
    parts = [network[name].double().flatten() for name in sorted(network) if network[name].is_floating_point()]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


class TestedNetwork:
    """A run's model and its test records, to compute what a kept network predicts."""

    def __init__(self, evidence: Evidence) -> None:
        from sordino.app.runs import build
        from sordino.app.runs.run_data import load_run_data
        from sordino.app.runs.settings import read_config

        # The model is built as the run built it, and gets the tensors that were kept.
        settings = read_config(evidence.folder / CONFIG).to_settings()
        prepared = load_run_data(settings.recipe, settings.options.records, lambda text: None, settings.own)
        self.model: nn.Module = build(settings.recipe, prepared, settings.options.init_seed).model.eval()
        self.inputs, self.labels = prepared.test.tensors

    def predict(self, network: Network) -> Tensor:
        """Returns the class that a network kept by a run predicts for every test record."""
        self.model.load_state_dict(dict(network))
        self.model.eval()
        with torch.no_grad():
            return torch.cat([self.model(chunk).argmax(dim=1) for chunk in self.inputs.split(_CHUNK)])
