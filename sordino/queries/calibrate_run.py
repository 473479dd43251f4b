"""Calibrates a run to a target ε: finds the noise, or the number of steps, at which the whole run meets it.

Both searches ask the certified accountant about the event of the whole run, so whatever else the run releases is
counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sordino.accounting import PLD, BudgetExhausted, Unsupported, calibrate
from sordino.events import Event, from_json, to_json
from sordino.ledger import claims
from sordino.ledger.claims import NoGuarantee

_ONE, _TWO = 1.0, 2.0


def calibrate_noise(event_of: Callable[[float], Event], epsilon: float, delta: float) -> float:
    """Calibrates the noise of a run: returns the smallest multiplier at which the whole run is (ε, δ)-DP.

    >>> from sordino.events import Gaussian, Poisson, Repeat
    >>> sigma = calibrate_noise(lambda s: Repeat(Poisson(0.01, Gaussian(s)), 1000), 1.0, 1e-5)
    >>> PLD().epsilon(Repeat(Poisson(0.01, Gaussian(sigma)), 1000), 1e-5) <= 1.0
    True
    """
    # Build the event at two multipliers to see whether it depends on them linearly.
    first = event_of(_ONE)
    event_form = find_linear_form(to_json(first), to_json(event_of(_TWO)))
    # What is released besides the steps may already cost more than ε.
    floor = _epsilon_without_steps(event_of if event_form is None else lambda s: from_json(event_form(s)), delta)
    if floor >= epsilon:
        raise ValueError(
            f"epsilon={epsilon:g}: what is released besides the steps costs ε = {floor:.3g} by itself; "
            "give it more noise (ranges, normalise, pca), leave it out, or allow more"
        )
    # An event without a guarantee at one multiplier has none at any.
    claim_at_one = claims.make_claim(first, delta, PLD())
    if isinstance(claim_at_one, NoGuarantee):
        raise ValueError(
            f"epsilon={epsilon:g}: no noise meets it, {claim_at_one.reason}; give noise_multiplier instead"
        )
    # The fast way first: an event that is linear in the multiplier is not built anew for each trial. The result is
    # checked.
    if event_form is not None:
        sigma = calibrate(lambda s: from_json(event_form(s)), PLD(), epsilon, delta)
        if PLD().epsilon(event_of(sigma), delta) <= epsilon:
            return sigma
    return calibrate(event_of, PLD(), epsilon, delta)


def calibrate_steps(event_of: Callable[[int], Event], steps: int, budget: float, delta: float) -> int:
    """Calibrates the length of a run: returns the most steps, up to `steps`, that keep it within (budget, δ).

    Raises:
        BudgetExhausted: if not even one step does.

    """

    def fits_budget(count: int) -> bool:
        """Returns whether a run of `count` steps, the number being calibrated, keeps to the budget; raises ValueError
        if it has no guarantee.
        """
        claim = claims.make_claim(event_of(count), delta, PLD())
        if isinstance(claim, NoGuarantee):
            raise ValueError(f"budget={budget:g}: no number of steps keeps to it, {claim.reason}")
        return claim.epsilon <= budget

    # Try the extremes first: most runs fit as a whole, and some not even once.
    if fits_budget(steps):
        return steps
    if not fits_budget(1):
        raise BudgetExhausted(f"budget={budget:g}: the first step would exceed it; use more noise, or a larger budget")
    # Bisect: ε grows with the number of steps.
    low, high = 1, steps
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits_budget(middle) else (low, middle)
    return low


def _epsilon_without_steps(event_of: Callable[[float], Event], delta: float) -> float:
    """Returns what a run costs that is calibrated to so much noise that its steps hide everything: ε of all that it
    releases besides.
    """
    # So much noise that the steps cost nothing; what is left is the price of everything else.
    try:
        epsilon = PLD().epsilon(event_of(1e9), delta)
    except Unsupported:
        return 0.0  # the claim says why, here and where no ε is finite
    return epsilon if math.isfinite(epsilon) else 0.0


def find_linear_form(one: Any, two: Any) -> Callable[[float], Any] | None:
    """Returns the JSON of a run's event as a function of the multiplier, from those at 1 and 2, so that the run is
    calibrated faster; None if it is not linear.
    """
    if one == two:
        return lambda s: one
    # A number that doubled is in proportion to the multiplier; containers are followed entry by entry.
    numbers = isinstance(one, int | float) and isinstance(two, int | float)
    if numbers and not isinstance(one, bool) and two == _TWO * one:
        return lambda s: s * one
    # A mapping or a list is linear if all of its entries are.
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        inner = {key: find_linear_form(value, two[key]) for key, value in one.items()}
        if all(f is not None for f in inner.values()):
            return lambda s: {key: f(s) for key, f in inner.items() if f is not None}
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        parts = [find_linear_form(a, b) for a, b in zip(one, two, strict=True)]
        if all(f is not None for f in parts):
            return lambda s: [f(s) for f in parts if f is not None]
    return None
