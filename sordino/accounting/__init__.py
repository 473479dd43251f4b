"""Accountants: pure functions of an event, importable without torch."""

from sordino.accounting.accountant import Accountant, Unsupported
from sordino.accounting.interim import PLD

__all__ = ["PLD", "Accountant", "Unsupported"]
