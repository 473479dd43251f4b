"""The Rényi accountant, and the moments accountant as it was published.

Mironov 2017; conversion by Canonne, Kamath & Steinke 2020 and Balle et al. 2020. Moments: Abadi et al. 2016, whole
λ ≤ 32 and δ = min exp(α(λ) − λε). The orders of `RDP` are Opacus' (1.1 … 10.9, 12 … 63), extended on both sides: no
cap.

**Privacy:** divergences of one order add up under composition; each order gives a valid (ε, δ), the best counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sordino import validate
from sordino.accounting.phases import relation_of
from sordino.events import Event, Relation, Repeat, Together, canonical, is_private
from sordino.events.base import require_event
from sordino.privacy_loss.pairs import Array
from sordino.privacy_loss.stopping import curve_delta, curve_epsilon

OPACUS_ORDERS = tuple(1 + x / 10 for x in range(1, 100)) + tuple(float(x) for x in range(12, 64))
"""The orders of Opacus, to compare with."""
ORDERS = (
    1.005,
    1.01,
    1.02,
    1.03,
    1.05,
    1.07,
    *OPACUS_ORDERS,
    *(float(round(64 * 1.06**k)) for k in range(88)),
)
"""The orders that are tried; more of them are tighter, none is wrong."""
_MOST = 32


@dataclass(frozen=True)
class RDP:
    """Rényi accounting; `orders` decide how tight it is, never whether it holds.

    >>> from sordino.events import Gaussian, Poisson, Repeat
    >>> round(RDP().epsilon(Repeat(Poisson(1 / 240, Gaussian(1.1)), 7200), 1e-5), 3)
    1.769
    """

    orders: tuple[float, ...] = ORDERS
    relation: Relation | None = None

    name = "RDP"
    is_bound = True

    def __post_init__(self) -> None:
        """Refuses orders at which a Rényi divergence does not convert to ε."""
        given = validate.sequence("orders", self.orders, "orders above 1")
        orders = tuple(validate.number("orders", order) for order in given)
        if not orders:
            raise ValueError("orders=(): must hold at least one order above 1")
        wrong = [order for order in orders if not 1 < order < math.inf]
        if wrong:
            raise ValueError(
                f"orders: {wrong[0]:g} is no order: a Rényi divergence converts to ε at finite orders above 1"
            )
        object.__setattr__(self, "orders", orders)

    def curve(self, event: Event, *, relation: Relation | None = None) -> Array:
        """Returns the Rényi divergence of the event at each of the orders."""
        event = canonical(event)
        return event.renyi_curve(np.array(self.orders), relation_of(event, relation or self.relation))

    def epsilon(self, event: Event, delta: float, *, relation: Relation | None = None) -> float:
        """Returns the Rényi accountant's (RDP) upper bound on ε of an event at a δ."""
        delta = validate.fraction("delta", delta)
        event = require_event(event)
        if not is_private(event):
            return math.inf
        return curve_epsilon(np.array(self.orders), self.curve(event, relation=relation), delta)

    def delta(self, event: Event, epsilon: float, *, relation: Relation | None = None) -> float:
        """Returns the Rényi accountant's (RDP) upper bound on δ of an event at an ε."""
        epsilon = validate.non_negative("epsilon", epsilon)
        event = require_event(event)
        if not is_private(event):
            return 1.0
        return curve_delta(np.array(self.orders), self.curve(event, relation=relation), epsilon)

    def profile(self, event: Event) -> Callable[[Array], Array]:
        """Returns the profile δ(ε) of an event by the Rényi accountant (RDP), as a function of arrays."""
        event = require_event(event)
        if not is_private(event):
            return lambda epsilon: np.ones_like(np.asarray(epsilon, dtype=float))
        orders, curve = np.array(self.orders), self.curve(event)

        def delta_at(epsilon: float) -> float:
            return curve_delta(orders, curve, validate.non_negative("epsilon", epsilon))

        return lambda epsilon: np.vectorize(delta_at, otypes=[float])(epsilon)


@dataclass(frozen=True)
class Moments:
    """The moments accountant as published: whole λ ≤ 32 and the classic tail bound.

    >>> from sordino.events import Gaussian, Poisson, Repeat
    >>> round(Moments().epsilon(Repeat(Poisson(0.01, Gaussian(4.0)), 10_000), 1e-5), 2)
    1.26
    """

    most: int = _MOST
    relation: Relation | None = None

    name = "moments"
    is_bound = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "most", validate.count("most", self.most))

    def _log_moments(self, event: Event) -> tuple[Array, Array]:
        """Returns the orders λ and the log moments α(λ) of an event for the moments accountant, from its Rényi
        divergences (RDP).
        """
        powers = np.arange(1.0, self.most + 1)
        event = canonical(event)
        return powers, powers * event.renyi_curve(powers + 1, relation_of(event, self.relation))

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns ε by the moments accountant, the published forerunner of RDP: the minimum over λ of (α(λ) +
        log(1/δ))/λ.
        """
        delta = validate.fraction("delta", delta)
        event = require_event(event)
        if not is_private(event):
            return math.inf
        powers, moments = self._log_moments(event)
        return float(((moments - math.log(delta)) / powers).min()) if any(True for _ in _list_releases(event)) else 0.0

    def delta(self, event: Event, epsilon: float) -> float:
        """Returns δ by the moments accountant, the published forerunner of RDP: the minimum over λ of exp(α(λ) − λε)."""
        epsilon = validate.non_negative("epsilon", epsilon)
        event = require_event(event)
        if not is_private(event):
            return 1.0
        powers, moments = self._log_moments(event)
        return math.exp(min(0.0, float((moments - powers * epsilon).min())))

    def profile(self, event: Event) -> Callable[[Array], Array]:
        """Returns δ(ε) as a function of arrays."""
        return lambda epsilon: np.vectorize(lambda one: self.delta(event, float(one)), otypes=[float])(epsilon)


def _list_releases(event: Event) -> list[Event]:
    """Returns all events inside an event that are no mere compositions."""
    return [inner for inner in event.walk() if not isinstance(inner, Together | Repeat)]
