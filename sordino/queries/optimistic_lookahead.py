"""Optimistic lookahead (Popov 1980): takes the gradient where the last released one leads.

    θ̄_t = θ_t − (η/ρ) g̃_{t−1},    g̃_t = (S(θ̄_t) + noise) / L

Lookahead with one access to the data a step: the virtual step repeats the last update instead of asking for a new one.

Privacy: θ̄_t is a function of what was released, so this is DP-SGD at another public point, with DP-SGD's event.
"""

from __future__ import annotations

from dataclasses import dataclass

from sordino import validate
from sordino.clipping.clipping_rule import ClippingRule, State
from sordino.former_names import former_field
from sordino.per_sample.protocol import PerSample, move_gradients
from sordino.queries.noisy_sum import NoisySum
from sordino.queries.virtual_steps import add_scaled, check_learning_rate, learning_rate_at
from sordino.registry import Declaration, Method
from sordino.release.noise import Noise
from sordino.release.release import Release
from sordino.rng.streams import Rng
from sordino.schedules import Schedule


@former_field("weigher", "clipping")
@dataclass(frozen=True)
class OptimisticLookahead:
    """DP-SGD at the point to which the last released gradient leads; its state holds that gradient, by parameter.

    `learning_rate` is that of the virtual step; the optimizer's, as a rule. `rho` is the part of it that is taken: 1/ρ.

    Args:
        clipping: how much each record counts.
        noise: what is added.
        learning_rate: of the virtual step, or a schedule of it.
        rho: the part of the step that is taken is 1/ρ.

    Privacy:
        The point is made of released gradients alone, so a step costs what `NoisySum` costs.

    Examples:
        >>> import sordino as sd
        >>> query = sd.OptimisticLookahead(sd.Flat(1.0), sd.Gaussian(1.1), learning_rate=0.1)
        >>> sd.dry_run(query, sd.Poisson(0.01), dataset_size=1000, steps=1)
        Poisson(rate=0.01, event=Gaussian(multiplier=1.1))

    """

    clipping: ClippingRule
    noise: Noise
    learning_rate: float | Schedule
    rho: float = 1.0

    def __post_init__(self) -> None:
        check_learning_rate(self.learning_rate)
        validate.positive("rho", self.rho, infinite=True)
        NoisySum(self.clipping, self.noise)

    def init(self) -> State:
        """Returns step 0, the state of the clipping rule, and no released gradient."""
        return {"step": 0, "clipping": self.clipping.init(), "released": {}}

    def __call__(self, grads: PerSample, state: State, expected_batch: float, rng: Rng) -> tuple[Release, State]:
        """Returns one DP-SGD release at the point where the last released gradient leads, and the next state."""
        # The point is computed from the last released gradient, so moving there costs nothing.
        eta = learning_rate_at(self.learning_rate, state["step"]) / self.rho
        by = {name: value * -eta for name, value in state["released"].items()}
        released, inner = NoisySum(self.clipping, self.noise)(
            move_gradients(grads, by), state["clipping"], expected_batch, rng
        )
        # What is remembered is the released mean; it is public.
        mean = add_scaled({}, released.value, released.divided_by / expected_batch)
        return released, {"step": state["step"] + 1, "clipping": inner, "released": mean}


DECLARED = Declaration(
    (OptimisticLookahead,),
    methods=(
        Method(
            "optimistic-lookahead",
            "each lot where the last released gradient leads: free",
            query=lambda run, own, clipping, noise: OptimisticLookahead(clipping, noise, run.learning_rate, own["rho"]),
            parameters=lambda run: {"rho": 1.0},
            example="sd.OptimisticLookahead(sd.Flat(bound=1.0), sd.Gaussian(multiplier=1.1), learning_rate=0.1)",
        ),
    ),
)
