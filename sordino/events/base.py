"""The base class of events: what every event can be asked, with defaults that are safe for a new one.

An event is a frozen dataclass in a file of its own. That file says all that is known about it: the neighbouring relation,
the dominating pair or the phases it adds, its Rényi divergence if it has a theorem of its own, the end of its noise. The
accountants, the codec, the ledger and the audits ask by the methods below. CONTRIBUTING.md shows how to add an event.

**Privacy:** what an event does not say is refused: without a dominating pair it is `Unsupported`. Events inside it are
found in its fields, so a `NonPrivate` part can be hidden nowhere.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from sordino import validate
from sordino.events.phase_collector import PhaseCollector, Unsupported
from sordino.events.relation import Relation
from sordino.privacy_loss.lattice import Sampled
from sordino.privacy_loss.pairs import Array, Pair
from sordino.privacy_loss.renyi import sampled_curve


class Event:
    """Base of all events; final classes, one per mechanism or way of sampling.

    Examples:
        >>> from sordino.events import Gaussian, Repeat
        >>> Repeat(Gaussian(1.1), 2) == Repeat(Gaussian(1.1), 2)
        True

    """

    assumes: ClassVar[str] = ""
    """For a way of sampling: what a claim about it takes to be true of the draws, for the report."""
    relation: ClassVar[Relation | None] = None
    """For a way of sampling: the neighbouring relation that its theorem is about."""
    is_one_draw: ClassVar[bool] = False
    """Whether one such event stands for one draw, so that a run of so many draws has as many of them."""
    is_whole_phase: ClassVar[bool] = False
    """Whether the event is that of all draws of a phase, however many of them were made."""
    is_step_of_phase: ClassVar[bool] = False
    """Whether the event has a price only together with the other steps of its phase."""
    is_tight: ClassVar[bool] = True
    """Whether some data attain the phases; if not, lower bounds come from `lower_epsilon` and `lower_delta` alone."""
    is_counted_one_by_one: ClassVar[bool] = False
    """Whether basic and advanced composition count k such events as k releases, rather than what k amount to together."""
    no_renyi_divergence: ClassVar[str] = ""
    """Why the event has no finite Rényi divergence; empty if it has one."""

    # What is inside the event.

    def inner_events(self) -> tuple[Event, ...]:
        """Returns the events directly inside any event, wherever its fields hold them."""
        # Any field may hold an event or a tuple of events, so a new kind of event needs no code here.
        found: list[Event] = []
        for value in vars(self).values():
            if isinstance(value, Event):
                found.append(value)
            elif isinstance(value, tuple):
                found += [item for item in value if isinstance(item, Event)]
        return tuple(found)

    def walk(self) -> Iterator[Event]:
        """Yields this event, of whatever kind, and everything inside it, outermost first."""
        yield self
        for inner in self.inner_events():
            yield from inner.walk()

    def with_inner_events(self, change: Callable[[Event], Event]) -> Self:
        """Returns any event with every event directly inside it changed; the event itself if nothing changes."""
        # Fields are rebuilt only if an event inside changed, which keeps equal events the same object.
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        is_same = True
        for name, value in fields.items():
            if isinstance(value, Event):
                fields[name] = change(value)
                is_same = is_same and fields[name] is value
            elif isinstance(value, tuple):
                fields[name] = tuple(change(item) if isinstance(item, Event) else item for item in value)
                is_same = is_same and all(new is old for new, old in zip(fields[name], value, strict=True))
        return self if is_same else self.from_fields(fields)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Returns an event with these fields, every one of which is validated by the constructor."""
        return cls(**fields)

    def is_shortest(self) -> bool:
        """Returns whether nothing can be left out of this event; False where that would take longer to find out."""
        return not self.inner_events()

    def shorten(self) -> Event:
        """Returns the shortest event that is equal to this one."""
        return self.with_inner_events(lambda inner: inner.shorten())

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON object from which `from_json` makes an equal event."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # every concrete event is a dataclass
        return {"type": type(self).__name__, **{field.name: _encode(getattr(self, field.name)) for field in fields}}

    def describe(self) -> str:
        """Returns the event on one line, as its constructor would be called."""
        return f"{type(self).__name__}({', '.join(_describe_value(value) for value in vars(self).values())})"

    # What the event costs.

    def dominating_pair(self, moves: int) -> Pair:
        """Returns the dominating pair of any event as one release on all the data, when a sum moves by `moves`
        contributions.

        Raises `Unsupported` for events that have none, such as ways of sampling: they add phases instead.
        """
        raise Unsupported(self, "no theorem for this event here")

    def add_phases(self, collector: PhaseCollector, count: int) -> None:
        """Adds what `count` such events amount to under the collector's relation; by default, their dominating pair."""
        collector.add(Sampled(self.dominating_pair(collector.moves)), count)

    def add_group_phases(self, collector: PhaseCollector, group: Event, size: int, count: int) -> None:
        """Adds to the phases what `count` events amount to for `size` records that come and go together; the base class
        of events has no theorem and refuses.

        Args:
            collector: to add to.
            group: the event that asks, named if there is no theorem.
            size: how many records.
            count: how often the event happens.

        """
        raise Unsupported(group, "no theorem for groups of this event")

    def renyi_curve(self, orders: Array, relation: Relation) -> Array:
        """Returns the Rényi divergence of any event at each order; by default, the sum of the divergences of its
        phases.
        """
        # An event whose parts have no Rényi divergence is refused by name; a sum without them would be too small.
        for inner in self.walk():
            if inner.no_renyi_divergence:
                raise Unsupported(inner, inner.no_renyi_divergence)
        # Divergences of one order add up over independent phases, and a phase of k equal steps counts k times.
        collector = PhaseCollector(relation)
        self.add_phases(collector, 1)
        total = np.zeros(len(orders))
        for sampled, count in collector.phases():
            if sampled.pair.no_renyi_divergence:
                raise Unsupported(self, sampled.pair.no_renyi_divergence)
            total += count * sampled_curve(sampled, orders)
        return total

    def without_amplification(self) -> Event:
        """Returns an event that dominates this one and is cheap to account for; by default, this one."""
        return self

    def lower_epsilon(self, count: int, delta: float) -> float:
        """Returns an ε that `count` such events certainly reach at δ; asked only if `is_tight` is False."""
        return 0.0

    def lower_delta(self, count: int, epsilon: float) -> float:
        """Returns a δ that `count` such events certainly reach at ε; asked only if `is_tight` is False."""
        return 0.0

    # The noise of the event.

    @property
    def noise_multiplier(self) -> float | None:
        """The size of the noise that this release adds, relative to a contribution; None if it adds none itself."""
        return None

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns what the end of an event's generated noise adds to δ, for a sum that moves by `moves` contributions.

        By default it is the sum over the events inside. Sampling could only make it smaller, which is not used. An event
        with none inside has to say it itself.
        """
        if not self.inner_events():
            raise Unsupported(self, "does not say what the end of its noise costs")
        # A union bound: the δ of several ends add up, whatever they have to do with each other.
        return math.fsum(inner.noise_end(moves, delta, coordinates) for inner in self.inner_events())

    def scale_noise(self, factor: float) -> Event:
        """Returns the event with its noise multiplied by a factor; choices cost ε divided by it."""
        return self.with_inner_events(lambda inner: inner.scale_noise(factor))


def _encode(value: Any) -> Any:
    """Returns a field of an event as JSON can hold it, for the base class's `to_json`."""
    if isinstance(value, Event):
        return value.to_json()
    return [_encode(item) for item in value] if isinstance(value, tuple) else value


