"""Verdict of a selftest: facts that hold or do not, evidence, and what was not tried."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino.auditing import e_values


@dataclass(frozen=True)
class SelftestFinding:
    """One thing that was tried: exact (`holds`), or statistical (`log_e`), or not at all (neither), and what was seen.

    Args:
        check: which check.
        about: what was seen, in words.
        holds: of an exact check.
        log_e: of a statistical one, the logarithm of its e-value against the claim.

    Examples:
        >>> SelftestFinding("sums", "one record moved the sum by at most the bound", holds=True).holds
        True

    """

    check: str
    about: str
    holds: bool | None = None
    log_e: float | None = None

    @property
    def tried(self) -> bool:
        """Could it be tried?"""
        return self.holds is not None or self.log_e is not None


@dataclass(frozen=True)
class Verdict:
    """All findings, with one error budget over the statistical ones.

    A pass is no proof. It says that these mistakes, of at least these sizes, are not there.

    Args:
        findings: of all checks.
        error: the chance that a right run fails.
        seconds: how long it took.

    Examples:
        >>> Verdict((SelftestFinding("sums", "as promised", holds=True),), error=1e-6, seconds=0.1).passed
        True

    """

    findings: tuple[SelftestFinding, ...]
    error: float
    seconds: float

    @property
    def log_e(self) -> float:
        """Of the mean e-value of the statistical tests."""
        return e_values.log_mean(f.log_e for f in self.findings if f.log_e is not None)

    @property
    def failures(self) -> tuple[SelftestFinding, ...]:
        """The failures in a selftest's verdict: exact facts that do not hold and, if the evidence exceeds the budget,
        whoever exceeds it alone.
        """
        exact = tuple(f for f in self.findings if f.holds is not None and not f.holds)
        if self.log_e < -math.log(self.error):
            return exact
        return exact + tuple(f for f in self.findings if f.log_e is not None and f.log_e >= -math.log(self.error))

    @property
    def passed(self) -> bool:
        """Nothing was found."""
        return not self.failures and self.log_e < -math.log(self.error)

    def __str__(self) -> str:
        """Returns the verdict as a few lines: a summary, what was found, and what could not be tried."""
        exact = sum(f.holds is not None for f in self.findings)
        tests = sum(f.log_e is not None for f in self.findings)
        head = "nothing found" if self.passed else f"{len(self.failures)} found"
        lines = [
            f"selftest: {head}; {exact} exact checks, {tests} statistical tests, {self.seconds:.1f} s",
            f"  false alarm  at most one in {1 / self.error:,.0f} selftests of a right mechanism",
        ]
        lines += [f"  FOUND        {f.check}: {f.about}" for f in self.failures]
        lines += [f"  not tried    {f.check}: {f.about}" for f in self.findings if not f.tried]
        if self.passed:
            lines.append("  a pass is no proof: it says that these mistakes, at these sizes, are not there")
        return "\n".join(lines)

    def table(self) -> dict[str, object]:
        """Returns the verdict of a selftest as JSON holds it."""
        return {
            "passed": self.passed,
            "error": self.error,
            "log_e": None if math.isinf(self.log_e) else self.log_e,
            "seconds": self.seconds,
            "exact": sum(f.holds is not None for f in self.findings),
            "statistical": sum(f.log_e is not None for f in self.findings),
            "found": [[f.check, f.about] for f in self.failures],
            "not_tried": [[f.check, f.about] for f in self.findings if not f.tried],
        }
