"""The append-only record of what was done to the data, run-length coded.

A draw is opened before anything is computed from it and charged from that moment: with what was released on it, or,
if the loop left before releasing, with what would have been. All releases on one draw are composed first and then
amplified once, by the sampler that made the draw (rule R4).

Privacy: nothing is ever removed. `void` records that there is no guarantee, and composition with that stays without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sordino.events import Event, NonPrivate, Repeat, Shuffle, canonical, compose, from_json, to_json


@dataclass(frozen=True)
class Entry:
    """An event, `count` times in a row; draws of one `cover` touch disjoint records."""

    event: Event
    count: int
    cover: str | None = None


@dataclass
class _Draw:
    amplify: Callable[[Event], Event]
    planned: Callable[[], Event]
    cover: str | None
    released: list[Event] = field(default_factory=list)

    def entry(self) -> Entry:
        events = self.released or [self.planned()]
        return Entry(canonical(self.amplify(compose(events))), 1, self.cover)


class Ledger:
    """What was done to one dataset."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._open: _Draw | None = None
        self._disclosed: dict[str, None] = {}

    def open(self, amplify: Callable[[Event], Event], planned: Callable[[], Event], cover: str | None = None) -> None:
        """A draw was made; the one before it is closed."""
        self._close()
        self._open = _Draw(amplify, planned, cover)

    def release(self, event: Event) -> None:
        """Something was released on the open draw; with no draw open, on the whole data."""
        if self._open is None:
            self._append(Entry(canonical(event), 1))
        else:
            self._open.released.append(event)

    def void(self, reason: str) -> None:
        """There is no guarantee from here on."""
        if NonPrivate(reason) not in (entry.event for entry in self._entries):
            self._append(Entry(NonPrivate(reason), 1))

    def disclose(self, name: str) -> None:
        """The claim will list this as not covered."""
        self._disclosed[name] = None

    @property
    def disclosed(self) -> tuple[str, ...]:
        """What the claim does not cover, in the order it was said."""
        return tuple(self._disclosed)

    @property
    def empty(self) -> bool:
        """True when nothing was drawn, released or voided."""
        return not self._entries and self._open is None

    def event(self) -> Event:
        """Everything so far, as one event; the open draw included."""
        covers: dict[str, list[Event]] = {}
        parts: list[Event | str] = []  # a string stands for the pass of that name, where it began
        for entry in self._all():
            event = Repeat(entry.event, entry.count)
            if entry.cover is None:
                parts.append(event)
            elif entry.cover in covers:
                covers[entry.cover].append(event)
            else:
                covers[entry.cover] = [event]
                parts.append(entry.cover)
        return compose(Shuffle(compose(covers[part])) if isinstance(part, str) else part for part in parts)

    def state_dict(self) -> dict[str, Any]:
        """JSON; the open draw is in it as charged."""
        rows = [[to_json(entry.event), entry.count, entry.cover] for entry in self._all()]
        return {"entries": rows, "disclosed": list(self._disclosed)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a saved ledger. A ledger that holds something already is never overwritten."""
        if not self.empty:
            raise ValueError("this ledger is not empty: loading would forget what was released; load into a new one")
        self._entries = [Entry(from_json(event), count, cover) for event, count, cover in state["entries"]]
        self._disclosed = dict.fromkeys(state["disclosed"])

    def _all(self) -> list[Entry]:
        if self._open is None:
            return self._entries
        return _appended(self._entries, self._open.entry())

    def _close(self) -> None:
        if self._open is not None:
            self._append(self._open.entry())
            self._open = None

    def _append(self, entry: Entry) -> None:
        self._entries = _appended(self._entries, entry, in_place=True)


def _appended(entries: list[Entry], entry: Entry, *, in_place: bool = False) -> list[Entry]:
    result = entries if in_place else list(entries)
    if result and (result[-1].event, result[-1].cover) == (entry.event, entry.cover):
        result[-1] = Entry(entry.event, result[-1].count + entry.count, entry.cover)
    else:
        result.append(entry)
    return result
