"""The lab: every figure and table of the five sources, from one command each.

sordino lab run wd-fixed-point
"""

from sordino_lab.catalogue import experiment, experiments
from sordino_lab.experiment import Compared, Experiment, Finding, Outcome
from sordino_lab.size import ExperimentSize

__version__ = "0.3.0"

__all__ = ["Compared", "Experiment", "ExperimentSize", "Finding", "Outcome", "experiment", "experiments"]
