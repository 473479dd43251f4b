"""Runtime checks: the neighbour test and the checks of users' code while a run goes on."""

from sordino.runtime_checks.lot_checks import LotChecks

__all__ = ["LotChecks"]
