"""Signal to noise of a run, measured while it trains, from released gradients alone.

A released gradient is g̃ = g + z with z ~ N(0, s²) on each of d coordinates and s public. So E‖g̃‖² = ‖g‖² + d s², and

    of a step    √(mean ‖g̃‖² / (d s²) − 1)          over the steps since the last look
    of the run   √(‖Σ g̃‖² / (t d s²) − 1)            over all t steps: what the steps agree on adds up, noise does not

A run walks at random if noise carries it further than what its steps agree on. It is judged once, after a quarter of its
steps: what was found until then is extrapolated to the last one, where it is T/t times as large in the square. With noise
alone the figure of the run is within √(2/d) of 0, in the square, so a run of some hundred coordinates is judged reliably.

The gradients of a run that has learnt stop agreeing: near the optimum they are short and pull back what noise moved, and
the figure falls below 1 though nothing is wrong. So the highest figure so far is kept. Once it has been 1, signal
has carried the parameters further than noise, and the run is never said to walk at random.

Privacy: post-processing of released gradients and public numbers, which costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sordino.ledger.tripwire import find_changed_gradient
from sordino.optim.step_noise import StepNoise

if TYPE_CHECKING:
    from sordino.private import Private

LEAST_STEPS = 10
"""Steps before a run is judged, unless it has fewer."""


class SignalToNoise:
    """Measures how much of a run's steps is signal; call `update()` after every `private.backward`.

        signal = sd.optim.SignalToNoise(private)
        for lot in private.draws(…):
            private.backward(lot)
            signal.update()
            optimizer.step()
        print(signal)

    Args:
        private: the run; its released gradients are read.

    Privacy:
        Only released gradients are read. A gradient that was changed since its release is left out.

    Examples:
        >>> import sordino as sd
        >>> model = torch.nn.Linear(3, 1)
        >>> private = sd.Private(model, lambda m, x: m(x).square().sum(1), sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1)))
        >>> signal = SignalToNoise(private)
        >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3))
        >>> for lot in private.draws(data, sd.Poisson(rate=0.1), steps=2, expected_batch=10):
        ...     losses = private.backward(lot)
        ...     signal.update()
        >>> signal.steps
        2

    """

    def __init__(self, private: Private) -> None:
        self._private = private
        self.steps = 0
        self._sums: dict[str, Tensor] = {}
        self._squares_since, self._steps_since = 0.0, 0
        self._was_judged = False
        self.highest = 0.0
        """The largest signal to noise that the run has had, read after each of its first steps and then after every
        tenth."""

    @torch.no_grad()
    def update(self) -> None:
        """Adds the released gradient of the last lot to the run's signal to noise."""
        named = {name: p for name, p in self._private.trained_parameters().items() if p.grad is not None}
        # A gradient that was changed since its release need not have noise of the public scale s any more.
        if not named or find_changed_gradient(list(named.values())) is not None:
            return
        for name, p in named.items():
            assert p.grad is not None
            total = self._sums.get(name)
            if total is None or total.shape != p.grad.shape:
                self._sums[name] = p.grad.detach().clone()
            else:
                # Sums that were loaded from a file are on the CPU, wherever the gradients are.
                self._sums[name] = total.to(p.grad.device).add_(p.grad)
            self._squares_since += float(torch.linalg.vector_norm(p.grad)) ** 2
        self.steps += 1
        self._steps_since += 1
        # Reading the figure costs a pass over all sums, so after the first steps it is read at every tenth only.
        if self.steps <= LEAST_STEPS or self.steps % LEAST_STEPS == 0:
            self.highest = max(self.highest, self.of_run() or 0.0)

    @property
    def noise(self) -> StepNoise | None:
        """The public noise of a step; None where the query has none of one scale."""
        return self._private.step_noise

    def of_step(self) -> float | None:
        """Returns the signal to noise of the steps since the last call; None where there are none or the noise is not
        known.
        """
        noise, squares, steps = self.noise, self._squares_since, self._steps_since
        self._squares_since, self._steps_since = 0.0, 0
        return None if noise is None or not steps else ratio_to_noise(squares / steps, noise.length**2)

    def of_run(self) -> float | None:
        """Returns the signal to noise of all steps so far; None where there are none or the noise is not known."""
        noise = self.noise
        if noise is None or not self.steps:
            return None
        return ratio_to_noise(self._square_of_sum(), self.steps * noise.length**2)

    def finds_random_walk(self) -> bool:
        """Returns True once, at the step at which the signal to noise shows that a run walks at random; False at every
        other step.

        A run is judged once, after a quarter of its steps and at least ten, or at its last one.
        """
        noise = self.noise
        if self._was_judged or noise is None or self.steps < min(noise.steps, max(LEAST_STEPS, noise.steps // 4)):
            return False
        # Judged only once: a threshold that is tested at every step would be crossed by chance in some run.
        self._was_judged = True
        run = self.of_run()
        # A run that signal has carried further than noise has learnt, even if it has settled since. With few coordinates
        # noise alone may reach 1, so the square has to be above 1 by four deviations of noise.
        if run is None or self.highest**2 >= 1 + 4 * math.sqrt(2 / noise.coordinates):
            return False
        # At the last step the square of the figure will be steps / (steps so far) times as large.
        return run**2 * noise.steps / self.steps < 1

    def warning(self) -> str:
        """Returns what a run whose signal to noise shows a random walk is told, with what to change."""
        run, noise = self.of_run(), self.noise
        if run is None or noise is None:
            return ""
        return "\n".join(
            [
                f"After {self.steps} of {noise.steps} steps this run only walks at random: signal to noise is {run:.2g}, "
                "measured on released gradients.",
                "To change that:",
                *(f"  - {change}" for change in noise.list_changes()),
            ]
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns the sums and counts of the signal to noise so far; all of them are made of released gradients."""
        return {
            "steps": self.steps,
            "sums": {name: total.clone() for name, total in self._sums.items()},
            "since": [self._squares_since, self._steps_since],
            "was_judged": self._was_judged,
            "highest": self.highest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues a saved signal to noise."""
        self.steps, self._was_judged = int(state["steps"]), bool(state["was_judged"])
        self._sums = {name: total.clone() for name, total in state["sums"].items()}
        self._squares_since, self._steps_since = float(state["since"][0]), int(state["since"][1])
        # Checkpoints of 0.3.0 do not hold the highest figure.
        self.highest = float(state.get("highest", self.of_run() or 0.0))

    def __repr__(self) -> str:
        run = self.of_run()
        return f"SignalToNoise({'unknown' if run is None else f'{run:.2g}'} over {self.steps} steps)"

    def _square_of_sum(self) -> float:
        return math.fsum(float(torch.linalg.vector_norm(total)) ** 2 for total in self._sums.values())


def ratio_to_noise(square: float, noise_square: float) -> float:
    """Returns √(square / noise² − 1), and 0 where noise alone would be longer."""
    return math.sqrt(max(0.0, square / noise_square - 1))


def figures_by_layer(sums: Mapping[str, Tensor], steps: int, deviation: float) -> dict[str, float]:
    """Returns the signal to noise of each layer over all steps, from the sums of released gradients by parameter.

    A layer is a module with parameters of its own, such as `encoder.0`. With noise alone the square of a figure of d
    coordinates is within 2 √(2/d) of 0 in 95 of 100 layers; what is below that is told as 0.

    >>> noise = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    >>> figures = figures_by_layer({"a.weight": noise, "b.weight": noise + 3}, steps=1, deviation=1.0)
    >>> figures["a"], figures["b"] > 2
    (0.0, True)
    """
    squares: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name, total in sums.items():
        # Weight and bias of a module count together: noise is alike on all coordinates, so squares and counts add.
        layer = name.rpartition(".")[0]
        squares[layer] = squares.get(layer, 0.0) + float(torch.linalg.vector_norm(total)) ** 2
        counts[layer] = counts.get(layer, 0) + total.numel()
    figures = {}
    for layer, square in squares.items():
        # Of t sums of noise on d coordinates the squared length is t d s² in expectation.
        figure = ratio_to_noise(square, steps * counts[layer] * deviation**2)
        figures[layer] = figure if figure**2 > 2 * math.sqrt(2 / counts[layer]) else 0.0
    return figures
