"""Logging of what may be logged: ε so far, the learning rate, the released gradient's length.

    log = Log.tensorboard("runs/log")          # or Log.wandb(project="…"), Log.mlflow(), Log(print)
    for lot in private.draws(…):
        private.backward(lot)
        log.step(private, optimizer, delta=1e-5)
        optimizer.step()
    log.end(private, delta=1e-5)               # ε of the last step, too

    privacy/epsilon  privacy/delta  train/learning_rate  train/gradient_norm  train/loss (where `WithLoss` released one)
    train/signal_to_noise (the released gradient's length against that of its noise, where that has one public scale)

Privacy: every value is public or was released. A gradient that was not released, and an ε of a run that has no
guarantee, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from sordino import validate
from sordino.integrations.missing_library import NotInstalled
from sordino.ledger.claims import Guarantee
from sordino.ledger.tripwire import find_changed_gradient
from sordino.private import Private
from sordino.refusal import Refusal

Write = Callable[[Mapping[str, float], int], Any]
"""Takes the values by name, and the step."""


@dataclass(frozen=True)
class Log:
    """Hands values to `write`; ε, which takes some ten milliseconds, every `every` steps.

    Args:
        write: takes a dict of values and a step; `Log.tensorboard`, `Log.wandb` and `Log.mlflow` make one.
        every: steps between two values of ε.

    Privacy:
        Only public and released values are handed on; see the table in the how-to about logging.

    Examples:
        >>> import torch, sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> private = sd.Private(model, lambda model, x: model(x).square().sum(1), query)
        >>> log = sd.Log(lambda values, step: print(step, sorted(values)))
        >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3))
        >>> private.backward(next(private.draws(data, sd.Poisson(rate=0.1), steps=1, expected_batch=10)))
        Sealed(…)
        >>> log.step(private, optimizer, delta=1e-5)
        1 ['privacy/delta', 'privacy/epsilon', 'train/gradient_norm', 'train/learning_rate', 'train/signal_to_noise']

    """

    write: Write
    every: int = 10

    def __post_init__(self) -> None:
        if not callable(self.write):
            raise TypeError(
                f"write={self.write!r}: must take a dict of values and a step, or use Log.tensorboard(folder)"
            )
        validate.count("every", self.every)

    @classmethod
    def tensorboard(cls, folder: str, every: int = 10) -> Log:
        """Returns a log that writes into a folder that TensorBoard reads."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise NotInstalled("tensorboard", "tensorboard") from error
        writer = SummaryWriter(folder)

        def write(values: Mapping[str, float], step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        return cls(write, every)

    @classmethod
    def wandb(cls, every: int = 10, **settings: Any) -> Log:
        """Returns a log that writes into the current run of W&B, or into a new one with these settings."""
        try:
            import wandb
        except ImportError as error:
            raise NotInstalled("wandb", "wandb") from error
        run = wandb.run if wandb.run is not None and not settings else wandb.init(**settings)
        return cls(lambda values, step: run.log(dict(values), step=step), every)

    @classmethod
    def mlflow(cls, every: int = 10) -> Log:
        """Returns a log that writes into the current run of MLflow, which it begins where there is none."""
        try:
            import mlflow
        except ImportError as error:
            raise NotInstalled("mlflow", "mlflow") from error
        return cls(lambda values, step: mlflow.log_metrics(dict(values), step=step), every)

    def step(self, private: Private, optimizer: Optimizer, *, delta: float) -> None:
        """Logs one step of a private run (ε, learning rate, released gradient's length); call it after
        `private.backward`, before or after the optimizer's step.
        """
        number = private.steps
        values = {"train/learning_rate": float(optimizer.param_groups[0]["lr"])}
        # The length of a released gradient is post-processing; that of any other would be a release of its own.
        norm = _released_norm(optimizer)
        if norm is not None:
            values["train/gradient_norm"] = norm
            noise = private.step_noise
            if noise is not None:
                # E‖g̃‖² = ‖g‖² + d s², solved for ‖g‖ / (s√d); noise shorter than expected counts as 0.
                values["train/signal_to_noise"] = math.sqrt(max(0.0, (norm / noise.length) ** 2 - 1))
        with suppress(Refusal):  # no query released one
            if private.loss is not None:
                values["train/loss"] = private.loss
        # The first step as well, so that a curve of ε begins where the run does.
        if number % self.every == 0 or number == 1:
            values |= _epsilon_values(private.spent_epsilon(delta), delta)
        self.write(values, number)

    def end(self, private: Private, *, delta: float) -> None:
        """Logs ε of the complete run, whatever step the run ended at; nothing, if the run has no guarantee."""
        claim = private.claim(delta)
        if isinstance(claim, Guarantee):
            self.write(_epsilon_values(claim.epsilon, delta), private.steps)


def _epsilon_values(epsilon: float | None, delta: float) -> dict[str, float]:
    return {} if epsilon is None else {"privacy/epsilon": epsilon, "privacy/delta": delta}


def _released_norm(optimizer: Optimizer) -> float | None:
    """Returns the length of the released gradient for the log; None where one of the gradient's tensors was not
    released.
    """
    held = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not held or find_changed_gradient(held) is not None:
        return None
    # In float64, and joined by hypot: neither the squares of a tensor nor their sum over tensors can overflow.
    return math.hypot(*(float(torch.linalg.vector_norm(p.grad, dtype=torch.float64)) for p in held))
