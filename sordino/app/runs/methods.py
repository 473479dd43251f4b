"""Every published variant by its name on the command line, as in `--method automatic`.

A method is declared where its noun is (`sordino/registry.py`); those that join nouns of several packages are declared here.
A method names words, one for each part that is not DP-SGD's own; `words.py` puts the parts together.

Privacy: names decide nothing here. What a run may claim is read from the events its query really released; a method that
has no guarantee ends in `NoGuarantee`.
"""

from __future__ import annotations

from collections.abc import Mapping

from sordino import clipping, queries, sampling
from sordino.app.runs.recipe import PLAIN
from sordino.per_sample import JL
from sordino.registry import Declaration, Example, Method

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
            words={"sampler": "full", "weigher": "flat-l1", "noise": "laplace"},
        ),
        Method(
            "dp-gd-laplace-exact",
            "all records in every step, measured and bounded in L1, with Laplace noise",
            words={"sampler": "full", "query": "l1-sum", "noise": "laplace"},
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

DECLARATIONS = (*clipping.DECLARATIONS, *queries.DECLARATIONS, *sampling.DECLARATIONS, DECLARED)
"""Of the whole library."""

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in sorted(
        (method for found in DECLARATIONS for method in found.methods),
        key=lambda method: (method.name != PLAIN, method.name),
    )
}


def method_by_name(name: str) -> Method:
    """Returns the method of this name.

    >>> method_by_name("automatic").about
    'every gradient normalised to the bound (Bu et al. 2022)'
    """
    if name not in METHODS:
        raise ValueError(f"method={name!r}: there is {', '.join(METHODS)}")
    return METHODS[name]
