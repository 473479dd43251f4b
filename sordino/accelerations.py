"""Lists all accelerations: code that computes what plain code computes, in less time.

Plain code says what is computed. An acceleration stands in for it where it knows the case, and hands everything else
back to the plain code. The two agree to the last bit, or up to rounding where its file says so. Code that is
accelerated does not import its acceleration and does not know it: it asks here, once, when it is imported. To add an
acceleration, write it and name it in a table below; to do without one, take its row out.

Compiled formulas among which the engine chooses by time are not listed here: they are candidates in
`per_sample/formulas`, each beside the plain formula it competes with.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

FUNCTIONS = {
    "sordino.clipping.flat.clip_by_squares": "sordino.kernels.matrices.accelerate_clipping",
    "sordino.clipping.clipping_rule.are_surely_within": "sordino.kernels.matrices.accelerate_bound",
    "sordino.runtime_checks.lot_checks.are_all_finite": "sordino.kernels.matrices.accelerate_finiteness",
    "sordino.release.release.add_in_float64": "sordino.kernels.matrices.accelerate_wide_addition",
    "sordino.per_sample.formulas.output_gradient.compute_gram_sums": "sordino.kernels.device_gram.accelerate_gram_sums",
}
"""Plain functions that are marked by `@accelerate`, and what makes the faster function of each."""

LAYER_RULES = ("sordino.per_sample.accelerations.linear_chains.LINEAR_CHAIN",)
"""Rules that run a module, with the layers inside it, as one layer; each is a `FasterRule`."""

STAND_INS = ("sordino.per_sample.accelerations.max_pooling.MAX_POOLING",)
"""Code that runs a layer without parameters in place of its own; each is a `StandIn`."""

JOINT_PARTS = ("sordino.per_sample.accelerations.small_layers.find_small_layers",)
"""Functions that find parts of a batch to be measured and summed in one call; each returns `JointParts` or None."""


def accelerate(plain: Function) -> Function:
    """Returns the acceleration of a function: a faster one that stands in for it, with the plain one as its attribute
    `plain`.
    """
    make_faster = load(FUNCTIONS[f"{plain.__module__}.{plain.__name__}"])
    faster: Function = make_faster(plain)
    faster.plain = plain  # type: ignore[attr-defined]
    return faster


def load(name: str) -> Any:
    """Returns what is called by a full name, importing its module."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)
