"""`sordino plan`: a what-if page on 127.0.0.1 with the exact accountant behind it; never imports torch."""

from sordino.planner.answer import answer
from sordino.planner.curves import curves
from sordino.planner.scenario import Scenario, parse
from sordino.planner.server import Planner

__all__ = ["Planner", "Scenario", "answer", "curves", "parse"]
