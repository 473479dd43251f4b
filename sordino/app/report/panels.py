"""Panels: figures as data, which can be kept as JSON, drawn again and checked.

A `Series` is a curve or a cloud of points with its spread; `Boxes` are box plots; a `Field` is a function of two
variables, drawn as contours or as a surface. A `Panel` is one pair of axes with its labels and units.

Privacy: what has no guarantee carries its reason in `hollow`, is drawn hollow and named with the reason, and is refused
on an axis of ε.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias, TypeVar

Numbers: TypeAlias = Any
"""Any row of numbers; kept as a tuple of floats."""
_Kind = TypeVar("_Kind")

_DIGITS = 6
"""Significant digits kept of a number in a figure."""


@dataclass(frozen=True)
class Series:
    """One curve or one cloud of points."""

    label: str
    x: Numbers
    y: Numbers
    z: Numbers = ()
    """Third coordinate, in a panel of three dimensions."""
    low: Numbers = ()
    high: Numbers = ()
    """The spread over seeds, as long as y or empty."""
    method: str = ""
    """Whose colour it has; see `looks`."""
    variant: int = 0
    """Which dashes and marks, for several settings of one method."""
    points: bool = False
    """Marks only, no line."""
    hollow: str = ""
    """Why there is no guarantee; empty where there is one, or where nothing private was touched."""
    arrows: bool = False
    """An arrow from each point to the next, in place of a line."""

    def __post_init__(self) -> None:
        """Turns all rows into tuples of floats and checks that they have one length."""
        # Numbers come from JSON, numpy and torch; from here on they are floats.
        for name in ("x", "y", "z", "low", "high"):
            object.__setattr__(self, name, _to_floats(getattr(self, name)))
        if len(self.x) != len(self.y) or any(
            part and len(part) != len(self.y) for part in (self.z, self.low, self.high)
        ):
            raise ValueError(f"series {self.label!r}: x, y, z, low and high must be of one length")


@dataclass(frozen=True)
class Boxes:
    """Box plots: minimum, quartiles and maximum at each x."""

    label: str
    x: Numbers
    five: Sequence[Numbers]
    method: str = ""
    hollow: str = ""

    def __post_init__(self) -> None:
        """Turns all rows into tuples of floats and checks that each box has five numbers."""
        object.__setattr__(self, "x", _to_floats(self.x))
        object.__setattr__(self, "five", tuple(_to_floats(row) for row in self.five))
        if len(self.x) != len(self.five) or any(len(row) != 5 for row in self.five):
            raise ValueError(f"boxes {self.label!r}: need five numbers for each x")


@dataclass(frozen=True)
class Field:
    """A function on a grid: z[row][column] at (x[column], y[row])."""

    x: Numbers
    y: Numbers
    z: Sequence[Numbers]
    surface: bool = False
    """A surface in three dimensions instead of contours."""
    image: bool = False
    """A grey picture instead of contours."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", _to_floats(self.x))
        object.__setattr__(self, "y", _to_floats(self.y))
        object.__setattr__(self, "z", tuple(_to_floats(row) for row in self.z))


@dataclass(frozen=True)
class Panel:
    """One pair of axes with its content."""

    title: str
    xlabel: str
    ylabel: str
    series: Sequence[Series] = ()
    boxes: Sequence[Boxes] = ()
    field: Field | None = None
    xlog: bool = False
    ylog: bool = False
    xticks: tuple[str, ...] = ()
    """Names of x = 0, 1, 2, …, where x is no number."""
    ylim: Numbers = ()
    zlabel: str = ""
    equal: bool = False
    """One unit is as long on both axes, so that a circle is one."""

    def __post_init__(self) -> None:
        """Checks the labels, and refuses results without a guarantee on an axis of ε."""
        object.__setattr__(self, "series", tuple(self.series))
        object.__setattr__(self, "boxes", tuple(self.boxes))
        if not self.title or not self.xlabel or not self.ylabel:
            raise ValueError(f"panel {self.title!r}: needs a title and both axes named")
        # A result without a guarantee has no ε, so it must not stand on an axis of ε.
        if any(label.startswith("ε") for label in (self.xlabel, self.ylabel)):
            drawn: list[Series | Boxes] = [*self.series, *self.boxes]
            for one in drawn:
                if one.hollow:
                    raise ValueError(f"{one.label!r} on an axis of ε: it has no guarantee ({one.hollow})")

    def table(self) -> dict[str, Any]:
        """Returns the panel as JSON holds it; numbers that are not finite become null."""
        found = {name: value for name, value in asdict(self).items() if value not in ("", (), None, False, [])}
        return dict(_to_json(found))


def panel_from_table(table: Mapping[str, Any]) -> Panel:
    """Returns a panel, a figure as data, from its table in JSON."""
    # Files of earlier versions may hold fields that are gone.
    given = dict(table)
    given["series"] = tuple(_build_known_fields(Series, one) for one in given.get("series", ()))
    given["boxes"] = tuple(_build_known_fields(Boxes, one) for one in given.get("boxes", ()))
    if given.get("field") is not None:
        given["field"] = _build_known_fields(Field, given["field"])
    given["xticks"] = tuple(given.get("xticks", ()))
    given["ylim"] = tuple(given.get("ylim", ()))
    return Panel(**given)


def _build_known_fields(kind: type[_Kind], table: Mapping[str, Any]) -> _Kind:
    """Returns a part of a panel, such as a series or boxes, from its table in JSON, ignoring fields that it does not
    have.
    """
    # Files of other versions may have more fields, which are left aside.
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]  # every kind here is a dataclass
    return kind(**{name: value for name, value in table.items() if name in known})


def _to_floats(values: Any) -> tuple[float, ...]:
    return tuple(math.nan if value is None else float(value) for value in values)


def _to_json(value: Any) -> Any:
    """Returns a value of a panel with numbers rounded for JSON and empty fields left out."""
    # Six digits are more than any eye reads off a figure, and keep the files small.
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {
            name: _to_json(one) for name, one in value.items() if name == "label" or one not in ("", (), None, False)
        }
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return value