def _describe_value(value: Any) -> str:
    """Returns a field of an event as the base class's `describe` prints it on one line."""
    if isinstance(value, Event):
        return value.describe()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


_TYPES: dict[str, type[Event]] = {}
Kind = TypeVar("Kind", bound=type[Event])


def register_event(kind: Kind) -> Kind:
    """Registers a subclass of the base class as a kind of event, so that JSON can hold it.

    It is used as a decorator above `@dataclass`.

    Raises if the class is no frozen dataclass, or if another event has the same name: files that name an event would
    otherwise come to mean something else.

    Args:
        kind: the class of the event.

    Returns:
        The same class.

    Examples:
        >>> from dataclasses import dataclass
        >>> from sordino.accounting import PLD
        >>> from sordino.events import Event, Repeat, from_json
        >>> from sordino.privacy_loss.pairs import GaussianPair
        >>> @register_event
        ... @dataclass(frozen=True)
        ... class SumOfTwo(Event):
        ...     multiplier: float
        ...     def dominating_pair(self, moves):
        ...         return GaussianPair(2 * moves / self.multiplier)  # one record is in both parts of the sum
        >>> round(PLD().epsilon(Repeat(SumOfTwo(20.0), 4), delta=1e-5), 3)
        0.726
        >>> from_json(SumOfTwo(20.0).to_json())
        SumOfTwo(multiplier=20.0)

    """
    # Events are compared, hashed and stored, so they must not change.
    if not dataclasses.is_dataclass(kind) or not kind.__dataclass_params__.frozen:
        raise TypeError(f"{kind.__name__}: an event must be a frozen dataclass; write @dataclass(frozen=True) below")
    # JSON finds a class by its name, so a name belongs to one class; importing the same class again is allowed.
    known = _TYPES.get(kind.__name__, kind)
    if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ValueError(f"{kind.__name__}: {known.__module__} has an event of this name; choose another one")
    _TYPES[kind.__name__] = kind
    return kind


