"""Find the parameter that meets a privacy target: noise, steps, rate, batch, epochs, or anything else an event has.

Monotone bracketing and regula falsi (Illinois) on log ε against log parameter; the direction is found out, not assumed.

**Privacy:** one-sided: the returned value was itself accounted and satisfies the target; the search only decides how
close to it. Accountants that are not bounds are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sordino import validate
from sordino.accounting.accountant import Accountant, Unsupported
from sordino.accounting.accountants.clt import GaussianCLT
from sordino.accounting.accountants.pld import PLD
from sordino.events import Event

_LOWEST, _HIGHEST = 1e-12, 1e12
_MOST_STEPS = 10**12
_EVALUATIONS = 200
_EXACT = 10**6  # whole numbers up to it are found exactly
_COARSE = 15.0  # times the tolerance, for a first search
_FLOOR = 1e-12  # ε below this counts as this in logarithms


class _ParameterSearch:
    """ε as a function of the logarithm of the parameter, with what has been learnt about it."""

    def __init__(
        self, event_of: Callable[[Any], Event], accountant: Any, target: float, delta: float, whole: bool
    ) -> None:
        self.event_of, self.accountant, self.delta, self.whole = event_of, accountant, delta, whole
        self.log_target = math.log(target)
        self.known: dict[float, float] = {}

    def parameter(self, log_x: float) -> float:
        """Returns the parameter at a logarithm, rounded if it has to be whole."""
        return max(1, round(math.exp(log_x))) if self.whole else math.exp(log_x)

    def excess(self, log_x: float) -> float:
        """Returns how far a parameter that is being calibrated misses the target, log ε − log target, NaN outside the
        parameter's domain; every value is computed once.
        """
        x = self.parameter(log_x)
        if x not in self.known:
            try:
                event = self.event_of(x)
            except ValueError:
                self.known[x] = math.nan
            else:
                epsilon = self.accountant.epsilon(event, self.delta)
                self.known[x] = math.log(max(epsilon, _FLOOR)) - self.log_target
        return self.known[x]


def calibrate(
    event_of: Callable[[Any], Event],
    accountant: Accountant,
    epsilon: float,
    delta: float,
    *,
    start: float | None = None,
    whole: bool | None = None,
    accuracy: float = 5e-5,
) -> float:
    """Calibrates one parameter: returns the best value x for which `event_of(x)` is (epsilon, delta)-DP by the
    accountant.

    `event_of` takes a float, or an int when `whole` is true; by default it is tried with 1.5 to find out. A ValueError
    from it means "outside the domain" (a rate above 1). The best value is the smallest when more of it means more
    privacy (noise), the largest otherwise (steps).

    Privacy:
        A search over numbers; no data is touched. The answer errs on the side of more noise.

    Examples:
        >>> from sordino.accounting import RDP
        >>> from sordino.events import Gaussian, Poisson, Repeat
        >>> sigma = calibrate(lambda s: Repeat(Poisson(0.01, Gaussian(s)), 1000), RDP(), 1.0, 1e-5)
        >>> RDP().epsilon(Repeat(Poisson(0.01, Gaussian(sigma)), 1000), 1e-5) <= 1.0
        True

    """
    epsilon = validate.positive("epsilon", epsilon)
    delta = validate.fraction("delta", delta)
    accuracy = validate.fraction("accuracy", accuracy)
    start = None if start is None else validate.positive("start", start)
    if not accountant.is_bound:
        raise ValueError(f"accountant={accountant.name}: is an approximation; calibrate with one that is a bound")
    whole = _wants_whole(event_of) if whole is None else whole
    search = _ParameterSearch(event_of, accountant, epsilon, delta, whole)
    rough = _ParameterSearch(event_of, GaussianCLT(getattr(accountant, "relation", None)), epsilon, delta, whole)
    # The central-limit approximation is cheap, and says about where to look and which way ε goes.
    first, hint = math.log(start) if start else 0.0, None
    with suppress(Unsupported, ValueError, OverflowError):
        first = _solve(rough, first, 1e-3, None)
        hint = _find_direction(rough, first)
    # PLD is dear at its full accuracy, so a coarser one comes closer first.
    if isinstance(accountant, PLD):
        coarse = _ParameterSearch(
            event_of, replace(accountant, tolerance=_COARSE * accountant.tolerance), epsilon, delta, whole
        )
        first = _solve(coarse, first, 20 * accuracy, hint)
        hint = _find_direction(coarse, first)
    # Only values that the accountant itself found good enough are returned.
    result = search.parameter(_solve(search, first, accuracy, hint))
    return int(result) if whole else result


def _wants_whole(event_of: Callable[[Any], Event]) -> bool:
    """Returns whether the parameter to calibrate must be a whole number, found out by trying `event_of` with a half and
    one and a half.
    """
    for probe in (0.5, 1.5):
        try:
            event_of(probe)
        except TypeError:
            return True
        except ValueError:
            continue
        else:
            return False
    return False


def _find_inside(search: _ParameterSearch, log_x: float) -> float:
    """Returns a point near log_x that is inside the domain of the parameter to calibrate."""
    for shift in (0.0, *(s * k for k in (0.7, 1.5, 3.0, 6.0, 10.0, 15.0, 25.0) for s in (-1, 1))):
        if not math.isnan(search.excess(log_x + shift)):
            return log_x + shift
    raise ValueError("event_of raised ValueError at every value tried: pass `start` inside its domain")


def _solve(search: _ParameterSearch, log_x: float, accuracy: float, hint: tuple[bool, float] | None) -> float:
    """Returns the logarithm of the best parameter that a calibration finds: a bracket first, from a hint if there is
    one, then a narrower one.
    """
    log_x = _find_inside(search, log_x)
    rising, slope = _find_direction(search, log_x) if hint is None else hint
    good, bad = _bracket(search, log_x, rising, slope, accuracy)
    if bad is None:
        return good
    return _narrow(search, good, bad, accuracy)


def _find_direction(search: _ParameterSearch, log_x: float) -> tuple[bool, float]:
    """Returns whether ε grows with the parameter to calibrate, and d log ε / d log parameter."""
    excess = search.excess(log_x)
    probe = 0.05 if not search.whole else max(0.05, math.log1p(1.5 / math.exp(log_x)))
    for step in (probe, -probe, 40 * probe, -40 * probe):
        nearby = search.excess(log_x + step)
        if not math.isnan(nearby) and nearby != excess:
            return (nearby > excess) == (step > 0), (nearby - excess) / step
    return False, -1.0


def _bracket(
    search: _ParameterSearch, log_x: float, rising: bool, slope: float, accuracy: float
) -> tuple[float, float | None]:
    """Returns a bracket of the parameter to calibrate, a point that meets the target and one that does not, or None if
    no better point is needed.
    """
    # Work on the logarithm of the parameter, between bounds that no sensible parameter leaves.
    excess = search.excess(log_x)
    low, high = (0.0, math.log(_MOST_STEPS)) if search.whole else (math.log(_LOWEST), math.log(_HIGHEST))
    safe = -1.0 if rising else 1.0
    # One side of the bracket is known from the first evaluation.
    good, bad = (log_x, None) if excess <= 0 else (None, log_x)
    # The first step is one of Newton's, meant to land a little on the safe side.
    margin = 0.3 * accuracy * (1 if excess > 0 else -1)
    step = min(abs(excess / slope) + margin if slope and math.isfinite(excess) else 1.0, 3.0)
    step = max(step, 0.1 * accuracy)
    if search.whole:
        step = max(step, math.log1p(1.2 / math.exp(log_x)))
    # Go on to the safe side until the target is met, or to the other side until it is not, in steps that double.
    current = log_x
    for _ in range(_EVALUATIONS):
        current = current + (safe if good is None else -safe) * step
        inside = min(max(current, low), high)
        value = search.excess(inside)
        # Outside of the event's domain there is no ε. The bracket ends where the domain does.
        if math.isnan(value):
            if good is not None:
                edge = _find_edge(search, good, inside)
                return (edge, None) if search.excess(edge) <= 0 else (good, edge)
            raise ValueError("no value in the domain of event_of meets the target")
        if value <= 0:
            good = inside
            # Near enough below the target already: no bracket is needed.
            if not search.whole and -value <= 0.8 * accuracy * abs(slope):
                return good, None
        else:
            bad = inside
        if good is not None and bad is not None:
            return good, bad
        # At the end of the search range the last point that meets the target is the answer, if there is one.
        if inside in (low, high):
            if good is not None:
                return good, None
            raise ValueError("no value meets the target: even the most private one tried exceeds it")
        step = max(2 * step, 20 * accuracy)
    raise ValueError("no value found that meets the target")


def _find_edge(search: _ParameterSearch, inside: float, outside: float) -> float:
    """Returns the last point of the calibrated parameter's domain between one inside and one outside."""
    for _ in range(60):
        middle = 0.5 * (inside + outside)
        inside, outside = (inside, middle) if math.isnan(search.excess(middle)) else (middle, outside)
    return inside


