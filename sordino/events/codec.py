"""Events as JSON and back; every field is validated again on the way in."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from sordino.events.base import Event
from sordino.events.composition import Together

_PACKAGE = "sordino.events."


def _types() -> dict[str, type[Event]]:
    """Every event of this package by its name; all of them are imported with it."""
    return {kind.__name__: kind for kind in Event.__subclasses__() if kind.__module__.startswith(_PACKAGE)}


def to_json(event: Event) -> dict[str, Any]:
    """A JSON object: the class under `type`, its fields beside it.

    Args:
        event: any event.

    Returns:
        A dict that `json.dumps` takes.

    Examples:
        >>> from sordino.events import Gaussian
        >>> to_json(Gaussian(1.0))
        {'type': 'Gaussian', 'multiplier': 1.0}

    """
    result: dict[str, Any] = {"type": type(event).__name__}
    for field in dataclasses.fields(event):  # type: ignore[arg-type]  # every concrete event is a dataclass
        result[field.name] = _encode(getattr(event, field.name))
    return result


def _encode(value: Any) -> Any:
    if isinstance(value, Event):
        return to_json(value)
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


def from_json(data: str | Mapping[str, Any]) -> Event:
    """The event that `to_json` described; text or an object already parsed. Every field is validated again.

    Args:
        data: what `to_json` gave, or its text.

    Returns:
        The event.

    Examples:
        >>> from_json('{"type": "Gaussian", "multiplier": 1.0}')
        Gaussian(multiplier=1.0)

    """
    parsed = json.loads(data) if isinstance(data, str) else data
    types = _types()
    if not isinstance(parsed, Mapping) or parsed.get("type") not in types:
        known = ", ".join(sorted(types))
        raise ValueError(f"not an event: {str(parsed)[:80]!r}; need an object whose 'type' is one of {known}")
    kind = types[parsed["type"]]
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given = {name: _decode(value) for name, value in parsed.items() if name != "type"}
    if set(given) != names:
        raise ValueError(f"{kind.__name__}: needs the fields {sorted(names)}, got {sorted(given)}")
    if kind is Together:
        return Together(*given["events"])
    make: Callable[..., Event] = kind
    return make(**given)


def _decode(value: Any) -> Any:
    if isinstance(value, Mapping):
        return from_json(value)
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    return value
