"""The questions that a privacy claim should answer, with this run's answers.

Ponomareva et al. 2023, *How to DP-fy ML: A Practical Guide to Machine Learning with Differential Privacy*, §5.3.3. What
the run knows is filled in from its ledger; what only people know is theirs to state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sordino import events
from sordino.app.report.evidence import Evidence
from sordino.app.report.statement import NOT_STATED, Statement
from sordino.app.runs import RECIPES
from sordino.app.runs.recipe import MEASURED
from sordino.events import Event
from sordino.ledger.claims import Guarantee, describe_event, round_up


@dataclass(frozen=True)
class Question:
    """One row of the checklist; `answer` is None if only people can know it and have not said it."""

    part: str
    name: str
    answer: str | None


def answer_checklist(evidence: Evidence, guarantee: Guarantee, statement: Statement) -> list[Question]:
    """Returns all rows of a report's checklist, questions with this run's answers, in the order of the paper."""
    # Answers that only people can give come from the statement, and stay open if it lacks them.
    size = evidence.get("resolved", "dataset_size")
    of_records = f" of {size:,}" if isinstance(size, int) else ""
    return [
        Question(
            "Setting", "DP setting", "central: whoever trains holds the records in the clear; the result is protected"
        ),
        Question("Definition", "Data accesses covered", _describe_accesses(guarantee)),
        Question("Definition", "Tuning", statement.tuning or _describe_tuning(evidence)),
        Question(
            "Definition",
            "What the guarantee covers",
            "every noisy sum released in training, so the final network, each one on the way, and all computed from them",
        ),
        Question("Definition", "What is given out, to whom", statement.release),
        Question("Definition", "Unit of privacy", f"one {guarantee.unit}{of_records} in the training set"),
        Question("Definition", "What a record stands for", statement.unit),
        Question(
            "Definition",
            "Neighbours",
            f"two data sets are neighbours when they differ by {guarantee.neighbours} ({guarantee.relation})",
        ),
        Question("Accounting", "Method", f"{guarantee.accountant}, an upper bound"),
        Question("Accounting", "Assumptions, and whether they hold", _describe_assumptions(guarantee.event)),
        Question(
            "Accounting",
            "Formal statement",
            f"({round_up(guarantee.epsilon)}, {guarantee.delta:g})-differential privacy of "
            f"{describe_event(guarantee.event)}",
        ),
        Question("Verifiability", "Recompute", "privacy.json holds the event; `sordino report` accounts for it anew"),
        Question("Verifiability", "Open code, audit", statement.verify),
    ]


def _describe_accesses(guarantee: Guarantee) -> str:
    """Returns the checklist's answer to which accesses to the data the guarantee covers."""
    parts = guarantee.event.events if isinstance(guarantee.event, events.Together) else (guarantee.event,)
    more = "" if len(parts) == 1 else f" and all else in the ledger ({len(parts)} parts)"
    return f"the training steps{more}; not: anything done to the data outside this run"


def _describe_tuning(evidence: Evidence) -> str | None:
    """Returns the checklist's answer to how the recipe's fields were found; if the run changed some of them, it says
    that this is not stated.
    """
    # A recipe's word about its tuning holds only for the fields that were tuned.
    tuning = evidence.get("recipe", "tuned")
    if not isinstance(tuning, str) or not tuning:
        return None
    differences = [
        _find_changed_fields(recipe.table(), evidence.config["recipe"]) for recipe in RECIPES if recipe.tuned == tuning
    ]
    changed = min(differences, key=len, default=[])
    if not changed:
        return tuning
    named = ", ".join(changed)
    differs = "differs" if len(changed) == 1 else "differ"
    return f"recipe: {tuning}; in this run {named} {differs}: how this was chosen is {NOT_STATED}"


def _find_changed_fields(recipe: Mapping[str, Any], run: Mapping[str, Any]) -> list[str]:
    """Returns, for the checklist, the names of the recipe's fields that a run changed."""
    # The target may differ: recipes are tuned at a few ε and used at others.
    ignored = (*MEASURED, "name", "epsilon", "noise_multiplier")
    return [name for name in {**recipe, **run} if name not in ignored and recipe.get(name) != run.get(name)]


def _describe_assumptions(event: Event) -> str:
    """Returns the checklist's answer about the assumptions of the accounting, and whether they hold."""
    # Each event names its own assumption; several draws of one kind share it.
    drawn = dict.fromkeys(part.assumes for part in events.walk(event) if part.assumes)
    fixed = "each record's part of a sum is bounded, and noise comes from a cryptographic stream: held by construction"
    return "; ".join([*drawn, fixed, "arithmetic is that of real numbers: holds up to floating-point rounding"])
