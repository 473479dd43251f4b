"""Everything a report says, as plain values; the templates only lay it out.

**Privacy:** of a run without a guarantee no ε is computed, and none that was asked for is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sordino.accounting import PLD, Tradeoff, meaning, tradeoff
from sordino.app.report.audits import describe_audits
from sordino.app.report.checklist import Question, answer_checklist
from sordino.app.report.evidence import Evidence
from sordino.app.report.statement import Statement
from sordino.app.runs.directory import FINISHED, read_findings
from sordino.app.runs.evaluate import describe_measures
from sordino.ledger.claims import Guarantee, explain_not_covered, round_up

_DELTAS = (1e-4, 1e-5, 1e-6, 1e-8)
_POINTS = 40
"""Of the trade-off curve."""
_TARGETS = ("epsilon", "target_epsilon", "budget", "budget_stop")
"""Fields that name an ε that was asked for."""

_FIRST = ("recipe", "resolved")

ALWAYS = (
    ("Several records of one person", "The unit is a record. Whoever is in k of them has about k times the ε."),
    ("Tuning", "Other runs on the same data, and choices made by looking at it, cost privacy of their own."),
    ("The test records", "Accuracy was measured on them exactly; they are taken to be public."),
    ("What was public before", "The architecture, the initial weights and frozen features are taken to be public."),
    ("Time and memory", "Larger lots take longer; nothing hides that from who can watch the machine."),
    ("Rounding", "The theorems are about real numbers, the noise is in floating point."),
    (
        "SECRET-noise-key-do-not-share.json",
        "It holds the key of the noise while a run can be resumed. Never give it away.",
    ),
)

_SIZE_TOLD = (("The number of records", "It is told here and in config.toml."),)


@dataclass(frozen=True)
class PrivacyFacts:
    """What a report says about privacy if there is a guarantee."""

    guarantee: Guarantee
    epsilon: str
    factor: str
    chance: str
    tier: str
    attack: meaning.Attack
    curve: Tradeoff
    at_delta: list[tuple[str, str]]
    mu: str | None
    neighbours: str
    not_covered: list[tuple[str, str]]
    checklist: list[Question]


@dataclass(frozen=True)
class ReportFacts:
    """Everything that a report says about a run."""

    evidence: Evidence
    title: str
    headline: list[tuple[str, str]]
    measures: list[tuple[str, str, str]]
    """Name, value, and the baseline's value."""
    confusion: list[tuple[str, list[int]]]
    """How many records of a class were said to be of each class."""
    privacy: PrivacyFacts | None
    reason: str
    unfinished: str
    config: list[tuple[str, list[tuple[str, str]]]]
    always: list[tuple[str, str]]
    audits: list[tuple[str, str]]


def collect_facts(evidence: Evidence, statement: Statement) -> ReportFacts:
    """Returns all facts that a report says about a run, as plain values."""
    # Without a guarantee nothing about privacy is computed, and fields that name a target ε are hidden.
    guarantee = evidence.guarantee
    dataset = evidence.get("recipe", "dataset") or evidence.get("recipe", "name") or evidence.name
    return ReportFacts(
        evidence,
        f"{dataset}: " + ("a privately trained network" if guarantee else "a network trained without a guarantee"),
        _headline_figures(evidence),
        describe_measures(_last_measures(evidence)),
        _confusion_rows(evidence),
        _privacy_facts(evidence, guarantee, statement) if guarantee else None,
        "" if guarantee else getattr(evidence.claim, "reason", ""),
        _unfinished_warning(evidence),
        _list_configuration(evidence.config, hide=() if guarantee else _TARGETS),
        [*ALWAYS, *_SIZE_TOLD] if evidence.get("resolved", "dataset_size") else list(ALWAYS),
        describe_audits(read_findings(evidence.folder)),
    )


