"""The standing test and the checks around it: facts about strangers' code, looked at while a run goes on."""

from sordino.runtime_checks.lot_checks import LotChecks

__all__ = ["LotChecks"]
