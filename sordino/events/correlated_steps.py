"""One step of a phase with correlated noise: a sum plus a row of σ C⁻¹ Z.

By itself it has no price: its noise is also that of other steps. `CyclicPoisson` and `FixedOrder` know which steps a
record can take part in, and price all of them together.

**Privacy:** plain Poisson draws in every step are not a product over steps: for two steps of a square root at rate 0.3 and
σ = 1 a product gives ε = 2.44 at δ = 1e-3, where 3.28 is true. So this event stands in no other way of sampling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sordino.events.base import Event, register_event, require_noise, set_field
from sordino.events.gaussian_noise import Gaussian
from sordino.events.sequential_composition import Together
from sordino.matrix_factorization.strategies import Strategy, strategy_from


@register_event
@dataclass(frozen=True)
class Correlated(Event):
    """A step with noise of which other steps cancel a part, inside `CyclicPoisson` or `FixedOrder`.

    Args:
        multiplier: σ, of the independent noise.
        strategy: its kind and numbers, as `Strategy.describe()` gives them, such as ("banded", 16).

    Examples:
        >>> Correlated(3.0, ("banded", 16)).factorisation
        Banded(bands=16, coefficients=())

    """

    multiplier: float
    strategy: tuple[Any, ...]
    is_step_of_phase: ClassVar[bool] = True
    assumes: ClassVar[str] = (
        "the noise is correlated between steps: later steps take back a part of what earlier ones added, so all steps "
        "are one release and are charged together; each step was released once: held by construction"
    )

    def __post_init__(self) -> None:
        set_field(self, "multiplier", require_noise("multiplier", self.multiplier))
        set_field(self, "strategy", strategy_from(self.strategy).describe())

    @property
    def factorisation(self) -> Strategy:
        """The strategy, made again from its description."""
        return strategy_from(self.strategy)

    def at_sensitivity(self, sensitivity: float) -> Gaussian:
        """Returns the Gaussian release that steps amount to when one record moves C G by so much in all of them."""
        return Gaussian(self.multiplier / sensitivity)

    def scale_noise(self, factor: float) -> Correlated:
        """Returns the step with σ multiplied by a factor."""
        return Correlated(self.multiplier * factor, self.strategy)


def find_correlated(event: Event) -> Correlated | None:
    """Returns the release with correlated noise among the releases of one step, or None if there is none.

    Raises:
        TypeError: if there are several, or if one is inside another event, where it does not belong to its step.

    """
    # It may occur once, and only directly on the draw: inside another sampling or repetition its steps would not be
    # those of the phase.
    direct = [part for part in releases_of_step(event) if isinstance(part, Correlated)]
    everywhere = [inner for inner in event.walk() if isinstance(inner, Correlated)]
    if len(everywhere) > 1 or len(direct) != len(everywhere):
        raise TypeError(
            "correlated noise must be released once in every step, and on the draw itself: "
            f"{event!r} has it elsewhere, and no theorem covers that"
        )
    return direct[0] if direct else None


def releases_of_step(event: Event) -> tuple[Event, ...]:
    """Returns all that is released on the draw of one step, one by one."""
    return event.events if isinstance(event, Together) else (event,)
