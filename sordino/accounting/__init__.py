"""Accountants: pure functions of an event, importable without torch."""

from sordino.accounting.accountant import Accountant, Unsupported
from sordino.accounting.pld import PLD

__all__ = ["Accountant", "Unsupported", "PLD"]
