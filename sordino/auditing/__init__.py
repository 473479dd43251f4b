"""Audits: measurements of a run, to be compared with what is claimed of it."""

from sordino.auditing.selftest import selftest
from sordino.auditing.selftest_subject import Pieces
from sordino.auditing.verdict import SelftestFinding, Verdict

Finding = SelftestFinding  # the name of 0.2

__all__ = ["Pieces", "SelftestFinding", "Verdict", "selftest"]
