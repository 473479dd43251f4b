"""Accountants: pure functions of an event, importable without torch."""

from typing import Any

from sordino.accounting.accountant import Accountant, Unsupported
from sordino.accounting.accountants.clt import GaussianCLT
from sordino.accounting.accountants.composition_theorems import Advanced, Basic, Strong
from sordino.accounting.accountants.live import Live
from sordino.accounting.accountants.meter import Meter
from sordino.accounting.accountants.pld import PLD
from sordino.accounting.accountants.rdp import OPACUS_ORDERS, ORDERS, RDP, Moments
from sordino.accounting.budget import Budget, BudgetExhausted
from sordino.accounting.calibration.calibrate import calibrate
from sordino.accounting.calibration.rejection import (
    Rejection,
    best_of,
    chance_of_acceptance,
    rejection,
    repeat_until_threshold,
)
from sordino.accounting.calibration.single_release import exponential, laplace
from sordino.accounting.phases import relation_of
from sordino.accounting.theorems import (
    advanced_drv,
    advanced_kov,
    amplify_by_sampling,
    group_privacy,
    optimal,
    optimal_delta,
    parallel,
    post_processed,
    sequential,
)
from sordino.accounting.tradeoff import (
    Tradeoff,
    epsilon_delta_tradeoff,
    gaussian_tradeoff,
    subsampled_tradeoff,
    tradeoff,
)
from sordino.events.projected_clipping import projected_clipping
from sordino.former_names import find_former_name
from sordino.privacy_loss.gaussian import (
    analytic_gaussian,
    classical_gaussian,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)
from sordino.privacy_loss.shuffling import shuffle_lower_bound
from sordino.privacy_loss.stopping import expected_runs, liu_talwar

_FORMER_NAMES = {"amplified": "amplify_by_sampling", "thresholded": "repeat_until_threshold"}
"""Functions by the names they had in 0.2."""

__all__ = [
    "OPACUS_ORDERS",
    "ORDERS",
    "PLD",
    "RDP",
    "Accountant",
    "Advanced",
    "Basic",
    "Budget",
    "BudgetExhausted",
    "GaussianCLT",
    "Live",
    "Meter",
    "Moments",
    "Rejection",
    "Strong",
    "Tradeoff",
    "Unsupported",
    "advanced_drv",
    "advanced_kov",
    "amplify_by_sampling",
    "analytic_gaussian",
    "best_of",
    "calibrate",
    "chance_of_acceptance",
    "classical_gaussian",
    "epsilon_delta_tradeoff",
    "expected_runs",
    "exponential",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_tradeoff",
    "group_privacy",
    "laplace",
    "liu_talwar",
    "optimal",
    "optimal_delta",
    "parallel",
    "post_processed",
    "projected_clipping",
    "rejection",
    "relation_of",
    "repeat_until_threshold",
    "sequential",
    "shuffle_lower_bound",
    "subsampled_tradeoff",
    "tradeoff",
]


def __getattr__(name: str) -> Any:
    """Returns the function that had the given name in 0.2."""
    return find_former_name(__name__, _FORMER_NAMES, name)
