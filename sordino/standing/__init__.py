"""The standing test: facts about strangers' code, tested again and again while a run goes on."""

from sordino.standing.finding import Finding
from sordino.standing.moments import Moments
from sordino.standing.questions import StandingTest

__all__ = ["Finding", "Moments", "StandingTest"]
