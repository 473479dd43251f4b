"""Claims: `Guarantee`, which has an ε, and `NoGuarantee`, which has a reason and none.

These two are the only types that make a privacy statement.

A claim is made from an event by an accountant, and by nothing else. Whatever the accountant cannot bound, and whatever
the ledger holds that no theorem covers, becomes a `NoGuarantee` with its reason.

Privacy: a `Guarantee` is a statement about the event. docs/claims.md lists what it assumes of the world around it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from sordino import events, html_views, validate
from sordino.accounting.accountant import Accountant, Unsupported
from sordino.accounting.phases import relation_of
from sordino.events import Event, Group, NonPrivate, Relation
from sordino.release.noise_tail import MOST_COORDINATES, delta_of_noise_end

DATASET_SIZE = "dataset size"
BY_THE_RATE = "dataset size, by the rate"
BY_THE_BATCH = "dataset size, by expected_batch"
SEED = "seed"
TRAINED_BEFORE = "what these parameters were trained on under another ledger"
COPIED = "what the initial weights were trained on: another private run of this process made them"
WRITTEN_BEFORE = "what the parameters were trained on before the run: they had been written to many times"
TEACHER_WRITTEN = "what the modules that the loss refers to beside the model were trained on"
OTHERS = "what was done to the same data under"
REPLAYED = "noise of a saved state, used again"
"""Followed by why every bit is the same, in the words of whoever used it."""

_WHY = {
    DATASET_SIZE: "the step was divided by rate × N; give expected_batch to keep N private",
    BY_THE_RATE: "rate × N is a whole number, so it may have been computed from it; choose a round one",
    BY_THE_BATCH: "it is rate × N, so it may have been computed from it; choose a round number",
    TRAINED_BEFORE: "leave `ledger` out to go on with theirs, and the claim will add it up",
    COPIED: "give both runs one Ledger, and the claim will add it up",
    WRITTEN_BEFORE: "make steps on public data inside `with private.public(...)`, which names the data",
    TEACHER_WRITTEN: "they had been written to many times before the run, as training does",
    SEED: "the random stream can be repeated by anyone who knows the seed; leave it out for a real release",
}

_DIGITS = 3
_SEEN = 1e-6
"""The share of δ that is not seen: δ is printed to six digits, and the end of the noise may add less."""


def round_up(epsilon: float) -> str:
    """Returns ε with three digits after the point, never below its value."""
    shift = 10.0**_DIGITS
    return f"{math.ceil(epsilon * shift) / shift:.{_DIGITS}f}"


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ)-differential privacy of everything in `event`, for neighbours by `relation`.

    Args:
        epsilon: never below what the event costs.
        delta: at this δ.
        relation: which datasets count as neighbours.
        accountant: who computed it.
        event: everything that was done to the data.
        not_covered: what was read off the data, or declared public, beside it.
        rests_on: what holds the facts about your code.
        unit: what neighbours differ by.

    Examples:
        >>> import sordino as sd
        >>> ledger = sd.Ledger()
        >>> ledger.release(sd.events.Gaussian(5.0))
        >>> claim = ledger.claim(delta=1e-5)
        >>> isinstance(claim, sd.Guarantee), round(claim.epsilon, 3), claim.neighbours
        (True, 0.726, 'one record added or removed')

    """

    epsilon: float
    delta: float
    relation: Relation
    accountant: str
    event: Event
    not_covered: tuple[str, ...] = ()
    rests_on: tuple[str, ...] = ()
    """What holds the facts about the user's code; docs/claims.md says which remain the user's word."""
    unit: str = "record"
    """What neighbours differ by: all records of one person, say, where lots were drawn by person."""

    def __str__(self) -> str:
        """Returns the claim as a table of several lines.

        Ε, neighbours, accountant, event and what it does not cover.
        """
        lines = [
            f"({round_up(self.epsilon)}, {self.delta:g})-differential privacy",
            f"  neighbours   {self.relation}: {self.neighbours}",
            f"  accountant   {self.accountant}",
            f"  event        {describe_event(self.event)}",
        ]
        # What the claim does not cover comes before what it rests on: a reader must not take ε for more than it is.
        for name in self.not_covered:
            why = _WHY.get(name)
            lines.append(f"  not covered  {name}" + (f": {why}" if why else ""))
        lines += [f"  rests on     {what}" for what in self.rests_on]
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Returns the claim as a sentence, for a prompt; `print` shows all of it."""
        sentence = f"Guarantee: ({round_up(self.epsilon)}, {self.delta:g})-differential privacy for {self.neighbours}"
        # Long lists stay with `print`: a prompt shows how many there are.
        if self.not_covered:
            sentence += f"; not covered: {self.not_covered[0]}"
            others = len(self.not_covered) - 1
            sentence += f" and {others} more, which print() lists" if others else ""
        return f"{sentence}."

    def _repr_html_(self) -> str:
        """Returns the claim as HTML, as a notebook shows it."""
        uncovered = [(name, _WHY.get(name)) for name in self.not_covered]
        rows = [
            ("neighbours", self.neighbours),
            ("accountant", self.accountant),
            ("event", describe_event(self.event)),
            *(("not covered", f"{name}: {why}" if why else name) for name, why in uncovered),
            *(("rests on", what) for what in self.rests_on),
        ]
        title = f"({round_up(self.epsilon)}, {self.delta:g})-differential privacy"
        return html_views.render_card(title, rows, edge=html_views.GOOD)

    @property
    def neighbours(self) -> str:
        """How two neighbouring datasets differ, in words."""
        return self.relation.between(self.unit)


@dataclass(frozen=True)
class NoGuarantee:
    """There is no privacy statement about the run, and why.

    Args:
        reason: in words, with the cure. It has no `epsilon`: there is none to read.

    Examples:
        >>> import sordino as sd
        >>> ledger = sd.Ledger()
        >>> ledger.void("the records were printed")
        >>> print(ledger.claim(delta=1e-5))
        no privacy guarantee: the records were printed

    """

    reason: str

    def __str__(self) -> str:
        return f"no privacy guarantee: {self.reason}"

    def __repr__(self) -> str:
        """Returns the claim as a sentence, for a prompt."""
        return f"NoGuarantee: {self.reason}"

    def _repr_html_(self) -> str:
        """Returns the claim as a notebook shows it."""
        return html_views.render_card("No privacy guarantee", [("because", self.reason)], edge=html_views.BAD)


Claim: TypeAlias = Guarantee | NoGuarantee
"""What `private.claim` returns: look which of the two it is before you read an ε."""


def name_other_ledgers(count: int) -> str:
    """Returns the line saying that other ledgers of this process hold something done to the same records."""
    runs = "another ledger" if count == 1 else f"{count} other ledgers"
    return f"{OTHERS} {runs} in this process; give all of it one Ledger, or one budget file, to add it up"


def name_kept_records(attribute: str) -> str:
    """Returns how a claim names an attribute of the model in which a forward pass kept values of records."""
    return f"values of records that the model keeps in {attribute!r}: its state dict has none, torch.save(model) does"


RECORDS_CHANGED = (
    "your word that records which were written to in memory during the run were each changed by their own values and by "
    "released ones alone"
)


def name_held_rows(name: str) -> str:
    """Returns how a claim names a parameter or buffer that held rows of the dataset before the first step."""
    return (
        f"what {name!r} of the model held before the first step: rows that are equal to records; take anchors and "
        "prototypes from public data"
    )


def name_fitted(what: str) -> str:
    """Returns how a claim names preprocessing that was fitted on the records of a run without noise."""
    return (
        f"preprocessing that was fitted on these records: {what}; take constants from what the columns mean, or release "
        "them with sordino.ask"
    )


def make_claim(
    event: Event,
    delta: float,
    accountant: Accountant,
    not_covered: tuple[str, ...] = (),
    rests_on: tuple[str, ...] = (),
    coordinates: int = MOST_COORDINATES,
    unit: str = "record",
) -> Claim:
    """Returns the claim about an event at this δ, a guarantee or none, whose releases have at most so many coordinates.

    A `unit` is what every draw was made of, and what every sum was bounded in.
    """
    # A δ of 1 would make any ε true, so it is no claim.
    delta = validate.number("delta", delta)
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta!r}: must lie in [0, 1); usual is less than 1 / dataset size")
    # Some events have no guarantee whatever the accountant: say why.
    event = events.canonical(event)
    if isinstance(event, NonPrivate):
        return NoGuarantee(event.reason)
    # An empty event would get ε = 0, which reads like a guarantee about a training that never happened.
    if event == events.Together():
        return NoGuarantee("nothing was drawn and nothing was released, so there is nothing to make a claim about")
    # An approximation may lie below the true ε. Only a bound may be printed as a guarantee.
    if not accountant.is_bound:
        return NoGuarantee(f"{accountant.name} is an approximation, not a bound")
    try:
        # The end of the noise costs some δ; the accountant gets what is left of it.
        relation = relation_of(event)
        tail_delta = delta_of_noise_end(event, delta, relation, coordinates)
        if tail_delta > 0 and tail_delta >= delta:
            repeated = "records that are there several times count as one group, which needs more noise; " * any(
                isinstance(part, Group) for part in event.walk()
            )
            return NoGuarantee(
                f"δ={delta:g} is below what the noise supports: its values end, and over this event that costs "
                f"δ={tail_delta:.2g}; {repeated}ask at a larger δ"
            )
        epsilon = accountant.epsilon(event, delta if tail_delta <= _SEEN * delta else delta - tail_delta)
    # No theorem means no number. The claim then names the part of the event that has none.
    except Unsupported as error:
        return NoGuarantee(f"the {accountant.name} accountant has no theorem for {error}")
    # An infinite ε is true of every mechanism and protects nobody.
    if not math.isfinite(epsilon):
        return NoGuarantee(f"no finite ε holds at δ={delta:g}")
    return Guarantee(max(0.0, epsilon), delta, relation, accountant.name, event, not_covered, rests_on, unit)


def claim_to_json(claim: Claim) -> dict[str, Any]:
    """Returns a claim, a guarantee or none, as JSON can hold it.

    Its keys are epsilon, delta, relation, unit, accountant, event, not_covered and rests_on; or reason alone.

    >>> claim_to_json(NoGuarantee("nothing was released"))
    {'reason': 'nothing was released'}
    """
    if isinstance(claim, NoGuarantee):
        return {"reason": claim.reason}
    return {
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "relation": str(claim.relation),
        "unit": claim.unit,
        "accountant": claim.accountant,
        "event": events.to_json(claim.event),
        "not_covered": list(claim.not_covered),
        "rests_on": list(claim.rests_on),
    }


def claim_from_json(table: Mapping[str, Any]) -> Claim:
    """Returns the claim that `claim_to_json` made a table of. It states what was true when the table was written.

    >>> print(claim_from_json({"reason": "nothing was released"}))
    no privacy guarantee: nothing was released
    """
    if "reason" in table:
        return NoGuarantee(str(table["reason"]))
    return Guarantee(
        float(table["epsilon"]),
        float(table["delta"]),
        Relation(table["relation"]),
        str(table["accountant"]),
        events.from_json(table["event"]),
        tuple(table["not_covered"]),
        tuple(table["rests_on"]),
        str(table["unit"]),
    )


def explain_not_covered(name: str) -> str | None:
    """Returns why a claim does not cover something, where this is known.

    >>> explain_not_covered(SEED) is None
    False
    """
    return _WHY.get(name)


def describe_event(event: Event) -> str:
    """Returns the event of a claim on one line.

    >>> describe_event(events.Repeat(events.Poisson(0.01, events.Gaussian(1.1)), 2000))
    '2000 × Poisson(0.01, Gaussian(1.1))'
    """
    return event.describe()


claim = make_claim
"""The name of `make_claim` in version 0.2, which pages showed; it goes with 0.4."""
