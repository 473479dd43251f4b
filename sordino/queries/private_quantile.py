"""A quantile of private numbers by the exponential mechanism (Smith 2011).

It is expQ in Du et al. 2020.

    u(x) = −|#{i : z_i ≤ x} − α n|  for 0 ≤ x ≤ H, the z clamped to [0, H];   density of the answer ∝ exp(ε u(x) / 2Δ)

Between two neighbouring numbers u is constant, so one of the n + 1 intervals is chosen with probability ∝ width ×
exp(…), then a place in it uniformly.

Privacy: a record added or removed moves the count at x by 0 or 1 and α n by α, so it moves u(x) by at most
Δ = max(α, 1 − α), and the answer is ε-differentially private (McSherry & Talwar 2007). H is public: it must not be
taken from the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino import validate
from sordino.distributed.agreement import agree_within_group
from sordino.distributed.claim_facts import ClaimFacts, digest_of_record
from sordino.distributed.process_group import new_rng
from sordino.events import Event
from sordino.ledger.claims import SEED
from sordino.ledger.ledger import Ledger
from sordino.registry import Declaration
from sordino.release.release import Steps, choose_between
from sordino.release.sealed import Sealed, map_sealed
from sordino.rng.streams import Rng


@dataclass(frozen=True)
class PrivateQuantile:
    """Releases the `quantile` of numbers between 0 and `ceiling`, with `epsilon`-differential privacy.

    Privacy:
        One choice by the exponential mechanism, of the ε given.

    Examples:
        >>> values = Sealed(torch.linspace(0, 1, 1001))
        >>> found, event = PrivateQuantile(0.75, ceiling=10.0, epsilon=1.0)(values, Rng.from_seed(0))
        >>> abs(found - 0.75) < 0.05, event
        (True, Exponential(epsilon=1.0))

    """

    quantile: float
    ceiling: float
    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "quantile", validate.fraction("quantile", self.quantile))
        object.__setattr__(self, "ceiling", validate.positive("ceiling", self.ceiling))
        object.__setattr__(self, "epsilon", validate.positive("epsilon", self.epsilon))

    @property
    def sensitivity(self) -> float:
        """The sensitivity of u at any x: max(α, 1 − α)."""
        return max(self.quantile, 1 - self.quantile)

    def __call__(self, values: Sealed[Tensor], rng: Rng) -> tuple[float, Event]:
        """Returns a public number, and the event of its release."""
        return choose_between(map_sealed(values, self.utility), self.sensitivity, self.epsilon, rng)

    def of(self, values: Tensor, *, ledger: Ledger, seed: int | None = None) -> float:
        """Returns the private quantile of a tensor of numbers, one per record, and enters its release in the ledger."""
        # Whoever knows the seed knows the noise, so the claim says that there was one.
        if seed is not None:
            ledger.disclose(SEED)
        else:

            def add_facts(facts: ClaimFacts, key: bytes) -> None:
                facts.add("quantile", self)
                facts.add("entries of the ledger", ledger.length)
                facts.add("values", digest_of_record(key, values))

            # All ranks must ask the same about the same numbers before one of them releases anything.
            agree_within_group(add_facts)
        rng = new_rng() if seed is None else Rng.from_seed(validate.count("seed", seed, least=0))
        quantile, event = self(Sealed(values, ledger), rng)
        # The release is entered in the ledger of the numbers, in a section of its own.
        ledger.release(event, ledger.new_section())
        return quantile

    def utility(self, values: Tensor) -> Steps:
        """Returns the utility u of every number as the private quantile, as a step function for the exponential
        mechanism.
        """
        # A number that is not finite counts as 0: where it is clamped to must not depend on the others.
        clean = torch.nan_to_num(values.to(torch.float64).flatten(), nan=0.0, posinf=0.0, neginf=0.0)
        inner = clean.clamp(0.0, self.ceiling).sort().values
        edges = torch.cat([inner.new_zeros(1), inner, inner.new_full((1,), self.ceiling)])  # (n + 2,)
        below = torch.arange(len(inner) + 1, dtype=torch.float64)  # how many are ≤ x in each interval
        return Steps(edges, -(below - self.quantile * len(inner)).abs())


DECLARED = Declaration((PrivateQuantile,))
