"""Validates the arguments that a user hands in: numbers, and things that can do what is asked of them.

Every message says what was given, what is needed and what to do.

Nothing here ever sees a private value: the messages quote public parameters only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any, SupportsFloat, SupportsIndex

from sordino.former_names import adopt_former_method

_LONGEST_WORD, _LONGEST_REPR = 24, 120
"""The most characters of a text, and of an object of this library, that a message quotes."""


def number(name: str, value: object) -> float:
    """Validates an argument as a real number that is not NaN; refuses booleans, strings and tensors with many elements."""
    # True would pass as 1 and "1" is probably a mistake, so both are refused.
    if isinstance(value, bool | str | bytes) or not isinstance(value, Real | SupportsFloat | SupportsIndex):
        raise TypeError(f"{name}={shorten(value)}: must be a number, not {type(value).__name__}")
    try:
        result = float(value)
    except OverflowError:
        raise ValueError(f"{name}: a number of {len(str(value))} digits: must be below 1.8e308") from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name}={shorten(value)}: must be a single number") from error
    if math.isnan(result):
        raise ValueError(f"{name}=nan: must be a number; check where it was computed")
    return result


def positive(name: str, value: object, *, infinite: bool = False) -> float:
    """Validates an argument as a number > 0; infinity is accepted only where it has a meaning."""
    result = number(name, value)
    if result <= 0:
        raise ValueError(f"{name}={value!r}: must be > 0")
    if math.isinf(result) and not infinite:
        raise ValueError(f"{name}=inf: must be finite")
    return result


def non_negative(name: str, value: object) -> float:
    """Validates an argument as a finite number >= 0."""
    result = number(name, value)
    if result < 0 or math.isinf(result):
        raise ValueError(f"{name}={value!r}: must be finite and >= 0")
    return result


def rate(name: str, value: object) -> float:
    """Validates an argument as a sampling rate in (0, 1]."""
    result = number(name, value)
    if not 0 < result <= 1:
        hint = "; a rate is expected batch / dataset size" if result > 1 else ""
        raise ValueError(f"{name}={value!r}: must lie in (0, 1]{hint}")
    return result


def fraction(name: str, value: object) -> float:
    """Validates an argument as a number strictly between 0 and 1."""
    result = number(name, value)
    if not 0 < result < 1:
        raise ValueError(f"{name}={value!r}: must lie strictly between 0 and 1")
    return result


def probability(name: str, value: object) -> float:
    """Validates an argument as a number from 0 to 1, both included."""
    result = number(name, value)
    if not 0 <= result <= 1:
        raise ValueError(f"{name}={value!r}: must lie in [0, 1]")
    return result


def count(name: str, value: object, *, least: int = 1, most: int | None = None) -> int:
    """Validates an argument as a whole number from `least` to `most`.

    Floats are refused even when whole: 2.5 epochs of 100 is a question, not a count.
    """
    # True and 2.0 are refused: they are more often a mistake than a count.
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}={shorten(value)}: must be a whole number (int), not {type(value).__name__}")
    result = int(value)
    # The message shows the value, which is public, or only its length if it is absurdly long.
    if result < least:
        raise ValueError(f"{name}={result}: must be >= {least}")
    if most is not None and result > most:
        raise ValueError(f"{name}: a number of {len(str(result))} digits: must be at most {most}")
    return result


def clipping_rule(name: str, value: Any) -> Any:
    """Returns a clipping rule; refuses everything that cannot give weights to records."""
    hint = f"; write sd.Flat({value!r}) for flat clipping" if type(value) in (int, float) else ""
    return has_methods(name, value, ("init", "rule", "advance"), f"a clipping rule such as sd.Flat(1.0){hint}")


def noise(name: str, value: Any) -> Any:
    """Validates an argument as a kind of noise; refuses everything that cannot be added to a sum."""
    hint = f"; write sd.Gaussian({value!r})" if type(value) in (int, float) else ""
    adopt_former_method(value, "bound", "bound_for")
    return has_methods(
        name, value, ("multiplier", "bound_for", "add_", "event"), f"noise such as sd.Gaussian(1.0){hint}"
    )


def query(name: str, value: Any) -> Any:
    """Returns a query; refuses everything that cannot be asked of a lot."""
    need = "a query such as sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))"
    return has_methods(name, function(name, value, need), ("init",), need)


def sampler(name: str, value: Any) -> Any:
    """Validates an argument as a sampler and returns it; refuses everything that cannot draw lots."""
    adopt_former_method(value, "expected", "expected_size")
    methods = ("size_is_public", "expected_size", "draws")
    return has_methods(name, value, methods, "a sampler such as sd.Poisson(rate=0.01)")


def has_methods(name: str, value: Any, methods: Sequence[str], need: str) -> Any:
    """Validates that an argument has all these methods and attributes; a class in place of an instance is refused too."""
    if isinstance(value, type) or not all(hasattr(type(value), m) or hasattr(value, m) for m in methods):
        given = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(f"{name}={shorten(value)}: must be {need}; this is {given}")
    return value


def instance(name: str, value: Any, kind: type | tuple[type, ...], need: str) -> Any:
    """Validates an argument as an instance of this kind; `need` says in words what is needed."""
    if not isinstance(value, kind):
        raise TypeError(f"{name}={shorten(value)}: must be {need}; this is {type(value).__name__}")
    return value


def function(name: str, value: Any, need: str) -> Any:
    """Validates an argument as something that can be called; `need` says in words what it must do."""
    if not callable(value):
        raise TypeError(f"{name}={shorten(value)}: must be {need}; this is {type(value).__name__}")
    return value


def sequence(name: str, value: Any, need: str) -> list[Any]:
    """Validates an argument as a list, tuple, array or other iterable and returns its elements; refuses text, which is
    iterable too.
    """
    # A text is iterable letter by letter, which nobody means.
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name}={shorten(value)}: must be {need}; this is {type(value).__name__}")
    try:
        return list(value)
    except TypeError:
        if isinstance(value, Iterator):  # what makes the elements refused something, and says what
            raise
        # An array or tensor without dimensions.
        raise TypeError(f"{name}={shorten(value)}: must be {need}; this has no elements to go through") from None


def shorten(value: Any) -> str:
    """Returns an argument that failed to validate as text for the message, without quoting what may be a record.

    Numbers, short words, classes, functions and objects of this library are quoted. Of everything else, such as a tensor or
    a table that was given in the wrong place, the message names the type alone.
    """
    # Numbers, short texts and objects of this library are public parameters and may be quoted; anything else may hold
    # records.
    if value is None or isinstance(value, bool | int | float | complex):
        text = repr(value) if not isinstance(value, int) or abs(value) < 10**18 else f"<{type(value).__name__}>"
    elif isinstance(value, str | bytes) and len(value) <= _LONGEST_WORD:
        text = repr(value)
    elif isinstance(value, type):
        text = value.__name__
    elif type(value).__module__.split(".")[0] == "sordino" and len(repr(value)) <= _LONGEST_REPR:
        text = repr(value)
    else:
        text = f"<{getattr(value, '__qualname__', type(value).__name__)}>"
    return " ".join(text.split())