def _narrow(search: _ParameterSearch, good: float, bad: float, accuracy: float) -> float:
    """Returns the best point of a calibration's bracket, narrowed by regula falsi (Illinois) with a bisection now and
    then.
    """
    # The weights are the values that regula falsi uses; they are halved for the end that stays (Illinois), or that end
    # would never move.
    at_good, at_bad = search.excess(good), search.excess(bad)
    weight_good, weight_bad = at_good, at_bad
    for round_number in range(_EVALUATIONS):
        if search.whole:
            # Exact up to a million; beyond, one step more or less is far below the accuracy of ε.
            close = search.parameter(good) > _EXACT and abs(good - bad) <= 0.3 * accuracy
            if close or abs(search.parameter(good) - search.parameter(bad)) <= 1:
                break
        # Close enough: the bracket is shorter than the accuracy, or the good end all but meets the target.
        elif abs(good - bad) <= accuracy or abs(at_good) <= 0.1 * accuracy:
            break
        # Interpolate, and bisect every fourth time, so that a strange curve cannot stall the search.
        if (
            math.isfinite(weight_good)
            and math.isfinite(weight_bad)
            and weight_bad != weight_good
            and round_number % 4 != 3
        ):
            guess = good + (bad - good) * weight_good / (weight_good - weight_bad)
            # aim a little to the safe side, so that one more evaluation closes the bracket
            guess += 0.3 * accuracy * (1 if good > bad else -1)
            low, high = min(good, bad), max(good, bad)
            guess = min(max(guess, low + 0.01 * (high - low)), high - 0.01 * (high - low))
        else:
            guess = 0.5 * (good + bad)
        # A whole number must differ from both ends, or the bracket would not shrink.
        if search.whole and search.parameter(guess) in (search.parameter(good), search.parameter(bad)):
            guess = math.log(0.5 * (search.parameter(good) + search.parameter(bad)))
            low, high = sorted((search.parameter(good), search.parameter(bad)))
            guess = math.log(min(max(round(math.exp(guess)), low + 1), high - 1))
        value = search.excess(guess)
        # Always return the good end: the result meets the target however early the search stops.
        if value <= 0:
            good, at_good, weight_good = guess, value, value
            weight_bad *= 0.5 if round_number else 1.0
        else:
            bad, at_bad, weight_bad = guess, value, value
            weight_good *= 0.5 if round_number else 1.0
    return good
