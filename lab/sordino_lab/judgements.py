"""What every verdict of the lab tests: one plain sentence for each finding, kept in `judgements.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent / "judgements.toml"


@dataclass(frozen=True)
class Judgement:
    """A sentence of a source that a figure judges, and when it holds."""

    id: str
    """The figure."""
    line: str
    """SOURCE:LINE."""
    says: str
    """The sentence, exactly as in the finding."""
    test: str
    """When it holds; goes on after "holds if"."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What a judgement and its finding have in common."""
        return self.id, self.line, self.says


@cache
def list_judgements() -> tuple[Judgement, ...]:
    """Returns what every verdict tests, in the order of the papers."""
    return tuple(Judgement(**one) for one in tomllib.loads(TESTS.read_text("utf-8"))["judgements"])
