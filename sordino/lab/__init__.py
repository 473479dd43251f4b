"""The lab: every figure and table of the five sources, from one command each.

sordino lab run wd-fixed-point
"""

from sordino.lab.catalogue import experiment, experiments
from sordino.lab.experiment import Compared, Experiment, Finding, Outcome
from sordino.lab.size import Size

__all__ = ["Compared", "Experiment", "Finding", "Outcome", "Size", "experiment", "experiments"]
