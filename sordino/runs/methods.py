"""Every method by its name, so that one command trains with any of them: `--method automatic`.

A method is declared where its noun is (`sordino/declared.py`); those that join nouns of several packages are declared here.
It is built from public numbers of the run. Its own parameters have defaults that are functions of those numbers, and are
given by `--parameter name=value` or in the [parameters] table of a TOML file.

Privacy: names decide nothing here. What a run may claim is read from the events its query really released; a method that
has no guarantee ends in `NoGuarantee`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sordino import algorithms, sampling, weigh
from sordino.algorithms.dpsgd import NoisySum, Query
from sordino.declared import Declaration, Example, Method, Parameters, RunNumbers
from sordino.door.noise import Gaussian, Laplace
from sordino.gradients import JL
from sordino.sampling.full import Full
from sordino.weigh.flat import Flat
from sordino.weigh.flat_l1 import FlatL1

DECLARED = Declaration(
    (),
    methods=(
        Method(
            "jl",
            "norms estimated from random directions, and charged for how often they are short (Bu et al. 2021)",
            backend=lambda run, own: JL(int(own["projections"])),
            parameters=lambda run: {"projections": 50.0},
        ),
        Method(
            "dp-gd-laplace",
            "all records in every step, bounded in L1, with Laplace noise",
            query=lambda run, own: NoisySum(FlatL1(run.bound, run.numbers), Laplace(run.multiplier)),
            sampler=lambda run, own: Full(),
        ),
    ),
    examples=(
        Example(
            "dp-gd-laplace",
            "DP gradient descent with Laplace noise: every record in every step, pure ε where δ = 0 is asked for",
            query="sd.NoisySum(sd.FlatL1(bound=1.0, dimension=41), sd.Laplace(multiplier=30.0))",
            sampler="sd.Full()",
        ),
    ),
)
"""Methods that join nouns of several packages."""

DECLARATIONS = (*weigh.DECLARATIONS, *algorithms.DECLARATIONS, *sampling.DECLARATIONS, DECLARED)
"""Of the whole library."""

PLAIN = "dpsgd"
"""The method of a recipe that names none."""

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in sorted(
        (method for found in DECLARATIONS for method in found.methods),
        key=lambda method: (method.name != PLAIN, method.name),
    )
}


def method(name: str) -> Method:
    """The method of this name.

    >>> method("automatic").about
    'every gradient normalised to the bound (Bu et al. 2022)'
    """
    if name not in METHODS:
        raise ValueError(f"method={name!r}: there is {', '.join(METHODS)}")
    return METHODS[name]


def query_of(chosen: Method, run: RunNumbers, own: Parameters) -> Query:
    """What the method asks of each lot: its own query, or DP-SGD's with its weigher."""
    if chosen.query is not None:
        return chosen.query(run, own)
    weigher = Flat(run.bound) if chosen.weigher is None else chosen.weigher(run, own)
    return NoisySum(weigher, Gaussian(run.multiplier))


def plain() -> Query:
    """The non-private baseline: nothing is shortened and no noise is added."""
    return NoisySum(Flat(math.inf), Gaussian(0.0))
