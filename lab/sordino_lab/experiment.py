"""Experiments and their outcomes: panels, numbers beside the published ones, and findings that are judged.

Everything here is data. An `Outcome` is kept as JSON, and pages and figures are drawn from that alone. What an experiment
says about itself, such as its source and its setting, is in `figures.toml`; the function that runs it is in `families/`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from sordino.app.report.panels import Panel, panel_from_table

if TYPE_CHECKING:
    from sordino_lab.curve_plan import CurvePlan
    from sordino_lab.workbench import Workbench

_Value = TypeVar("_Value")

SOURCES: Mapping[str, str] = {
    "000": "Guo 2024, Differential privacy meets weight decay (slides)",
    "001": "Pflaeging 2023, Varianten von DPSGD (thesis)",
    "002": "On Abadi et al. 2016, Deep learning with differential privacy (summary)",
    "003": "Karimireddy 2024, Privacy preserving machine learning, week 3 (lecture)",
    "004": "Matthews, Foster & Sunray 2023, DP-SGD (slides)",
}
"""The five sources by number."""
LATER_PAPERS: Mapping[str, str] = {
    "005": "Papers on correlated noise: Kalinin & Lampert 2024 (arXiv:2405.13763), Kalinin et al. 2025 (arXiv:2505.12128)",
}
"""Papers beside the five sources: they have no notebook, and are cited by their numbers at arXiv in place of lines."""
ALL_SOURCES: Mapping[str, str] = {**SOURCES, **LATER_PAPERS}
"""The five sources and later papers by number, in the order of the lab's page."""
OWN = "own"
"""The source of an experiment that a user wrote; see `docs/how_to/own_variants.md`."""

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "cannot tell"
LONGEST_FIRST_LOOK = 6.0
"""CPU seconds at --quick up to which an experiment belongs to `sordino lab run seconds`."""


_NOT_FACTS = ("seconds", "run", "plans", "measures_time", "file")
"""Fields of an experiment that are no part of its result."""


class ExperimentSize(Enum):
    """How much of an experiment is run, the smallest size first."""

    TINY = "tiny"
    """For the tests: ends within two seconds and shows nothing but that the code runs."""
    QUICK = "quick"
    """For a look: ends within a minute or so."""
    MIDDLE = "middle"
    """The default: ends within minutes."""
    FULL = "full"
    """The source's own setting."""

    def pick(self, tiny: _Value, quick: _Value, middle: _Value, full: _Value) -> _Value:
        """Returns the value that an experiment uses at this size.

        >>> ExperimentSize.QUICK.pick(1, 2, 3, 4)
        2
        """
        return dict(zip(ExperimentSize, (tiny, quick, middle, full), strict=True))[self]


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
    """How many seeds the mean is taken over, where it is a mean."""

    def __post_init__(self) -> None:
        for name in ("ours", "spread"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def difference(self) -> float | None:
        """Ours − published; None where ours is not a finite number."""
        return None if self.ours is None or not math.isfinite(self.ours) else self.ours - self.published


@dataclass(frozen=True)
class Finding:
    """A sentence of the source, turned into a predicate on our numbers."""

    says: str
    line: str
    """SOURCE:LINE."""
    holds: bool | None
    """None: this size cannot tell."""
    because: str
    """Our numbers, in one sentence."""

    def __post_init__(self) -> None:
        if self.holds is not None:
            object.__setattr__(self, "holds", bool(self.holds))  # NumPy's booleans are not JSON

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return UNTESTED if self.holds is None else HOLDS if self.holds else FAILS


@dataclass(frozen=True)
class Outcome:
    """What an experiment found."""

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
        """Returns the outcome of an experiment as JSON holds it."""
        return {
            "panels": [panel.table() for panel in self.panels],
            "compared": [{**asdict(row), "ours": _none_unless_finite(row.ours)} for row in self.compared],
            "findings": [asdict(finding) for finding in self.findings],
            "notes": list(self.notes),
            "commands": list(self.commands),
            "numbers": dict(self.numbers or {}),
        }


def read_outcome(table: Mapping[str, Any]) -> Outcome:
    """Returns the outcome of an experiment from its table in JSON."""
    return Outcome(
        [panel_from_table(panel) for panel in table["panels"]],
        [Compared(**row) for row in table["compared"]],
        [Finding(**finding) for finding in table["findings"]],
        list(table["notes"]),
        list(table["commands"]),
        dict(table["numbers"]),
    )


@dataclass(frozen=True)
class Figure:
    """How an experiment is made: the function that draws it, and the trainings that it needs."""

    run: Callable[[Workbench], Outcome]
    plans: Callable[[Workbench], Sequence[CurvePlan]] | None = None
    """The trainings, so that they can be done beforehand and side by side; None where nothing is trained."""
    measures_time: bool = False
    """Whether it measures how long something takes, which other work on the machine would falsify."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One figure or table: its facts, and how it is made.

    The facts of the sources' figures are in `figures.toml`. An experiment of your own needs an id, a title and a function.
    """

    id: str
    source: str = OWN
    figure: str = "your own"
    """Which figures and tables of the source."""
    lines: str = ""
    """Where in the source's text."""
    title: str
    shows: str = ""
    """The claim, in one sentence."""
    setting: str = ""
    """The source's own setting."""
    reduced: str = ""
    """What --quick leaves out, or "nothing"; an experiment that does not say is taken to leave something out."""
    middle: str = ""
    """What the default size leaves out, where that differs from --quick."""
    differs: str = ""
    """How even the full size differs from the source in network or data; such a run has no verdict."""
    nouns: tuple[str, ...] = ()
    """Names of sordino that it is made of."""
    terms: str = ""
    """The source's own words for them, where they are German."""
    seconds: float = 10.0
    """CPU seconds at --quick, roughly: what takes longest is begun first."""
    run: Callable[[Workbench], Outcome]
    plans: Callable[[Workbench], Sequence[CurvePlan]] | None = None
    """The trainings that it needs, so that they can be done beforehand and side by side."""
    measures_time: bool = False
    """Whether it measures how long something takes; the queue leaves it to a quiet machine."""
    file: str = ""
    """The file of a user's own experiment; empty for the figures of the sources."""

    def __post_init__(self) -> None:
        if self.source not in (*ALL_SOURCES, OWN):
            raise ValueError(f"source={self.source!r}: need one of {', '.join((*ALL_SOURCES, OWN))}")
        # Without trainings there may be nothing to reduce; with them a smaller size trains less.
        if not self.reduced:
            object.__setattr__(self, "reduced", "nothing" if self.plans is None else "a smaller size than --full")

    @property
    def is_first_look(self) -> bool:
        """Whether it belongs to `sordino lab run seconds`."""
        return self.seconds <= LONGEST_FIRST_LOOK

    def facts(self) -> dict[str, Any]:
        """Returns what the experiment says about itself, for JSON."""
        return {name: getattr(self, name) for name in fact_names()}


def fact_names() -> list[str]:
    """Returns the names of the fields of an experiment that its result repeats."""
    return [one.name for one in fields(Experiment) if one.name not in _NOT_FACTS]


def _none_unless_finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
