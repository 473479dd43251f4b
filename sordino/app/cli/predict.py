"""`sordino predict RUN FILE`: what a trained model says of new records."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from sordino.app.cli.help_page import HelpPage

_MOST_PROBABILITIES = 20
"""Classes up to which every probability gets a column of its own."""


@dataclass(frozen=True)
class Command:
    """Write what a trained model says of new records: classes with probabilities, or numbers in the target's units."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            (
                "Predictions for new records, as a CSV file with their ids:",
                "sordino predict runs/people new.csv --keep id --out predictions.csv",
            ),
            ("On the terminal:", "sordino predict runs/people new.csv"),
        ),
    )
    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The directory of a finished run on own data, or the folder of a fine-tuned classifier."""
    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A file or folder like the one it was trained on, with or without the target."""
    out: Path | None = None
    """The CSV file to write; printed without it."""
    keep: tuple[str, ...] = ()
    """Columns of the file to copy beside the predictions, such as an id."""
    device: str | None = None
    """Where to compute: auto, cpu, or a device such as cuda:0; the CPU without it."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Carries out `sordino predict`: writes what a trained model predicts for new records; returns the
        exit code.
        """
        from sordino.app import atomic_files
        from sordino.app.data.own import rows
        from sordino.app.runs.trained_model import load
        from sordino.finetuning.saved_classifier import FACTS

        # A fine-tuned classifier takes the texts of a table; the model of a run takes what it was trained on.
        model = (
            _TextModel.load(self.run_dir)
            if (self.run_dir / FACTS).is_file()
            else load(self.run_dir, device=self.device)
        )
        # A table is read once, for the model and for the columns that are copied.
        is_table = isinstance(model, _TextModel) or model.encoder.kind in ("table", "text")
        if self.keep and not is_table:
            raise ValueError("--keep: copies columns of a table, and this is none")
        if not isinstance(model, _TextModel) and model.encoder.kind == "tensors":
            raise ValueError(
                f"{self.run_dir}: was trained on tensors, which no file holds here; in Python, "
                f"sordino.load({str(self.run_dir)!r}).predict(tensor) takes one of shape "
                f"{model.encoder.shape} for each record"
            )
        table = rows.read_table(self.data) if is_table else None
        kept = {name: table.column(name, "--keep") for name in self.keep} if table is not None else {}
        columns = {**kept, **_columns_of(model, self.data if table is None else table)}
        # One JSON object for programs, a CSV file for people.
        if self.json:
            print(json.dumps({"records": len(columns["prediction"]), **columns}))
        else:
            text = _as_csv(columns)
            if self.out is None:
                print(text, end="")
            else:
                atomic_files.write_file(self.out, text)
                print(f"{len(columns['prediction']):,} predictions  {self.out}")
        return 0


@dataclass(frozen=True, eq=False)
class _TextModel:
    """A fine-tuned classifier that takes rows of a table, of which it reads one column."""

    tuned: Any
    text: str
    classifies: ClassVar[bool] = True

    @classmethod
    def load(cls, folder: Path) -> _TextModel:
        """Loads, for `sordino predict`, the classifier that `sordino finetune` wrote, with the name of the column that
        its texts were in.
        """
        from sordino.app.cli.finetune import OUTCOME
        from sordino.finetuning import FineTuned

        outcome = folder / OUTCOME
        text = json.loads(outcome.read_text(encoding="utf-8"))["text"] if outcome.is_file() else "text"
        return cls(FineTuned.load(folder), text)

    @property
    def classes(self) -> tuple[Any, ...]:
        """The classes, in the order of the probabilities."""
        return tuple(self.tuned.classes)

    def predict_proba(self, table: Any) -> Any:
        """Returns the probability of every class for the text of every row, (N, classes)."""
        return self.tuned.probabilities(table.column(self.text, "the classifier")).double().numpy()


def _columns_of(model: Any, records: Any) -> dict[str, list[Any]]:
    """Returns the columns that `sordino predict` writes: the prediction of every record and, of classes, its
    probability and that of every class.
    """
    if not model.classifies:
        return {"prediction": [round(number, 6) for number in model.predict(records)]}
    # The prediction is the most probable class, so its probability is read off the same row.
    probabilities = model.predict_proba(records)
    places = probabilities.argmax(axis=1)
    columns: dict[str, list[Any]] = {
        "prediction": [model.classes[place] for place in places],
        "probability": [round(float(row[place]), 6) for row, place in zip(probabilities, places, strict=True)],
    }
    if len(model.classes) <= _MOST_PROBABILITIES:
        for place, name in enumerate(model.classes):
            columns[f"probability of {name}"] = [round(float(one), 6) for one in probabilities[:, place]]
    return columns


def _as_csv(columns: dict[str, list[Any]]) -> str:
    """Returns the columns that `sordino predict` writes as the text of a CSV file."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return file.getvalue()
