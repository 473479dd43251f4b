"""Audits: what was measured of a run, beside what is claimed of it."""

from sordino.audit.pieces import Pieces
from sordino.audit.run_selftest import selftest
from sordino.audit.verdict import Finding, Verdict

__all__ = ["Finding", "Pieces", "Verdict", "selftest"]
