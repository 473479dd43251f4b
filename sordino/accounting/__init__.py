"""Accountants: pure functions of an event, importable without torch."""

from sordino.accounting.accountant import Accountant, Unsupported

__all__ = ["Accountant", "Unsupported"]
