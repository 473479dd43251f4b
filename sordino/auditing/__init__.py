"""Audits: what was measured of a run, beside what is claimed of it."""

from sordino.auditing.selftest import selftest
from sordino.auditing.selftest_subject import Pieces
from sordino.auditing.verdict import Finding, Verdict

__all__ = ["Finding", "Pieces", "Verdict", "selftest"]
