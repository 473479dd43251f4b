"""ProjectedDPSGD as published: virtual steps without noise on the way, without a guarantee.

Pflaeging 2023, *Varianten von DPSGD*, ch. 5.

    θ_k = θ_{k−1} − η w_k S(θ_{k−1}) / L,    update Σ_k w_k S(θ_{k−1}) + N(0, σ²C²),    all on one lot

Without clipping and noise, Projected(Flat(inf), Gaussian(0.0), …), it is ProjectedSGD.

What the update was before noise, and its first part, are handed out sealed (`Private.kept`): the sources compare the
two.

Privacy: none. Where the second gradients are taken depends on every record of the lot, so one record changes what all
the others contribute: with kinked losses all n of them can turn round, and the sum moves by C + 2n(1 − 1/ρ)C where the
noise was scaled to C. `NoisyLookahead` is the form with a guarantee.
"""

from __future__ import annotations

from dataclasses import dataclass

from sordino.clipping.clipping_rule import ClippingRule, State
from sordino.events import compose
from sordino.former_names import former_field
from sordino.per_sample.protocol import PerSample, move_gradients
from sordino.queries.noisy_sum import NoisySum, clip_and_sum
from sordino.queries.virtual_steps import add_scaled, check_learning_rate, learning_rate_at, part_weights
from sordino.registry import Declaration, Method
from sordino.release.exact_sums import complete_sum
from sordino.release.noise import Noise
from sordino.release.release import Release, release
from sordino.release.sealed import Sealed
from sordino.release.sensitivity import Sensitivity, Unproven
from sordino.rng.streams import Rng
from sordino.schedules import Schedule

REASON = (
    "ProjectedDPSGD takes its second gradients where the lot's own gradients lead, so one record changes what all the "
    "others contribute; NoisyLookahead is the form with a guarantee"
)


@former_field("weigher", "clipping")
@dataclass(frozen=True)
class Projected:
    """Lookahead without noise on the way. `learning_rate` is that of the virtual steps; the optimizer's, as a rule.

    Args:
        clipping: how much each record counts.
        noise: what is added at the end.
        learning_rate: of the virtual steps, or a schedule of it.
        rho: the part of a virtual step that is taken is 1/ρ.
        rounds: virtual steps before the real one.

    Privacy:
        None: the virtual steps have no noise, so what one record moves is not bounded. The claim says so.

    Examples:
        >>> import sordino as sd
        >>> query = sd.Projected(sd.Flat(1.0), sd.Gaussian(1.1), learning_rate=0.1)
        >>> type(sd.dry_run(query, sd.Poisson(0.01), dataset_size=1000, steps=1)).__name__
        'NonPrivate'

    """

    clipping: ClippingRule
    noise: Noise
    learning_rate: float | Schedule
    rho: float = 2.0
    rounds: int = 1

    def __post_init__(self) -> None:
        check_learning_rate(self.learning_rate)
        part_weights(self.rho, self.rounds)
        NoisySum(self.clipping, self.noise)  # refuses a noise whose norm the rule does not bound

    def init(self) -> State:
        """Returns step 0 and the state of the clipping rule."""
        return {"step": 0, "clipping": self.clipping.init()}

    def __call__(self, grads: PerSample, state: State, expected_batch: float, rng: Rng) -> tuple[Release, State]:
        """Returns the sum of the parts with one noise, and the next state; the clipping rule learns from the first
        part.
        """
        # The first part is the clipped sum at the current parameters, as in DP-SGD.
        eta, inner = learning_rate_at(self.learning_rate, state["step"]), state["clipping"]
        total, first_tally, sensitivity = clip_and_sum(self.clipping, inner, grads)
        first, *others = part_weights(self.rho, self.rounds)
        step = add_scaled({}, complete_sum(total), 1.0)  # private, and so is every point on the way
        update = add_scaled({}, step, first)
        # Each further part is taken at a point that depends on the private sums before it. One record can therefore
        # move all later parts, no bound is known for that, and the release is marked as unproven.
        for weight in others:
            total, _, sensitivity = clip_and_sum(
                self.clipping, inner, move_gradients(grads, add_scaled({}, update, -eta / expected_batch))
            )
            update = add_scaled(update, complete_sum(total), weight)
            scale = sensitivity.l2 if isinstance(sensitivity, Sensitivity) else sensitivity.scale
            sensitivity = Unproven(REASON, scale)
        # The update before noise is handed out sealed, for diagnostics.
        kept = {"first": Sealed(step), "update": Sealed(add_scaled({}, update, 1.0))}
        # One noise at the end, as published. It is released as `NonPrivate`, whatever the multiplier.
        released = release(Sealed(update), sensitivity, self.noise, rng)
        spent, inner = self.clipping.advance(inner, first_tally, expected_batch, rng)
        event = compose([released.event, *spent])
        return Release(released.value, event, kept=kept), {"step": state["step"] + 1, "clipping": inner}


DECLARED = Declaration(
    (Projected,),
    methods=(
        Method(
            "projected",
            "lookahead without noise on the way, as published: no guarantee",
            query=lambda run, own, clipping, noise: Projected(
                clipping, noise, run.learning_rate, own["rho"], int(own["rounds"])
            ),
            parameters=lambda run: {"rho": 2.0, "rounds": 1.0},
            example="sd.Projected(sd.Flat(bound=1.0), sd.Gaussian(multiplier=1.1), learning_rate=0.1, rho=2.0)",
        ),
    ),
)
