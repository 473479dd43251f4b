"""The standing test and the checks around it: facts about strangers' code, looked at while a run goes on."""

from sordino.standing.lot_checks import LotChecks

__all__ = ["LotChecks"]