def _privacy_facts(evidence: Evidence, guarantee: Guarantee, statement: Statement) -> PrivacyFacts:
    """Returns a report's facts about privacy: trade-off curve, best attack, ε at other δ, and the checklist."""
    # Curve and attack are computed from the event, so they belong to exactly this claim.
    curve = tradeoff(guarantee.event, points=_POINTS)
    attack = meaning.attack(guarantee.event, curve)
    deltas = sorted({*_DELTAS, guarantee.delta}, reverse=True)
    epsilon_by_delta = [(f"{delta:g}", PLD().epsilon(guarantee.event, delta)) for delta in deltas]
    return PrivacyFacts(
        guarantee,
        round_up(guarantee.epsilon),
        _format_factor(guarantee.epsilon),
        _format_chance(guarantee.delta),
        meaning.tier(guarantee.epsilon),
        attack,
        curve,
        [(delta, round_up(epsilon)) for delta, epsilon in epsilon_by_delta if math.isfinite(epsilon)],
        round_up(attack.mu) if math.isfinite(attack.mu) else None,
        guarantee.neighbours,
        [(name, explain_not_covered(name) or "") for name in guarantee.not_covered],
        answer_checklist(evidence, guarantee, statement),
    )


def _format_factor(epsilon: float) -> str:
    """Returns e^ε, rounded up, as a readable factor among the facts of a report."""
    if epsilon > 14:  # a million and more says nothing that "a million" does not
        return "more than a million"
    # Rounded up, because a factor that is too small would promise too much.
    value = math.exp(epsilon)
    return f"{math.ceil(value * 100) / 100:.2f}" if value < 10 else f"{math.ceil(value):,}"


def _format_chance(delta: float) -> str:
    """Returns a small probability in words among the facts of a report, if it is one in a whole number.

    >>> _format_chance(1e-5), _format_chance(3e-6)
    ('1 in 100,000', '3e-06')
    """
    # One in so many reads easily; other values stay as they are.
    whole = round(1 / delta) if delta > 0 else 0
    return f"1 in {whole:,}" if whole and math.isclose(whole * delta, 1, rel_tol=1e-9) else f"{delta:g}"


def _headline_figures(evidence: Evidence) -> list[tuple[str, str]]:
    """Returns the main figures of a run with their labels, as facts of a report."""
    rows = []
    if evidence.last is not None:
        if evidence.last.test_accuracy is not None:
            rows.append(("test accuracy", f"{100 * evidence.last.test_accuracy:.2f} %"))
        rows.append(("test loss", f"{evidence.last.test_loss:.4g}"))
    rows.append(("steps", f"{evidence.steps:,}"))
    if evidence.last is not None:
        rows.append(("training time", _format_time(evidence.last.seconds)))
    # Public numbers of the run, as far as its config.toml has them.
    for name, label in (("noise_multiplier", "noise σ"), ("trainable", "parameters"), ("dataset_size", "records")):
        value = evidence.get("resolved", name)
        if isinstance(value, int | float):
            rows.append((label, f"{value:,}" if isinstance(value, int) else f"{value:.4g}"))
    return rows


def _last_measures(evidence: Evidence) -> Mapping[str, Any]:
    """Returns the measures of the last evaluation; empty if it has none."""
    return (evidence.last.measures or {}) if evidence.last is not None else {}


def _confusion_rows(evidence: Evidence) -> list[tuple[str, list[int]]]:
    """Returns the confusion of the last evaluation by the names of the classes, as facts of a report; empty if there is
    none.
    """
    # Data sets of the catalogue have no names of classes in the run; numbers stand for them.
    counts = _last_measures(evidence).get("confusion") or []
    names = evidence.get("resolved", "class_names") or [str(number) for number in range(len(counts))]
    return list(zip(map(str, names), counts, strict=False))


def _format_time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _unfinished_warning(evidence: Evidence) -> str:
    """Returns the warning among a report's facts for a run that has not finished, else an empty text."""
    if evidence.status == FINISHED:
        return ""
    return (
        f"This run has not finished (it is marked “{evidence.status}”). What is said about privacy here speaks about "
        f"{evidence.steps:,} steps, whether or not all of them were made."
    )


def _list_configuration(config: Mapping[str, Any], hide: tuple[str, ...]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns the tables of config.toml as facts of a report, with the important ones first and without the fields in
    `hide`.
    """
    # The recipe and what was resolved come first, because readers look for them.
    tables = {name: table for name, table in config.items() if isinstance(table, Mapping)}
    order = sorted(tables, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    listed = ((name, [(f, _format_value(v)) for f, v in tables[name].items() if f not in hide]) for name in order)
    return [(name, rows) for name, rows in listed if rows]


def _format_value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
