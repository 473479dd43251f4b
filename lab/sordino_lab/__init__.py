"""The lab: every figure and table of the five sources, from one command each.

sordino lab run wd-fixed-point
"""

from sordino_lab.catalogue import experiments, find_experiment
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Compared, Experiment, ExperimentSize, Finding, Outcome
from sordino_lab.workbench import Workbench

__version__ = "0.3.0"

__all__ = [
    "Compared",
    "CurvePlan",
    "Experiment",
    "ExperimentSize",
    "Finding",
    "Outcome",
    "Workbench",
    "experiments",
    "find_experiment",
]
