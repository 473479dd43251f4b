"""Protocols of backends and of the per-sample gradients that they return.

A backend turns (model, loss_fn, batch) into a `PerSample`: B gradients that can be measured and summed but need never
exist. Parameters are the model's trainable tensors in the order of `named_parameters()`, each once, tied or not; P of
them. Everything is a sum: no method divides by B, because B is private.

Privacy: the values here are not protected by anything yet. They pass to a clipping rule and then through `release`;
only the query touches them, and nothing here prints, logs or raises on what they contain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from sordino.release.sensitivity import EXACT, Estimate
from sordino.release.vectors import Grads

LossFn = Callable[..., Tensor]
"""`loss_fn(model, *batch)` returns one loss per sample, shape (B,)."""


@dataclass(frozen=True)
class Norms:
    """Squared L2 norms, sample by parameter tensor.

    Args:
        squared: (B, P).
        names: of the P tensors.
        estimate: how they were measured; exactly, by default.

    Examples:
        >>> import torch
        >>> Norms(torch.tensor([[9.0, 16.0]]), ("weight", "bias")).total()
        tensor([5.])

    """

    squared: Tensor  # (B, P), float32 or better
    names: tuple[str, ...]  # the P parameters
    estimate: Estimate = EXACT

    @classmethod
    def with_known_sums(cls, squared: Tensor, sums: Tensor, finite: bool, names: tuple[str, ...]) -> Norms:
        """Returns exact norms, as the protocol of per-sample gradients has them, whose sums over the parameters are
        known already.
        """
        norms = cls(squared, names)
        norms.__dict__["sums"], norms.__dict__["finite"] = sums, finite
        return norms

    @cached_property
    def sums(self) -> Tensor:
        """The squared L2 norm of each sample's whole gradient, shape (B,)."""
        return self.squared.sum(dim=1)

    def total(self) -> Tensor:
        """Returns the L2 norm of each sample's whole gradient, shape (B,)."""
        return self.sums.sqrt()

    @cached_property
    def finite(self) -> bool:
        """Returns whether all norms of the protocol are known to be finite: squares do not cancel, so a finite sum has
        finite terms. Never to be logged.

        On a device nobody asks, since the host would have to wait for it: rows are masked there instead.
        """
        return self.sums.is_cpu and math.isfinite(self.sums.sum().item())


class PerSample(Protocol):
    """The gradients of B samples."""

    @property
    def losses(self) -> Tensor:
        """Each sample's loss, shape (B,), detached."""
        ...

    def norms(self) -> Norms:
        """Returns squared norms, (B, P)."""
        ...

    def dot(self, u: Mapping[str, Tensor]) -> Tensor:
        """Returns ⟨g_i, u⟩ per parameter tensor, (B, P); tensors missing from u count as zero."""
        ...

    def weighted_sum(self, weights: Tensor, into: Grads | None = None) -> Grads:
        """Returns Σ_i w_i g_i, as the protocol of per-sample gradients asks, for weights of shape (B, 1) or (B, P),
        never a mean; `into` is a sum to add to in place.

        A row of weight 0 contributes exactly nothing, even where its gradient is not finite.
        """
        ...


@runtime_checkable
class OneByOne(Protocol):
    """Gradients whose weighted sums can be made one parameter after the other, each dropped before the next."""

    def sums(self, weights: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yields the sums of `weighted_sum`, bit by bit, by parameter; none for a parameter that no sample uses."""
        ...


def sums_one_by_one(grads: PerSample, weights: Tensor) -> Iterable[tuple[str, Tensor]]:
    """Returns the weighted sums of a batch, a parameter at a time where the backend's protocol has it; none of an empty
    batch.
    """
    if not len(weights):
        return ()
    return grads.sums(weights) if isinstance(grads, OneByOne) else grads.weighted_sum(weights).items()


class Backend(Protocol):
    """A way to obtain per-sample gradients."""

    def per_sample(self, model: nn.Module, loss_fn: LossFn, batch: Any) -> PerSample:
        """Returns the gradients of each sample of a batch; `batch` is a tuple of loss_fn's arguments after the model."""
        ...

    def sample_bytes(self, model: nn.Module) -> int:
        """Returns about how much memory one more sample takes, from which a physical batch is chosen."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A backend with choices that decide rounding: a run that is to resume bit-equal must take them along."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the choices, as JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the same choices again."""
        ...


@runtime_checkable
class Measuring(Protocol):
    """A backend that times formulas and takes the fastest, which may be another one in another process."""

    @property
    def measures(self) -> bool:
        """Whether it still does."""
        ...

    def choose_by_shapes(self) -> None:
        """Stops measuring: shapes that were not met so far get the formula that follows from them alone."""
        ...


def estimate_kind(backend: Backend | None) -> Estimate:
    """Returns how a backend obtains its norms, by the backends' protocol: what its `estimate` says, and exactly if it
    has none.

    It is asked every step, and `isinstance` with a protocol is slow there.
    """
    found: Estimate = getattr(backend, "estimate", EXACT)
    return found


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the trainable parameters by name, in order, tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
