"""Small models that the tests of the engine share."""

from __future__ import annotations

from torch import Tensor, nn


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


class Net(nn.Module):
    """A model from its forward function and its layers."""

    def __init__(self, run, **layers: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(self, *inputs)
