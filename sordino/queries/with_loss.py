"""Releases a noisy mean of the losses beside the gradients, for logs that may be read.

    ℓ̃ = (Σ_i clip(ℓ_i, −C, C) + noise) / L,    L the expected batch

Privacy: one record moves the clipped sum by at most C. The loss is released on the same draw as the gradient; both are
charged, composed before they are amplified. With a multiplier of 20 beside one of 1 for the gradients it costs as much
as lowering that one by 0.1 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sordino import validate
from sordino.clipping.clipping_rule import State
from sordino.events import compose
from sordino.per_sample.protocol import Chunked, PerSample
from sordino.queries.noisy_sum import Query
from sordino.refusal import Refusal
from sordino.registry import Declaration, Example
from sordino.release.noise import Noise
from sordino.release.release import Release, release
from sordino.release.sealed import Sealed
from sordino.release.sensitivity import Sensitivity
from sordino.rng.streams import Rng


@dataclass(frozen=True)
class WithLoss:
    """Asks `query`, and releases the mean of the losses too, each clipped to ±`bound`; `private.loss` has it.

    Args:
        query: what is asked of the gradients.
        bound: losses are clipped to ±bound.
        noise: on the sum of the losses, in proportion to the bound.

    Privacy:
        A second release on the same draw, charged together with the first.

    Examples:
        >>> from sordino import Flat, Gaussian, NoisySum
        >>> WithLoss(NoisySum(Flat(1.0), Gaussian(1.1)), bound=3.0, noise=Gaussian(20.0)).bound
        3.0

    """

    query: Query
    bound: float
    noise: Noise

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", validate.positive("bound", self.bound))
        validate.query("query", self.query)
        validate.noise("noise", self.noise)
        self.noise.bound_for(self._sensitivity)

    @property
    def _sensitivity(self) -> Sensitivity:
        return Sensitivity(l2=self.bound, l1=self.bound)

    def init(self) -> State:
        """Returns the query's state, and None for the loss."""
        return self.query.init(), None

    def __call__(self, grads: PerSample, state: State, expected_batch: float, rng: Rng) -> tuple[Release, State]:
        """Returns the query's release composed with that of the losses of its pass over the lot, and the next state."""
        inner, _ = state
        losses = _Losses(self.bound)
        released, inner = self.query(losses.watch_losses(grads), inner, expected_batch, rng)
        # The losses are those of the query's own pass over the lot, if it made one at the current model.
        total = Sealed({"loss": losses.sum_losses(grads)})
        loss = release(total, self._sensitivity, self.noise, rng, divide_by=expected_batch)
        both = Release(released.value, compose([released.event, loss.event]), released.divided_by)
        return both, (inner, float(loss.value["loss"]))


def released_loss(query: Query, state: State) -> float | None:
    """Returns the mean loss that a query with loss released last; None before the first."""
    if not isinstance(query, WithLoss):
        raise Refusal(
            "private.loss: no loss was released.\n"
            "Losses of private records are read with noise only.\n"
            "Wrap the query, as in sd.WithLoss(query, bound=3.0, noise=sd.Gaussian(20.0)), which charges a noisy "
            "mean of each lot's losses."
        )
    loss: float | None = state[1]
    return loss


@dataclass
class _Losses:
    """Adds up the clipped losses of a lot while the query goes through it."""

    bound: float
    sums_by_part: list[Tensor] | None = field(default=None, init=False)  # by part

    def watch_losses(self, grads: PerSample) -> PerSample:
        """Returns gradients whose pass also leaves the sum of the losses here, for a query that releases the loss with
        them.
        """
        if not isinstance(grads, Chunked):
            return grads
        return replace(grads, parts=lambda: self._collect_losses(grads.parts()))

    def sum_losses(self, grads: PerSample) -> Tensor:
        """Returns Σ clip(ℓ) in float64 for a query with loss; by a pass of its own where the query made none at the
        model itself.
        """
        # Losses are collected while the query goes through the lot; only a query that never does needs another pass.
        if self.sums_by_part is None:
            for _ in self._collect_losses(grads.parts() if isinstance(grads, Chunked) else (grads,)):
                pass
        assert self.sums_by_part, "a lot has at least one part"
        ranked = grads.ranked if isinstance(grads, Chunked) else None
        return (
            torch.stack(self.sums_by_part).sum(dim=0) if ranked is None else ranked.sum_over_chunks(self.sums_by_part)
        )

    def _collect_losses(self, parts: Iterable[PerSample]) -> Iterator[PerSample]:
        """Yields the parts of a lot and keeps the sum of their clipped losses, for a query with loss; one that is not a
        number counts as the bound.
        """
        sums: list[Tensor] = []
        for part in parts:
            # A loss is clipped to ±bound, so one record moves the sum by at most the bound.
            losses = part.losses.detach().to(torch.float64).cpu()
            sums.append(losses.nan_to_num(nan=self.bound).clamp(-self.bound, self.bound).sum(dim=0, keepdim=True))
            yield part
            del part  # or it would live on beside the next one
        self.sums_by_part = sums


DECLARED = Declaration(
    (WithLoss,),
    examples=(
        Example(
            "with-loss",
            "a noisy mean of the losses beside the gradients, charged with them",
            query="sd.WithLoss(sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1)), bound=3.0, noise=sd.Gaussian(20.0))",
        ),
    ),
)
