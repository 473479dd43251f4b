"""Keeps the model with the lowest loss on public validation records, and says when to stop.

    history = sordino.fit(model, data, epsilon=3.0, public_validation=(x, y), patience=5)

After every evaluation the loss on the validation records is compared with the lowest one so far. The model of that
evaluation is the one that a run ends with. With a patience, a run takes no more steps once so many evaluations in a row
brought no lower loss.

Privacy: the models are releases and the validation records are public by the user's declaration, which the claim names, so
choosing among the models is post-processing. When to stop is chosen by what was released. A claim about the steps taken
until then would need a theorem for stopping times (Rogers et al. 2016, arXiv:1605.08294, give one at a price), so the steps
that are left are charged as well: stopping early saves time, and the claim is the one that was planned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

PUBLIC_VALIDATION = "the validation records are public, by declaration: by their loss the model was kept"


class BestModel:
    """The parameters of the best evaluation so far, and how many evaluations there were since."""

    def __init__(self, patience: int | None = None) -> None:
        self.patience = patience
        self.loss, self.step, self.evaluations_since = math.inf, -1, 0
        self.parameters: dict[str, Tensor] = {}

    def update(self, model: nn.Module, loss: float, step: int) -> None:
        """Keeps a copy of the model's parameters if its loss on the validation records is the lowest so far."""
        if loss >= self.loss:
            self.evaluations_since += 1
            return
        self.loss, self.step, self.evaluations_since = loss, step, 0
        self.parameters = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @property
    def has_stopped_improving(self) -> bool:
        """Whether as many evaluations as the patience allows brought no lower loss."""
        return self.patience is not None and self.evaluations_since >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Returns the parameters and the loss of the best model so far, for a checkpoint."""
        # JSON has no infinity: before the first evaluation there is no loss.
        loss = self.loss if math.isfinite(self.loss) else None
        counts = {"loss": loss, "step": self.step, "evaluations_since": self.evaluations_since}
        return {**counts, "parameters": dict(self.parameters)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the best model so far from what `state_dict` returned."""
        self.loss = math.inf if state["loss"] is None else float(state["loss"])
        self.step, self.evaluations_since = int(state["step"]), int(state["evaluations_since"])
        self.parameters = dict(state["parameters"])
