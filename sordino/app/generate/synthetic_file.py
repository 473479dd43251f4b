"""Writes synthetic records with the claim in the file's metadata, and a report beside them.

synthetic.csv                   the records
synthetic.csv-metadata.json     "CSV on the Web" metadata: the columns, how the file was made, and the claim
synthetic.parquet               the same with the claim inside the file, if pyarrow is installed and it is asked for
report.md, report.json          the claim in words, likeness, what a classifier learns
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sordino.app.atomic_files import write_file
from sordino.app.generate.likeness import ClassifierScore, Likeness
from sordino.ledger.claims import Claim, claim_to_json
from sordino.version import __version__

NAME = "synthetic.csv"
_CLAIM_KEY = "sordino:claim"


def write_records(
    folder: Path, names: Sequence[str], rows: Sequence[Sequence[str]], claim: Claim, made_by: str, *, parquet: bool
) -> list[Path]:
    """Writes the file of synthetic records and its metadata; returns the paths."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    metadata = {
        "@context": "http://www.w3.org/ns/csvw",
        "url": NAME,
        "dc:title": "Synthetic records, written by a privately trained generator",
        "dc:description": str(claim),
        "dc:creator": f"sordino {__version__}, {made_by}",
        _CLAIM_KEY: claim_to_json(claim),
        "tableSchema": {"columns": [{"name": name} for name in names]},
    }
    paths = [folder / NAME, folder / f"{NAME}-metadata.json"]
    # The metadata come first, so that no file of records is ever there without its claim.
    write_file(paths[1], json.dumps(metadata, indent=1, ensure_ascii=False) + "\n")
    write_file(paths[0], text.getvalue())
    if parquet:
        paths.append(_write_parquet(folder, names, rows, metadata))
    return paths


def _write_parquet(folder: Path, names: Sequence[str], rows: Sequence[Sequence[str]], metadata: Any) -> Path:
    """Writes the synthetic records as a Parquet file with the claim in the metadata of its schema."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("pyarrow is not installed, which Parquet needs: pip install 'sordino[parquet]'") from error
    # Parquet stores columns, where the records are rows.
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    # The claim travels inside the file, so that it is not lost when the file is copied without its report.
    table = pyarrow.table(columns).replace_schema_metadata(
        {"sordino_claim": json.dumps(metadata[_CLAIM_KEY]), "description": metadata["dc:description"]}
    )
    path = folder / "synthetic.parquet"
    parquet.write_table(table, path)
    return path


def write_report(folder: Path, claim: Claim, likeness: Likeness | None, facts: dict[str, Any]) -> list[Path]:
    """Writes the report beside a file of synthetic records, as text and as JSON; returns the paths."""
    table = {"claim": claim_to_json(claim), "likeness": None if likeness is None else likeness.table(), **facts}
    paths = [folder / "report.md", folder / "report.json"]
    write_file(paths[1], json.dumps(table, indent=1, ensure_ascii=False) + "\n")
    write_file(paths[0], render_report(claim, likeness, facts))
    return paths


def render_report(claim: Claim, likeness: Likeness | None, facts: dict[str, Any]) -> str:
    """Returns the report that goes with a file of synthetic records as text."""
    parts = [
        "# Synthetic records",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        "",
        "## What can be claimed",
        "",
        "```",
        str(claim),
        "```",
        "",
        "The records were written by a model, or chosen by noisy votes, to which this claim applies. Whatever is made of "
        "them is covered by it too.",
    ]
    if likeness is not None:
        parts += ["", "## How good they are", "", *_describe_likeness(likeness)]
    return "\n".join(parts) + "\n"


def _describe_likeness(likeness: Likeness) -> list[str]:
    """Returns the part about likeness and classifiers in the report that goes with a file of synthetic records."""
    lines = [
        "Measured on test records without noise; the claim does not cover these figures.",
        "",
        "| classifier trained on | accuracy | AUC |",
        "|---|---|---|",
        f"| nothing: the most frequent class | {likeness.majority:.2%} | |",
    ]
    # A classifier that was not trained has no row; a zero would be read as its score.
    scores = [("the synthetic records", likeness.synthetic), ("the real training records", likeness.real)]
    for name, score in scores:
        if score is not None:
            lines.append(_score_row(name, score))
    # This score is the only figure of the report for which a model saw real training records without noise.
    if likeness.real is not None:
        lines += ["", "The last row was trained on real records without privacy. Do not publish it as private."]
    if likeness.columns:
        lines += ["", "| column | distance of its shares (0 alike, 1 disjoint) |", "|---|---|"]
        lines += [f"| {name} | {value:.3f} |" for name, value in likeness.columns.items()]
    if likeness.pairs is not None:
        lines += ["", f"Mean distance over pairs of columns: {likeness.pairs:.3f}."]
    if likeness.exposure is not None:
        lines += [
            "",
            f"Exposure of planted records: {likeness.exposure:.2f} bits on average; 1.44 is what a model that knows "
            "nothing of them gives.",
        ]
    return lines


def _score_row(name: str, score: ClassifierScore) -> str:
    """Returns a row of the table of classifiers."""
    return f"| {name} | {score.accuracy:.2%} | {'' if score.auc is None else f'{score.auc:.3f}'} |"
