"""Noisy lookahead: virtual steps by released gradients, the ProjectedDPSGD with a guarantee.

    ũ_k = S(θ_{k−1}) + N(0, σ_k² C²),   θ_k = θ_{k−1} − η w_k ũ_k / L,   all on one lot;   update Σ_k w_k ũ_k

One noise σ is split: σ_k = σ/√w_k. Then Σ 1/σ_k² = 1/σ² and the noise of the update has variance Σ w_k² σ_k² = σ²: the
ε and the update noise of DP-SGD(σ), and only the virtual points are noisier. Or each part is given a noise of its own.

Privacy: where the next gradient is taken depends on released values alone, so the parts are an adaptive composition of
DP-SGD's releases on one draw; the ledger composes them and the sampler amplifies them once, together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sordino.clipping.clipping_rule import ClippingRule, State
from sordino.events import Event, compose
from sordino.former_names import former_field
from sordino.per_sample.protocol import PerSample, move_gradients
from sordino.queries.noisy_sum import NoisySum, clip_and_sum
from sordino.queries.virtual_steps import add_scaled, check_learning_rate, learning_rate_at, part_weights
from sordino.registry import Declaration, Method
from sordino.release.noise import Gaussian, Noise
from sordino.release.release import Release, release
from sordino.release.sealed import Sealed
from sordino.release.vectors import Grads
from sordino.rng.streams import Rng
from sordino.schedules import Schedule


@former_field("weigher", "clipping")
@dataclass(frozen=True)
class NoisyLookahead:
    """DP-SGD in parts, each computed at the point to which the noisy parts before it lead.

    `noise` is one noise, which is split so that the whole costs what one release with it costs, or one noise for each
    of the parts. `learning_rate` is that of the virtual steps; the optimizer's, as a rule.

    Privacy:
        Every substep is a noisy release on the same draw; all are charged, composed before they are amplified.

    Examples:
        >>> from sordino import Flat, Poisson, dry_run
        >>> dry_run(NoisyLookahead(Flat(1.0), Gaussian(1.0), learning_rate=0.1), Poisson(0.1), 100, steps=1)
        Poisson(rate=0.1, event=Repeat(event=Gaussian(multiplier=1.414213562373095), count=2))

    """

    clipping: ClippingRule
    noise: Noise | Sequence[Noise]
    learning_rate: float | Schedule
    rho: float = 2.0
    rounds: int = 1

    def __post_init__(self) -> None:
        """Validates the learning rate, and the noise of every part."""
        check_learning_rate(self.learning_rate)
        # A list of noises is kept as a tuple, so that the query can be compared.
        if isinstance(self.noise, Sequence):
            object.__setattr__(self, "noise", tuple(self.noise))
        for _, noise in self._weights_and_noises():
            NoisySum(self.clipping, noise)  # refuses a noise whose norm the rule does not bound

    def init(self) -> State:
        """Returns step 0 and the state of the clipping rule."""
        return {"step": 0, "clipping": self.clipping.init()}

    def __call__(self, grads: PerSample, state: State, expected_batch: float, rng: Rng) -> tuple[Release, State]:
        """Returns the sum of one DP-SGD release for each part; the clipping rule learns from the first."""
        eta, inner = learning_rate_at(self.learning_rate, state["step"]), state["clipping"]
        update: Grads = {}
        events: list[Event] = []
        gradients, first_tally = grads, None
        for k, (weight, noise) in enumerate(self._weights_and_noises()):
            if k > 0:
                # Only released values decide where the next gradient is taken.
                gradients = move_gradients(grads, add_scaled({}, update, -eta / expected_batch))
            # Every part is clipped and noised by itself, so it is a DP-SGD release with its own event.
            total, tally, sensitivity = clip_and_sum(self.clipping, inner, gradients)
            first_tally = tally if k == 0 else first_tally
            released = release(Sealed(total), sensitivity, noise, rng)
            update = add_scaled(update, released.value, weight)
            events.append(released.event)
        # The rule learns from the first part alone; the others are gradients at displaced models.
        spent, inner = self.clipping.advance(inner, first_tally, expected_batch, rng)
        return Release(update, compose([*events, *spent])), {"step": state["step"] + 1, "clipping": inner}

    def _weights_and_noises(self) -> list[tuple[float, Noise]]:
        """Returns the weight and the noise of each part of a noisy lookahead; raises ValueError if their numbers
        differ.
        """
        # One noise is split so that all parts together cost as much as it does alone.
        weights = part_weights(self.rho, self.rounds)
        noises = self.noise if isinstance(self.noise, Sequence) else _split_noise(self.noise, weights)
        if len(noises) != len(weights):
            raise ValueError(
                f"noise: {len(noises)} were given for {len(weights)} parts; need one each, or one to split"
            )
        return list(zip(weights, noises, strict=True))


def _split_noise(noise: Noise, weights: Sequence[float]) -> list[Noise]:
    if not isinstance(noise, Gaussian):
        raise TypeError(f"noise={noise!r}: only Gaussian noise can be split at no cost; give one noise for each part")
    return [Gaussian(noise.multiplier / math.sqrt(weight)) for weight in weights]


DECLARED = Declaration(
    (NoisyLookahead,),
    methods=(
        Method(
            "noisy-lookahead",
            "each lot in two parts, the second where the noisy first one leads",
            query=lambda run, own, clipping, noise: NoisyLookahead(
                clipping, noise, run.learning_rate, own["rho"], int(own["rounds"])
            ),
            parameters=lambda run: {"rho": 2.0, "rounds": 1.0},
            example="sd.NoisyLookahead(sd.Flat(bound=1.0), sd.Gaussian(multiplier=1.1), learning_rate=0.1)",
        ),
    ),
)
