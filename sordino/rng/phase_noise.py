"""The independent noise vectors of one phase, from which correlated noise is made.

Vector t of a phase is draw t of a stream of its own, so it is a function of (key, phase, t, coordinate). It can be made
again at any later step, by any rank, at its own coordinates; nothing needs to be stored or saved.

Privacy: "noise is used once" becomes "step t of a phase is released once". Vector t is part of the noise of many steps,
as the theorem has it, but the noise of step t itself hides one sum only. A second release at a step, a release at a
step that was not drawn, and a phase that goes on in a forked process, which has another key, are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sordino.refusal import Refusal
from sordino.rng.streams import Rng


class PhaseNoise:
    """The noise of one phase: a stream, the step that was drawn last, and what its strategy keeps.

    Args:
        stream: used for this phase and for nothing else.
        steps: how many steps the phase was charged for.

    """

    def __init__(self, stream: Rng, steps: int) -> None:
        # Where the phase is, and what it must not change while it lasts.
        self._stream = stream
        self.steps = steps
        self.step = -1
        """The step that was drawn last; a step that is drawn and left out counts."""
        self._released = -1
        self.scale: float | None = None
        """What the noise was in proportion to at the first release."""
        self.layout: str | None = None
        """How many coordinates were released in which type, and by which strategy."""
        self.kept: Any = None
        """What the strategy keeps between steps. It is as secret as the key, and is made again from it after a resume."""

    def draw_step(self, step: int) -> None:
        """Goes on to a step of the phase's noise, at which one release may follow."""
        if not self.step < step < self.steps:
            raise Refusal(
                f"step {step} of a phase of {self.steps} steps, after step {self.step}: noise that is correlated between "
                "steps goes forward only.\nCall draws() again for a new phase, which is charged in full."
            )
        self.step = step

    def take_step(self, scale: float, layout: str) -> int:
        """Returns the step of the phase whose noise is released now, and marks it as released.

        Raises:
            Refusal: if nothing was drawn, if the step was released before, or if the bound, the coordinates or the
                strategy are others than at earlier steps.

        """
        # One release per step: two sums behind the same noise would show their difference exactly.
        if self.step < 0 or self.step == self._released:
            raise Refusal(
                f"a second release at step {self.step}: under correlated noise a step is released once, because both "
                "sums would hide behind the same noise.\nCall backward() once for every lot, with a query that asks once."
            )
        # Later noise cancels earlier noise only if both have the same scale and the same coordinates.
        if self.scale is not None and abs(scale - self.scale) > _SAME_SCALE * self.scale:
            raise Refusal(
                f"the clipping bound changed within a phase: the noise was in proportion to {self.scale:g}, and would "
                f"be to {scale:g}.\nLater noise would no longer cancel earlier noise. Use a constant bound, or another "
                "call of draws() for another bound."
            )
        if self.layout is not None and layout != self.layout:
            raise Refusal(
                f"{layout} were released within a phase that released {self.layout}: its noise could not go on.\n"
                "Freeze or add parameters between two calls of draws(), each of which is a phase of its own."
            )
        self.scale, self.layout, self._released = self.scale or scale, layout, self.step
        return self.step

    def vector(self, step: int, total: int, stretches: Sequence[tuple[int, int]], dtype: torch.dtype) -> Tensor:
        """Returns the independent N(0, 1) values of a step of the phase's noise at these stretches of `total`
        coordinates.
        """
        self._refuse_in_fork()
        # The counter is set to the step, so the vector of any step can be made again at any time.
        self._stream.counter = step
        return self._stream.normals_at(total, stretches, 1.0, dtype)

    def key_of_vectors(self) -> bytes:
        """Returns the key of the phase's stream and eight bytes for a step's number, for the compiled kernel."""
        self._refuse_in_fork()
        return self._stream.key_stream_of(0).key_and_number()

    def _refuse_in_fork(self) -> None:
        """Raises Refusal to make a phase's noise in a forked process, whose stream has another key than the phase began
        with.
        """
        if self._stream.was_forked:
            raise Refusal(
                "a phase of correlated noise went on in a forked process, which has another key: the noise of its earlier "
                "steps cannot be made again there.\nTrain in the process that called draws()."
            )


_SAME_SCALE = 0.02
"""Relative difference up to which scales are the same: what rounding adds to a bound varies with the physical batch."""
