"""The public scale of the noise in a gradient that `Private` writes.

An optimizer may subtract it or divide by it.
"""

from __future__ import annotations

from typing import Protocol

from sordino import validate
from sordino.clipping.clipping_rule import ClippingRule
from sordino.queries.microbatches import Microbatches
from sordino.queries.noisy_sum import NO_NORMS
from sordino.release.noise import Gaussian, Noise
from sordino.release.sensitivity import Sensitivity


class ClippingQuery(Protocol):
    """A query with one clipping rule and one noise, such as NoisySum or a lookahead that splits its noise."""

    @property
    def clipping(self) -> ClippingRule:
        """The clipping rule."""
        ...

    @property
    def noise(self) -> Noise:
        """The noise that is added."""
        ...


def noise_scale(query: ClippingQuery, expected_batch: float) -> float:
    """Returns σC/L: the standard deviation of the noise on each coordinate of `.grad`, at the first bound.

    >>> from sordino import Flat, NoisySum
    >>> noise_scale(NoisySum(Flat(1.0), Gaussian(1.1)), expected_batch=250)
    0.0044
    """
    validate.has_methods("query", query, ("clipping", "noise"), "a query that clips, such as sd.NoisySum")
    if not isinstance(query.noise, Gaussian):
        raise TypeError(f"noise={query.noise!r}: need one Gaussian noise; give AdamCorrected its standard deviation")
    # The rule is asked without a lot, so this number is public.
    sensitivity = query.clipping.rule(query.clipping.init(), lambda: NO_NORMS).sensitivity
    if isinstance(sensitivity, Sensitivity) and sensitivity.units is not None:
        raise TypeError(
            f"{query.clipping!r}: its noise differs from layer to layer; need one scale, as Isotropic() gives"
        )
    # A rule without a proof has a scale as well; only the claim differs.
    bound = sensitivity.l2 if isinstance(sensitivity, Sensitivity) else sensitivity.scale
    expected = validate.positive("expected_batch", expected_batch)
    divisor = query.grouping.expected_groups(expected) if isinstance(query, Microbatches) else expected
    return query.noise.multiplier * bound / divisor
