"""The noisy sum of gradients that are clipped by their L1 norms, for Laplace noise.

    g̃ = Σ φ(‖g_i‖₁) g_i + Lap(bC)

The clipping rule is asked about L1 norms in place of L2 norms: `Flat(C)` shortens each gradient to an L1 norm of C.
`FlatL1` reaches the same bound from L2 norms, by ‖g‖₁ ≤ √d·‖g‖₂, and shortens √d·‖g‖₂ / ‖g‖₁ times more than it needs
to: about 1.25 times where the coordinates are like normal values, many times where most of them are 0, as behind ReLUs
or for sparse records. The price is that every gradient is written out, by one weighted sum for each record: it pays for
small models and small lots.

Privacy: φ(r)·r ≤ C for every r is the proof of the clipping rule, and holds for r = ‖g‖₁: one record moves the sum by
at most C in L1, hence in L2 too, since ‖v‖₂ ≤ ‖v‖₁.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sordino import validate
from sordino.clipping.clipping_rule import ClippingRule, Rule, State
from sordino.former_names import former_field
from sordino.per_sample.protocol import Norms, PerSample
from sordino.queries.noisy_sum import clip_and_sum, release_sum
from sordino.refusal import Refusal
from sordino.registry import Declaration, Method
from sordino.release.noise import Noise
from sordino.release.release import Release
from sordino.release.sensitivity import Sensitivity, Unproven
from sordino.release.vectors import Grads
from sordino.rng.streams import Rng

_WHOLE = ("the whole gradient",)


@dataclass(frozen=True)
class _L1Gradients:
    """Per-sample gradients whose norms are the L1 norms of the whole gradients."""

    grads: PerSample

    @property
    def losses(self) -> Tensor:
        """The loss of each record."""
        return self.grads.losses

    def norms(self) -> Norms:
        """Returns squared L1 norms, (B, 1), for a noisy sum in L1, each from the record's gradient, which is written
        out.
        """
        # A record's L1 norm needs its whole gradient, so it is written out, one record at a time.
        lengths = torch.zeros(len(self.losses), 1, dtype=torch.float64)
        for i in range(len(lengths)):
            alone = torch.zeros(len(lengths), 1, device=self.losses.device)
            alone[i] = 1.0
            each = self.grads.weighted_sum(alone).values()
            lengths[i] = sum(float(tensor.double().abs().sum()) for tensor in each)
        return Norms(lengths.square().to(self.losses.device), _WHOLE)

    def dot(self, u: Mapping[str, Tensor]) -> Tensor:
        """Returns the inner product of each gradient with `u`."""
        return self.grads.dot(u)

    def weighted_sum(self, weights: Tensor, into: Grads | None = None) -> Grads:
        """Returns Σ w_i g_i."""
        return self.grads.weighted_sum(weights.to(torch.promote_types(self.losses.dtype, torch.float32)), into=into)


@former_field("weigher", "clipping")
@dataclass(frozen=True)
class L1Sum:
    """DP-SGD with L1 norms: the clipping rule `clipping` is asked about those, and `noise` is Laplace as a rule.

    Privacy:
        One release of Laplace noise in proportion to the L1 bound.

    Examples:
        >>> from sordino import Flat, Laplace
        >>> L1Sum(Flat(1.0), Laplace(30.0))
        L1Sum(clipping=Flat(bound=1.0), noise=Laplace(multiplier=30.0))

    """

    clipping: ClippingRule
    noise: Noise

    def __post_init__(self) -> None:
        """Validates rule and noise; refuses a noise whose norm the rule does not bound."""
        validate.clipping_rule("clipping", self.clipping)
        validate.noise("noise", self.noise)
        # Asked without a lot: a noise whose norm the rule does not bound is refused here and not at the first step.
        sensitivity = self._rule_in_l1(self.init()).sensitivity
        if isinstance(sensitivity, Sensitivity):
            self.noise.bound_for(sensitivity)

    def init(self) -> State:
        """Returns the state of the clipping rule before the first lot."""
        return self.clipping.init()

    def __call__(self, grads: PerSample, state: State, expected_batch: float, rng: Rng) -> tuple[Release, State]:
        """Returns one release of the clipped sum, divided by the expected batch, and the next state."""
        clipped = clip_and_sum(self.clipping, state, grads, rule=self._rule_in_l1(state), measure=_L1Gradients)
        return release_sum(self.clipping, state, clipped, self.noise, expected_batch, rng, divide_by=expected_batch)

    def _rule_in_l1(self, state: State) -> Rule:
        """Returns the clipping rule of this step of an L1 sum with its reach in L1; raises Refusal where it needs more
        than one norm.
        """

        def refuse_look() -> Norms:
            """Raises Refusal for a clipping rule that looks at the lot's L2 norms, because an L1 sum has L1 norms
            alone.
            """
            raise Refusal(
                f"{self.clipping!r} looks at the L2 norms of the lot before it chooses its weights.\n"
                "L1Sum clips by L1 norms, which it computes for one record after the other.\n"
                "Use a clipping rule that does not look, such as Flat."
            )

        # Asking for the lot's norms is refused, because those would be L2 norms.
        rule = self.clipping.rule(state, refuse_look)
        # A rule without a proof stays without one in any norm.
        promise = rule.sensitivity
        if isinstance(promise, Unproven):
            return rule
        # A promise with units or an L1 bound of its own is about other norms than the one that is handed to the rule
        # here.
        if promise.units is not None or promise.l1 is not None:
            raise Refusal(
                f"{self.clipping!r} bounds something else than one norm of the whole gradient.\n"
                "L1Sum gives the rule the L1 norm of each record and nothing else.\n"
                "Use a clipping rule of one norm, such as Flat."
            )
        # |v|₂ ≤ |v|₁ for every vector, so a bound on the L1 norm is one on the L2 norm too.
        return replace(rule, sensitivity=Sensitivity(l2=promise.l2, l1=promise.l2))


DECLARED = Declaration(
    (L1Sum,),
    methods=(
        Method(
            "l1-sum",
            "gradients measured in L1 and shortened to the bound there: what Laplace noise needs, for small models",
            query=lambda run, own, clipping, noise: L1Sum(clipping, noise),
            example="sd.L1Sum(sd.Flat(bound=1.0), sd.Laplace(multiplier=3.0))",
        ),
    ),
)