def event_types() -> Mapping[str, type[Event]]:
    """Returns every registered kind of event by its name."""
    return _TYPES


def require_event(event: object, *, may_be_step: bool = False) -> Event:
    """Returns the event itself, a subclass of the base class, or that of a noise such as sordino.Gaussian(1.1); refuses
    anything else.

    Only what puts the steps of a phase together may hold an event that is one of them, as `may_be_step` says.
    """
    # Noise of `sordino.release` knows the event that it amounts to.
    event = getattr(event, "as_event", event)
    if not isinstance(event, Event):
        raise TypeError(
            f"event={validate.shorten(event)}: must be an event of sordino.events, not {type(event).__name__}"
        )
    # A step of correlated noise has no price by itself, because other steps share its noise.
    if not may_be_step and _holds_step(event):
        raise TypeError(
            f"event={event!r}: correlated noise has a price only inside CyclicPoisson or FixedOrder.\n"
            "Its steps are not independent, and no theorem is known here for other draws, such as plain Poisson.\n"
            "Put it inside one of the two, or use plain Gaussian noise."
        )
    return event


def _holds_step(event: Event) -> bool:
    """Returns whether any event holds a step that is not inside the event of its whole phase, which the base class's
    `require_event` refuses.
    """
    # Inside the event of its whole phase a step has its price, so the search ends there.
    if event.is_step_of_phase or event.is_whole_phase:
        return event.is_step_of_phase
    return any(_holds_step(inner) for inner in event.inner_events())


LEAST_NOISE = 1e-9
"""Less noise than this, relative to what a record contributes, is none: ε would be beyond floating point."""


def require_noise(name: str, value: object) -> float:
    """Returns the size of an event's noise, for all subclasses of the base class; refuses what is not positive, and
    what is too little to be accounted for.
    """
    result = validate.positive(name, value)
    if result < LEAST_NOISE:
        raise ValueError(f"{name}={value!r}: must be at least {LEAST_NOISE:g}; less is no noise at all")
    return result


def set_field(event: Event, name: str, value: object) -> None:
    """Stores a validated value in a frozen dataclass."""
    object.__setattr__(event, name, value)
