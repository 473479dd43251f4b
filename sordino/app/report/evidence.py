"""Reads a run directory for a report, and recomputes the claim from its event.

**Privacy:** the ε that a report prints is not taken on trust. The event in privacy.json is accounted for anew; an ε in
the file that is below what its event certainly costs is refused, whoever wrote it.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.accounting import PLD, Unsupported
from sordino.app.runs.directory import CONFIG, PRIVACY, Row, Run
from sordino.events import Relation, from_json
from sordino.ledger.claims import Claim, Guarantee, NoGuarantee


@dataclass(frozen=True)
class Evidence:
    """What is known of a run.

    Args:
        folder: the run directory.
        config: config.toml.
        rows: released metrics.
        claim: made again from the event.
        status: finished, stopped, running or failed.
        steps: lots that the claim speaks about.

    Examples:
        >>> import tempfile
        >>> import sordino as sd
        >>> from sordino.app import report
        >>> history = sd.fit("spiral", epsilon=2.0, steps=20, records=500, out=tempfile.mkdtemp())
        >>> report.read(history.run).status
        'finished'

    """

    folder: Path
    config: Mapping[str, Any]
    rows: tuple[Row, ...]
    claim: Claim
    status: str
    steps: int
    """How many lots the claim speaks about."""

    @property
    def name(self) -> str:
        """The name of the run, which is that of its folder."""
        return self.folder.resolve().name

    @property
    def guarantee(self) -> Guarantee | None:
        """The claim if it is a guarantee, else None."""
        return self.claim if isinstance(self.claim, Guarantee) else None

    @property
    def last(self) -> Row | None:
        """The last evaluation."""
        return self.rows[-1] if self.rows else None

    def get(self, table: str, field: str) -> Any:
        """Returns a field of config.toml, or None if it is missing."""
        inner = self.config.get(table)
        return inner.get(field) if isinstance(inner, Mapping) else None


def read(folder: str | Path) -> Evidence:
    """Returns the evidence of a run directory; damaged or contradictory files are refused by name.

    Args:
        folder: a run directory.

    Returns:
        What is known of it.

    Privacy:
        The event is accounted for anew; an ε in the file that is below its cost is refused.

    Examples:
        >>> import tempfile
        >>> import sordino as sd
        >>> from sordino.app import report
        >>> history = sd.fit("spiral", epsilon=2.0, steps=20, records=500, out=tempfile.mkdtemp())
        >>> report.read(history.run).claim.delta
        1e-05

    """
    # Every file is checked, because it may have been changed since the run wrote it.
    run = Run.open(Path(folder))
    config = _parse_file(run.folder / CONFIG, tomllib.loads)
    privacy_table = _parse_file(run.folder / PRIVACY, json.loads)
    try:
        rows = tuple(run.read_rows())
    except (ValueError, TypeError) as error:
        raise ValueError(f"{run.folder / 'metrics.jsonl'}: not as a run writes it ({error})") from error
    claim = _rebuild_claim(run.folder / PRIVACY, privacy_table)
    # These two are shown and nothing rests on them, so a strange value becomes a plain one.
    status, steps = privacy_table.get("status"), privacy_table.get("steps")
    return Evidence(
        run.folder,
        config,
        rows,
        claim,
        status if isinstance(status, str) else "unknown",
        steps if isinstance(steps, int) else 0,
    )


def _parse_file(path: Path, parse: Any) -> Mapping[str, Any]:
    """Returns the table in a file that is evidence of a run; raises ValueError with its name if it cannot be read."""
    try:
        table = parse(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not as a run writes it ({error})") from error
    if not isinstance(table, Mapping):
        raise ValueError(f"{path}: not as a run writes it (need a table)")
    return table


def _rebuild_claim(path: Path, privacy_table: Mapping[str, Any]) -> Claim:
    """Returns the claim of privacy.json as evidence for a report; raises if its ε is below what its event certainly
    costs.
    """
    # A run without a guarantee has a reason in the place of its numbers.
    table = privacy_table.get("claim")
    if not isinstance(table, Mapping):
        raise ValueError(f"{path}: has no claim")
    if "reason" in table:
        return NoGuarantee(str(table["reason"]))
    try:
        # The claim is rebuilt from its parts, and its event is accounted for again.
        guarantee = Guarantee(
            epsilon=float(table["epsilon"]),
            delta=float(table["delta"]),
            relation=Relation(table["relation"]),
            accountant=str(table["accountant"]),
            event=from_json(table["event"]),
            not_covered=_check_words(table["not_covered"]),
            rests_on=_check_words(table.get("rests_on", [])),
            unit=str(table.get("unit", "record")),
        )
        certified_lower_bound, _ = PLD().bounds(guarantee.event, guarantee.delta, relation=guarantee.relation)
    except (KeyError, TypeError, ValueError, Unsupported) as error:
        raise ValueError(f"{path}: its claim is not one that a run makes ({error})") from error
    # An ε below the certified lower bound cannot be true, whoever wrote it.
    if not math.isfinite(guarantee.epsilon) or guarantee.epsilon < certified_lower_bound * (1 - 1e-9):
        raise ValueError(
            f"{path}: says ε = {guarantee.epsilon:g}, but what its event did costs at least {certified_lower_bound:.6g}; "
            "the file was changed, or belongs to another run"
        )
    return guarantee


def _check_words(value: Any) -> tuple[str, ...]:
    """Returns a list of texts in a run's evidence as a tuple; raises if it is anything else."""
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise TypeError(f"{value!r}: need a list of text")
    return tuple(value)
