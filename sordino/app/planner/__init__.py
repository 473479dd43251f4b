"""`sordino plan`: a what-if page on 127.0.0.1 with the exact accountant; never imports torch."""

from sordino.app.planner.answer import answer
from sordino.app.planner.scenario import Scenario, parse
from sordino.app.planner.scenario_curves import curves
from sordino.app.planner.server import Planner

__all__ = ["Planner", "Scenario", "answer", "curves", "parse"]
