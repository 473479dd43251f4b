"""What an experiment says of itself, and what comes of it: panels, numbers beside the published ones, findings judged.

Everything here is data: an `Outcome` is kept as JSON, and pages and figures are made from that alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sordino.app.report.panels import Panel, panel_from_table

if TYPE_CHECKING:
    from sordino_lab.curve_plan import CurvePlan
    from sordino_lab.workbench import Workbench

SOURCES: Mapping[str, str] = {
    "000": "Guo 2024, Differential privacy meets weight decay (slides)",
    "001": "Pflaeging 2023, Varianten von DPSGD (thesis)",
    "002": "On Abadi et al. 2016, Deep learning with differential privacy (summary)",
    "003": "Karimireddy 2024, Privacy preserving machine learning, week 3 (lecture)",
    "004": "Matthews, Foster & Sunray 2023, DP-SGD (slides)",
}
"""The five sources by number."""

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "not testable at this size"
OF_SECONDS = 6.0
"""CPU seconds at --quick up to which an experiment belongs to `sordino lab run seconds`."""


@dataclass(frozen=True)
class Compared:
    """One number of ours beside the published one."""

    what: str
    ours: float | None
    published: float
    where: str
    spread: float | None = None
    """Standard deviation over seeds."""
    unit: str = ""
    seeds: int | None = None
    """How many seeds the mean is of, where it is one."""

    def __post_init__(self) -> None:
        for name in ("ours", "spread"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def difference(self) -> float | None:
        """Ours − published; None where ours is no number."""
        return None if self.ours is None or not math.isfinite(self.ours) else self.ours - self.published


@dataclass(frozen=True)
class Finding:
    """A sentence of the source as a predicate."""

    says: str
    line: str
    """SOURCE:LINE."""
    holds: bool | None
    """None: this size cannot tell."""
    because: str
    """Our numbers, in one sentence."""

    def __post_init__(self) -> None:
        if self.holds is not None:
            object.__setattr__(self, "holds", bool(self.holds))  # numpy's is another

    @property
    def verdict(self) -> str:
        """In words."""
        return UNTESTED if self.holds is None else HOLDS if self.holds else FAILS


@dataclass(frozen=True)
class Outcome:
    """What came of an experiment."""

    panels: Sequence[Panel]
    compared: Sequence[Compared] = ()
    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    """What disagrees with the source and why; what has no guarantee and why."""
    commands: Sequence[str] = ()
    """`sordino train …`, one for each curve that was trained."""
    numbers: Mapping[str, Any] | None = None
    """Whatever else was measured."""

    def table(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "panels": [one.table() for one in self.panels],
            "compared": [{**asdict(one), "ours": _finite(one.ours)} for one in self.compared],
            "findings": [asdict(one) for one in self.findings],
            "notes": list(self.notes),
            "commands": list(self.commands),
            "numbers": dict(self.numbers or {}),
        }


def outcome(table: Mapping[str, Any]) -> Outcome:
    """An outcome from its table."""
    return Outcome(
        [panel_from_table(one) for one in table["panels"]],
        [Compared(**one) for one in table["compared"]],
        [Finding(**one) for one in table["findings"]],
        list(table["notes"]),
        list(table["commands"]),
        dict(table["numbers"]),
    )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One figure or table: its facts, and the function that makes it."""

    id: str
    source: str
    figure: str
    """Which figures and tables of the source."""
    lines: str
    """Where in the source's text."""
    title: str
    shows: str
    """The claim, in one sentence."""
    setting: str
    """The source's own."""
    reduced: str
    """What --quick leaves out."""
    middle: str = ""
    """What the default size leaves out, where it is something else."""
    differs: str = ""
    """In what even the full size differs from the source in network or data; such a run has no verdict."""
    nouns: tuple[str, ...]
    """Names of sordino that it is made of."""
    terms: str = ""
    """The source's own words for them, where they are German."""
    seconds: float
    """CPU seconds at --quick, roughly: what is longest is begun first."""
    run: Callable[[Workbench], Outcome]
    plans: Callable[[Workbench], Sequence[CurvePlan]] | None = None
    """Trainings that it needs, so that they can be done beforehand and side by side."""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source={self.source!r}: there is {', '.join(SOURCES)}")

    @property
    def of_seconds(self) -> bool:
        """Whether it belongs to a first look."""
        return self.seconds <= OF_SECONDS

    def facts(self) -> dict[str, Any]:
        """What it says of itself, for JSON."""
        return {
            name: getattr(self, name)
            for name in (
                "id",
                "source",
                "figure",
                "lines",
                "title",
                "shows",
                "setting",
                "reduced",
                "middle",
                "differs",
                "nouns",
                "terms",
            )
        }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
