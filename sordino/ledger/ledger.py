"""The ledger: an append-only, run-length coded record of what was done to the data.

A draw is opened before anything is computed from it and charged from that moment: with what was released on it, or,
if the loop left before releasing, with what would have been. All releases on one draw are composed first and then
amplified once, by the sampler that made the draw (rule R4).

Several things may be done to one dataset and be charged here together: each writes in a section of its own, with its
own open draw and its own passes, so that what is released on one thing's draw is never amplified by another's.

Privacy: nothing is ever removed. `void` records that there is no guarantee, and composition with that stays without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from sordino import html_views
from sordino.accounting import PLD, Accountant
from sordino.events import (
    BallsInBins,
    Event,
    NonPrivate,
    Repeat,
    Shuffle,
    canonical,
    compose,
    from_json,
    is_private,
    to_json,
)
from sordino.ledger import claims, history, lot_counts, voiding
from sordino.ledger.claims import Claim
from sordino.ledger.lot_counts import LotCounts
from sordino.ledger.watchers import Watchers
from sordino.refusal import Refusal
from sordino.release.noise_tail import MOST_COORDINATES

_RECORD = "record"


@dataclass(frozen=True)
class LedgerEntry:
    """An event, `count` times in a row; draws of one `cover`, or pass, touch disjoint records.

    A pass in which each record chose one of `bins` draws for itself is balls in bins; without bins, a shuffle.
    """

    event: Event
    count: int
    cover: str | None = None
    bins: int | None = None


@dataclass
class _OpenDraw:
    """A draw that is open: what was released on it so far, and what would be charged if nothing is."""

    amplify: Callable[[Event], Event]
    planned: Callable[[], Event]
    cover: str | None
    bins: int | None
    released: list[Event] = field(default_factory=list)

    def to_entry(self) -> LedgerEntry:
        events = self.released or [self.planned()]
        return LedgerEntry(canonical(self.amplify(compose(events))), 1, self.cover, self.bins)


class Ledger:
    """What was done to one dataset.

    Privacy:
        Append-only: what is in it is never taken out. Give one to everything that is done to the same records.

    Examples:
        >>> from sordino.events import Gaussian
        >>> ledger = Ledger()
        >>> ledger.release(Gaussian(5.0))
        >>> round(ledger.claim(delta=1e-5).epsilon, 3)
        0.726

    """

    def __init__(self) -> None:
        self._entries: list[LedgerEntry] = []
        self._open: dict[str, _OpenDraw] = {}  # by section
        self._sections = self._coordinates = 0
        self._disclosed: dict[str, None] = {}
        self._declared: dict[str, None] = {}
        self._counts: dict[str, LotCounts] = {}  # by section
        self._data: list[list[Ledger]] = []  # the ledgers of what the records are made of
        self._trained: list[list[Ledger]] = []  # the ledgers that its runs' parameters are trained under
        self.watchers = Watchers()  # the runs that write in it, asked before every claim
        self._unit = _RECORD
        self.voided: str | None = None  # the first reason given to `void`
        self.is_strict = False  # a run that was made with strict=True writes in it

    def __copy__(self) -> Ledger:
        """Returns the ledger itself: copying it neither repeats nor forgets what was done to the data."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Ledger:
        """Returns the ledger itself, for the reason that `__copy__` gives."""
        return self

    def __repr__(self) -> str:
        """Returns what is in the ledger, in a few lines: the event so far, what was disclosed, and whether it is void."""
        return "\n".join(["Ledger", *(f"  {name:<9}  {value}" for name, value in self._describe())])

    def _repr_html_(self) -> str:
        """Returns the ledger as a notebook shows it."""
        edge = html_views.NEUTRAL if self.voided is None else html_views.BAD
        return html_views.render_card("Ledger", self._describe(), edge=edge)

    def _describe(self) -> list[tuple[str, str]]:
        """Returns the names and values by which the ledger is shown in words and in a notebook."""
        rows = [("event", "nothing yet" if self.empty else self.event().describe())]
        rows += [("void", self.voided)] if self.voided is not None else []
        return [*rows, *(("disclosed", name) for name in self.disclosed)]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the ledger by its state: another process has a ledger of its own from here on."""
        return _load_ledger, (self.state_dict(),)

    def new_section(self) -> str:
        """Returns the name of a new section, for one more thing that will be done to the data."""
        self._sections += 1
        return str(self._sections - 1)

    page = new_section
    """The name that `new_section` had in 0.2; it goes away in 0.4."""

    def open(
        self,
        amplify: Callable[[Event], Event],
        planned: Callable[[], Event],
        cover: str | None = None,
        bins: int | None = None,
        section: str = "",
        *,
        spent: Iterable[Event] = (),
    ) -> None:
        """Opens a draw in a section of the ledger, and closes the one that was open in the section before.

        Args:
            amplify: what the sampler makes of an event on this draw.
            planned: returns the event that is charged if nothing is released on the draw.
            cover: the name of the pass over the data that the draw belongs to; None if it belongs to none.
            bins: the number of draws of that pass, if each record chose one of them for itself.
            section: whose draw it is.
            spent: events of making the draw, which are of all of the data.

        """
        # At most one draw is open in a section. Closing the one before charges what it released, or what it had
        # planned.
        self.close(section)
        # What was released in order to make the draw is about all records, so it is charged without this draw's
        # amplification.
        for event in spent:
            self.release(event, section)
        self._open[section] = _OpenDraw(amplify, planned, None if cover is None else f"{section}/{cover}", bins)

    def close(self, section: str = "") -> None:
        """Closes the open draw of a ledger section: nothing more will be released on it."""
        draw = self._open.pop(section, None)
        if draw is not None:
            self._append(draw.to_entry())

    def close_all(self) -> None:
        """Closes the open draws of all ledger sections, where a stage of several has ended."""
        for section in list(self._open):
            self.close(section)

    def release(self, event: Event, section: str = "") -> None:
        """Enters a release in the ledger, on the section's open draw; with no draw open there, on all of the data."""
        if section in self._open:
            self._open[section].released.append(event)
        else:
            self._append(LedgerEntry(canonical(event), 1))

    def void(self, reason: str, *, announce: bool = True) -> None:
        """Records in the ledger that there is no guarantee from here on, and tells so the first time.

        Args:
            reason: in words, with the cure.
            announce: whether to warn, or to raise in a strict run; False for audits, which void on purpose.

        Raises:
            ClaimVoided: for the first reason, if a run with `strict=True` writes in this ledger.

        """
        # The reason is entered before anything is told: an error that somebody catches must not undo it.
        is_first = self.voided is None
        self.voided = self.voided or reason
        if NonPrivate(reason) not in (entry.event for entry in self._entries):
            self._append(LedgerEntry(NonPrivate(reason), 1))
        if is_first and announce:
            voiding.announce(reason, strict=self.is_strict)

    def disclose(self, name: str) -> None:
        """Records something that the claim will list as not covered."""
        self._disclosed[name] = None

    def declare(self, what: str) -> None:
        """Records the user's word for something; the claim will say that it rests on it."""
        self._declared[what] = None

    def count(self, section: str, counts: LotCounts) -> None:
        """Records what became so far of the lots that were drawn in a section."""
        self._counts[section] = counts

    def uses(self, dataset: Any, unit: str = _RECORD, declared: str = "") -> None:
        """Enters in the ledger that these records are used, in units; other ledgers that they are used under will be
        named.

        Two units in one ledger have no common guarantee: of what is bounded by record nobody knows what a person moves.
        `declared` is the user's word for what a unit is.
        """
        if unit != self._unit and not self.empty:
            raise Refusal(
                f"this ledger is about one {self._unit} more or fewer, and this is drawn and bounded by {unit}.\n"
                "A claim is about one kind of neighbour, so all that shares a ledger needs the same unit.\n"
                "Give the same `unit`, or keep a Ledger() of its own for it."
            )
        self._unit = unit
        if declared:
            self.declare(declared)
        self._data += history.enter_use_of_data(dataset, self)

    def trains(self, parameters: Iterable[nn.Parameter]) -> None:
        """Enters in the ledger that a run on these parameters writes in it; others that they are trained under will be
        named.
        """
        trained = list(parameters)
        self.watchers.take_over(trained, self.void)
        known = {id(each) for each in self._trained}
        self._trained += [each for each in history.enter_training(trained, self) if id(each) not in known]

    @property
    def rests_on(self) -> tuple[str, ...]:
        """What the ledger's claim rests on: what holds the facts about the user's code that the events take for
        granted.
        """
        counts = list(self._counts.values())
        word = lot_counts.describe_assumptions(counts, self._unit)
        return (*lot_counts.describe_counts(counts, self._unit), *self._declared, *word)

    def record_coordinates(self, coordinates: int) -> None:
        """Records that noise is added to so many numbers at once, because the cost of its end grows with them."""
        self._coordinates = max(self._coordinates, coordinates)

    noised = record_coordinates
    """The name that `record_coordinates` had in 0.2; it goes away in 0.4."""

    @property
    def coordinates(self) -> int:
        """The most numbers that noise was added to at once."""
        return self._coordinates or MOST_COORDINATES

    @property
    def disclosed(self) -> tuple[str, ...]:
        """What the ledger was told that its claim does not cover, in the order it was said."""
        others = history.count_other_ledgers(self._data, self)
        elsewhere = [claims.TRAINED_BEFORE] if history.count_other_ledgers(self._trained, self) else []
        return (*self._disclosed, *elsewhere, *([claims.name_other_ledgers(others)] if others else []))

    @property
    def length(self) -> int:
        """What was drawn and released so far, in entries with a guarantee; open draws included."""
        return sum(e.count for e in self._entries if is_private(e.event)) + len(self._open)

    @property
    def empty(self) -> bool:
        """True when nothing was drawn, released or voided."""
        return not self._entries and not self._open

    def event(self) -> Event:
        """Returns everything in the ledger so far as one event; open draws are included."""
        passes: dict[str, list[LedgerEntry]] = {}
        parts: list[Event | str] = []  # a string stands for the pass of that name, where it began
        # Entries of one pass are collected, because the theorem about a pass is about all of its lots together. The
        # pass stands where its first lot stood; composition does not depend on the order.
        for entry in self._all_entries():
            if entry.cover is None:
                parts.append(Repeat(entry.event, entry.count))
            elif entry.cover in passes:
                passes[entry.cover].append(entry)
            else:
                passes[entry.cover] = [entry]
                parts.append(entry.cover)
        return compose(_event_of_pass(passes[part]) if isinstance(part, str) else part for part in parts)

    def claim(self, delta: float, *, accountant: Accountant | None = None) -> Claim:
        """Returns what can truly be said of everything in the ledger: a `Guarantee`, or a `NoGuarantee` with its
        reason.

        Every run that writes in this ledger is asked first: it looks at its parameters, and tests the end of its lots.
        """
        self.watchers.run_checks(self.void)
        chosen = PLD() if accountant is None else accountant
        return claims.make_claim(
            self.event(), delta, chosen, self.disclosed, self.rests_on, self.coordinates, self._unit
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns the ledger as JSON can hold it; open draws are in it as charged."""
        rows = [[to_json(entry.event), entry.count, entry.cover, entry.bins] for entry in self._all_entries()]
        return {
            "entries": rows,
            "pages": self._sections,
            "disclosed": list(self._disclosed),
            "declared": list(self._declared),
            "counts": {section: list(counts) for section, counts in self._counts.items()},
            "coordinates": self._coordinates,
            "unit": self._unit,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues a saved ledger from its JSON state.

        A ledger that holds something else is never overwritten; one that holds the same entries keeps them.
        """
        saved_entries = [LedgerEntry(from_json(event), *rest) for event, *rest in state["entries"]]
        # A ledger only grows. Loading over other entries would forget releases that cannot be taken back.
        if not self.empty and self._all_entries() != saved_entries:
            raise ValueError("this ledger is not empty: loading would forget what was released; load into a new one")
        if self.empty:
            self._entries, self._unit = saved_entries, state.get("unit", _RECORD)
        # Of every count the larger or the united value stays: what one side knows about the data was done, whichever
        # side it is.
        self._sections = max(self._sections, state["pages"])
        self._coordinates = max(self._coordinates, state["coordinates"])
        self._disclosed = {**dict.fromkeys(state["disclosed"]), **self._disclosed}
        self._declared = {**dict.fromkeys(state.get("declared", ())), **self._declared}
        for section, counts in state.get("counts", {}).items():
            self._counts.setdefault(section, LotCounts(*counts))

    def _all_entries(self) -> list[LedgerEntry]:
        """Returns all entries of the ledger, with one for every draw that is still open."""
        entries = self._entries
        for draw in self._open.values():
            entries = _append_entry(entries, draw.to_entry())
        return entries

    def _append(self, entry: LedgerEntry) -> None:
        self._entries = _append_entry(self._entries, entry, in_place=True)


def _load_ledger(state: Mapping[str, Any]) -> Ledger:
    ledger = Ledger()
    ledger.load_state_dict(state)
    return ledger


def _event_of_pass(entries: list[LedgerEntry]) -> Event:
    """Returns the event of all ledger entries of one pass, of whose draws a record meets at most one."""
    bins = entries[0].bins
    # A phase that is charged as a whole has one event, however many of its draws were made.
    if any(entry.event.is_whole_phase for entry in entries):
        return compose(dict.fromkeys(entry.event for entry in entries))
    lots = [(entry.event, entry.count) for entry in entries]
    return Shuffle.of_lots(lots) if bins is None else BallsInBins.of_lots(bins, lots)


def _append_entry(entries: list[LedgerEntry], entry: LedgerEntry, *, in_place: bool = False) -> list[LedgerEntry]:
    """Returns the ledger's entries with one more, which is merged into the last if the two are alike."""
    result = entries if in_place else list(entries)
    last = result[-1] if result else None
    if last is not None and (last.event, last.cover, last.bins) == (entry.event, entry.cover, entry.bins):
        result[-1] = LedgerEntry(entry.event, last.count + entry.count, entry.cover, entry.bins)
    else:
        result.append(entry)
    return result


def ledger_for(model: nn.Module, given: Ledger | None) -> Ledger:
    """Returns the ledger that a run on this model writes in: the one given, else that of its parameters, else a new
    one.

    Given another than the one its parameters were trained under, the claim will say that it does not cover their past.
    """
    if given is not None and not isinstance(given, Ledger):
        raise TypeError(f"ledger={given!r}: must be a sordino.Ledger, the one everything done to this data goes into")
    if given is None:
        given = history.ledger_of(model.parameters()) or Ledger()
    given.trains(model.parameters())
    return given
