"""COMPAS and German credit as numbers, encoded by the public bounds and categories given here.

Nothing is read off the records: numbers are cut to the bounds, a category that is not listed has a row of zeros. Neither
comes with a test set, so every fifth line is one, whatever it says.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from sordino.app.data.files import files_folder

_TEST_EVERY = 5
"""One line in so many is tested on."""
_SMALL_COUNT = (0.0, 5.0)


@dataclass(frozen=True)
class RiskTable:
    """Where a table is, and what its columns may hold."""

    name: str
    file: str
    numbers: Mapping[str, tuple[float, float]]
    kinds: Mapping[str, tuple[str, ...]]
    target: str
    positive: str
    """What the target says where the label is 1."""
    header: tuple[str, ...] | None = None
    """Names of all columns, of a file that has none and is separated by spaces."""


COMPAS = RiskTable(
    "compas",
    "compas-scores-two-years.csv",
    {"age": (18.0, 80.0), "priors_count": (0.0, 20.0)}
    | dict.fromkeys(("juv_fel_count", "juv_misd_count", "juv_other_count"), _SMALL_COUNT),
    {
        "sex": ("Male", "Female"),
        "race": ("African-American", "Asian", "Caucasian", "Hispanic", "Native American", "Other"),
        "c_charge_degree": ("F", "M"),
    },
    target="two_year_recid",
    positive="1",
)

_CODES = {  # column by its place: how many categories it has; A11 is the first of column 1
    "status": (1, 4),
    "credit_history": (3, 5),
    "purpose": (4, 11),
    "savings": (6, 5),
    "present_employment": (7, 5),
    "status_sex": (9, 5),
    "other_debtors": (10, 3),
    "property": (12, 4),
    "installment_plans": (14, 3),
    "housing": (15, 3),
    "job": (17, 4),
    "telephone": (19, 2),
    "foreign_worker": (20, 2),
}
_FROM_ZERO = ("credit_history", "purpose")
_NUMBERS = {
    "duration": (2, 4.0, 72.0),
    "credit_amount": (5, 0.0, 20_000.0),
    "installment_rate": (8, 1.0, 4.0),
    "residence_since": (11, 1.0, 4.0),
    "age": (13, 18.0, 80.0),
    "existing_credits": (16, 1.0, 4.0),
    "people_liable": (18, 1.0, 2.0),
}

GERMAN = RiskTable(
    "german",
    "german.data",
    {name: (low, high) for name, (_, low, high) in _NUMBERS.items()},
    {
        name: tuple(f"A{place}{k + (name not in _FROM_ZERO)}" for k in range(count))
        for name, (place, count) in _CODES.items()
    },
    target="credit",
    positive="2",  # a bad risk
    header=(*sorted(_CODES | _NUMBERS, key=lambda name: (_CODES | _NUMBERS)[name][0]), "credit"),
)


def load_risk_table(table: RiskTable) -> tuple[TensorDataset, TensorDataset, int]:
    """Returns the people of a risk table, COMPAS or German credit, to train and to test on, as rows of numbers with
    labels 0 or 1, and the number of classes.
    """
    # A record is a test record by its place in the file, whatever it holds.
    rows = list(_read_people(table, files_folder(table.name) / table.file))
    x, y = torch.tensor([numbers for numbers, _ in rows]), torch.tensor([label for _, label in rows])
    is_test_record = torch.arange(len(rows)) % _TEST_EVERY == 0
    return TensorDataset(x[~is_test_record], y[~is_test_record]), TensorDataset(x[is_test_record], y[is_test_record]), 2


def _read_people(table: RiskTable, path: Path) -> Iterator[tuple[list[float], int]]:
    """Yields the numbers and the label of each person in a risk table; errors name the line."""
    with path.open(encoding="utf-8", newline="") as lines:
        # German credit has no line of names and is separated by spaces.
        reader = csv.DictReader(lines, fieldnames=table.header, delimiter="," if table.header is None else " ")
        for person in reader:
            try:
                yield _encode_person(table, person), int(person[table.target] == table.positive)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path.name}, line {reader.line_num}: {error!r}") from error


def _encode_person(table: RiskTable, person: Mapping[str, str]) -> list[float]:
    """Returns a person of a risk table as numbers: scaled values, then a 0 or 1 for each category."""
    # Declared bounds, not those of the records, so nothing is learnt from the data.
    scaled = [
        2 * (min(max(float(person[name]), low), high) - low) / (high - low) - 1
        for name, (low, high) in table.numbers.items()
    ]
    return scaled + [float(person[name] == kind) for name, kinds in table.kinds.items() for kind in kinds]
