"""What an acceleration of layers has to offer: the types that the engine knows in place of the accelerations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from sordino.per_sample.protocol import Norms
from sordino.per_sample.recording.tape import Rule


@dataclass(frozen=True)
class FasterRule:
    """A rule that runs a module, with the layers inside it, as one layer of the tape."""

    may_run: Callable[[nn.Module], bool]
    """Whether a module is of the kind; on a pass where it is not after all, the rule runs its layers one by one."""
    rule: Rule


@dataclass(frozen=True)
class StandIn:
    """Code that runs a layer without parameters in place of its own, and records nothing."""

    may_run: Callable[[nn.Module], bool]
    run: Callable[..., Any]
    """Takes the tape, the layer, its own `forward` and its input."""


class JointParts(Protocol):
    """Parts of several parameters, or of all, that are measured and summed in one call."""

    columns: list[int]
    everything: bool  # these are the parts of all parameters

    def norms(self, names: tuple[str, ...]) -> Norms:
        """Returns the squared norms, where these are the parts of all parameters."""
        ...

    def squared_norms_by_column(self) -> Iterator[tuple[int, Tensor]]:
        """Returns, for each parameter, its column and its squared norms, (B,)."""
        ...

    def add_to(self, room: Callable[[int], Tensor], weights: Tensor, beta: int) -> Iterator[tuple[int, Tensor]] | None:
        """Adds Σ w_i g_i to the memory of each parameter in turn; None, and nothing done, where it cannot."""
        ...
