"""An exponential moving average of the weights (Polyak & Juditsky 1992).

De et al. 2022 (arXiv:2204.13650) use it with DP-SGD.

    θ̄ ← d_t θ̄ + (1 − d_t) θ,    d_t = min(decay, (1 + t) / (10 + t))

The noise of single steps averages out, the signal does not. The decay begins small, so that the first steps are
forgotten.

Privacy: post-processing of released parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sordino import validate
from sordino.former_names import former_method
from sordino.ledger.tripwire import post_processing
from sordino.per_sample.protocol import trainable_parameters

_WARMUP = 10
"""d_0 = 1/10, as in De et al. 2022 and TensorFlow's moving averages."""


class Average:
    """The average of a model's trainable parameters; call `update()` after every optimizer step.

    Privacy:
        Post-processing of released parameters: free.

    Examples:
        >>> model = nn.Linear(1, 1)
        >>> average = Average(model, decay=0.999)
        >>> average.update()
        >>> with average.swap_temporarily():
        ...     out = model(torch.zeros(1, 1))  # with the averaged weights

    """

    def __init__(self, model: nn.Module, decay: float, *, warm: bool = True) -> None:
        validate.instance("model", model, nn.Module, "a torch module")
        self._model, self._warm = model, warm
        self.decay = validate.number("decay", decay)
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay={decay!r}: must lie in [0, 1); usual is 0.999 or more")
        self.steps = 0
        self._average: dict[str, Tensor] = {}
        self._follow_new_parameters()

    @torch.no_grad()
    def update(self) -> None:
        """Moves the exponential moving average towards the current parameters."""
        # Layers may have been unfrozen since the last step; their average begins at their weights, not at 0.
        self._follow_new_parameters()
        # d_t = min(decay, (1 + t) / (10 + t))
        decay = min(self.decay, (1 + self.steps) / (_WARMUP + self.steps)) if self._warm else self.decay
        self.steps += 1
        for name, p in trainable_parameters(self._model).items():
            self._average[name].lerp_(p, 1 - decay)

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Writes the moving average of the weights into a model with the same parameters."""
        parameters = dict(model.named_parameters())
        # An average of released weights is post-processing, so the tripwire lets it be written.
        with post_processing(parameters):
            for name, value in self._average.items():
                parameters[name].copy_(value)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchanges the model's parameters and the moving average; doing it twice restores both."""
        parameters = dict(self._model.named_parameters())
        # Both sides are released values, so the tripwire allows the exchange.
        with post_processing(parameters):
            for name, value in self._average.items():
                kept = parameters[name].clone()
                parameters[name].copy_(value)
                value.copy_(kept)

    @contextmanager
    def swap_temporarily(self) -> Iterator[None]:
        """Gives the model the moving average of its weights inside the `with` block, and its own weights again after
        it.
        """
        self.swap()
        try:
            yield
        finally:
            self.swap()

    swapped = former_method("swapped", "swap_temporarily")

    def state_dict(self) -> dict[str, Any]:
        """Returns the average by parameter name, and the number of its updates."""
        return {"steps": self.steps, "average": {name: value.clone() for name, value in self._average.items()}}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues a saved moving average of the weights."""
        parameters = dict(self._model.named_parameters())
        # An average under a name that is gone would break the first swap, so it is refused before anything changes.
        unknown = sorted(set(state["average"]) - set(parameters))
        if unknown:
            raise ValueError(f"an average of parameters the model does not have: {', '.join(unknown)}")
        self.steps = int(state["steps"])
        self._average = {name: value.to(parameters[name], copy=True) for name, value in state["average"].items()}

    def _follow_new_parameters(self) -> None:
        """Begins the moving average of parameters that have become trainable, from their current values."""
        for name, p in trainable_parameters(self._model).items():
            if name not in self._average:
                self._average[name] = p.detach().clone()
