"""Events as JSON and back; every field is validated again on the way in."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from sordino import validate
from sordino.events.base import Event, event_types, require_event


def to_json(event: Event) -> dict[str, Any]:
    """Encodes an event as a JSON object: the class under `type`, its fields beside it.

    Args:
        event: any event.

    Returns:
        A dict that `json.dumps` takes.

    Examples:
        >>> from sordino.events import Gaussian
        >>> to_json(Gaussian(1.0))
        {'type': 'Gaussian', 'multiplier': 1.0}

    """
    return require_event(event).to_json()


def from_json(data: str | Mapping[str, Any]) -> Event:
    """Decodes the event that `to_json` encoded, from text or from an object already parsed; validates every field.

    Args:
        data: what `to_json` gave, or its text.

    Returns:
        The event.

    Examples:
        >>> from_json('{"type": "Gaussian", "multiplier": 1.0}')
        Gaussian(multiplier=1.0)

    """
    # Text is parsed first; an object that was parsed already is taken as it is.
    try:
        parsed = json.loads(data) if isinstance(data, str) else data
    except json.JSONDecodeError as error:
        raise ValueError(
            f"data={validate.shorten(data)}: must be JSON, as to_json describes an event; {error}"
        ) from None
    types = event_types()
    # Only registered kinds are accepted, so a file can never name a class to be built.
    if not isinstance(parsed, Mapping) or parsed.get("type") not in types:
        known = ", ".join(sorted(types))
        raise ValueError(f"not an event: {str(parsed)[:80]!r}; need an object whose 'type' is one of {known}")
    kind = types[parsed["type"]]
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    # Missing or further fields are refused: a field that is silently ignored could have been what the ε depended on.
    given = {name: _decode(value) for name, value in parsed.items() if name != "type"}
    if set(given) != names:
        raise ValueError(f"{kind.__name__}: needs the fields {sorted(names)}, got {sorted(given)}")
    # The class checks the values themselves, as it does when a user builds the event.
    return kind.from_fields(given)


def _decode(value: Any) -> Any:
    """Returns a field of an event decoded from JSON: objects are events, lists are tuples."""
    # Nested objects are events of their own, and lists stand for tuples, which JSON does not have.
    if isinstance(value, Mapping):
        return from_json(value)
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    return value
