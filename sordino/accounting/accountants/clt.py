"""The Gaussian approximation of many sampled releases. An approximation: it can lie far below the truth.

Bu, Dong, Long & Su 2020. T Poisson-sampled Gaussians behave like one Gaussian mechanism with μ = q√(T(e^{1/σ²} − 1)).

**Privacy:** none. At (q, σ, T, δ) = (.001, .5, 3000, 1e-6) it says 1.77 where the truth is 4.96. Use it for a first
guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sordino import validate
from sordino.accounting.accountant import Unsupported
from sordino.accounting.phases import collect_phases_without_delta, relation_of
from sordino.events import Event, Relation, canonical, is_private
from sordino.privacy_loss.gaussian import gaussian_delta, gaussian_epsilon
from sordino.privacy_loss.pairs import Array, GaussianPair


@dataclass(frozen=True)
class GaussianCLT:
    """The central-limit approximation; `is_bound` is False, so no claim can be built from it.

    Args:
        relation: which neighbours; None for what the event's samplers speak about.

    Privacy:
        An approximation, not a bound: it can be below the truth.

    Examples:
        >>> from sordino.events import Gaussian, Poisson, Repeat
        >>> GaussianCLT().is_bound, round(GaussianCLT().epsilon(Repeat(Poisson(0.01, Gaussian(1.1)), 500), delta=1e-5), 2)
        (False, 0.94)

    """

    relation: Relation | None = None

    name = "Gaussian CLT (approximation, not a bound)"
    is_bound = False

    def mu(self, event: Event) -> float:
        """Returns the Gaussian-DP parameter of the limit that the central limit theorem (CLT) gives for an event's many
        releases.
        """
        total = 0.0
        for sampled, count in collect_phases_without_delta(canonical(event), relation_of(event, self.relation)):
            if not isinstance(sampled.pair, GaussianPair):
                raise Unsupported(event, "the central-limit approximation knows Gaussian releases only")
            mu, q = sampled.pair.mu, sampled.rate
            total += count * (mu**2 if q == 1.0 else q**2 * math.expm1(min(mu**2, 700.0)))
        return math.sqrt(total)

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns the approximate ε at δ."""
        delta = validate.fraction("delta", delta)
        return gaussian_epsilon(self.mu(event), delta) if is_private(event) else math.inf

    def delta(self, event: Event, epsilon: float) -> float:
        """Returns the approximate δ at ε."""
        epsilon = validate.non_negative("epsilon", epsilon)
        return gaussian_delta(self.mu(event), epsilon) if is_private(event) else 1.0

    def profile(self, event: Event) -> Callable[[Array], Array]:
        """Returns δ(ε) as a function of arrays."""
        return lambda epsilon: np.vectorize(lambda one: self.delta(event, float(one)), otypes=[float])(epsilon)
