"""Per-sample gradients: the protocols of backends and of what they return, and a lot of several batches.

A backend turns (model, loss_fn, batch) into a `PerSample`: B gradients that can be measured and summed but need never
exist. Parameters are the model's trainable tensors in the order of `named_parameters()`, each once, tied or not; P of
them. Everything is a sum: no method divides by B, because B is private.

`Chunked` is the `PerSample` of a lot larger than memory, whose batches are computed one at a time. The parts can be gone
through again: a rule that is fixed beforehand needs them once, whoever looks at the norms of the whole lot first pays for
a second pass. Chunked or whole, the sums are the same up to rounding. They can also be asked for at other parameters: the
same samples, another θ.

Privacy: the values here are not protected by anything yet. They pass to a clipping rule and then through `release`;
only the query touches them, and nothing here prints, logs or raises on what they contain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.distributed.shared_lot import RankedLot
from sordino.refusal import Refusal
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


class NormsOnDemand(Norms):
    """Norms of which only the sums over the parameters are known; those of single parameters are computed when asked for.

    On a device each of them would be a launch of its own, and most clipping rules look at the sums alone.
    """

    def __init__(
        self, sums: Tensor, compute: Callable[[], Tensor], names: tuple[str, ...], estimate: Estimate = EXACT
    ) -> None:
        """Takes the squared L2 norm of each sample's whole gradient, (B,), and what computes the columns, (B, P)."""
        self.__dict__.update(sums=sums, names=names, estimate=estimate, _compute=compute)

    @cached_property
    def squared(self) -> Tensor:
        """Squared L2 norms, sample by parameter tensor, (B, P)."""
        compute: Callable[[], Tensor] = self.__dict__["_compute"]
        return compute()


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


@dataclass(frozen=True)
class Chunked:
    """Computes the gradients of a lot part by part.

    `parts()` gives the parts of the lot, from the first, each time it is called; at least one. `parts_at(by)` gives
    them for a model whose parameters are moved by `by`.
    """

    parts: Callable[[], Iterable[PerSample]]
    parts_at: Callable[[Mapping[str, Tensor]], Iterable[PerSample]] | None = None
    records: NDArray[np.int64] | None = None  # which records of the dataset they are, in order; private
    estimate: Estimate = EXACT  # what the norms of its parts are
    sizes: Callable[[], Mapping[str, int]] | None = None  # the elements of each tensor; public
    most: int | None = None  # no part has more records; public
    ranked: RankedLot | None = None  # of several ranks: `parts` are those of this one

    def __iter__(self) -> Iterator[PerSample]:
        """Returns the parts of the whole lot; refuses where other ranks have some of them."""
        # A query that goes through the lot by itself would see only this rank's share.
        if self.ranked is not None and self.ranked.ranks.size > 1:
            raise Refusal(
                "this query goes through the records of a lot by itself.\n"
                "On several ranks each of them has some of the records.\n"
                "Use a query that sums by a clipping rule, such as NoisySum, or one process."
            )
        return self.iterate_local_parts()

    def iterate_local_parts(self) -> Iterator[PerSample]:
        """Yields the parts that this rank computes: all of them, where there are no ranks."""
        yield from self.parts()

    @property
    def losses(self) -> Tensor:
        """Every sample's loss."""
        return torch.cat([part.losses for part in self])

    def norms(self) -> Norms:
        """Returns the norms of all samples of a lot of several batches, as the protocol of per-sample gradients asks,
        by a pass over the lot.
        """
        if self.ranked is None:
            found = [part.norms() for part in self]
            return Norms(torch.cat([norms.squared for norms in found]), found[0].names, found[0].estimate)
        # Where ranks share the lot, each measures its own parts, and all get the norms in the order of the lot.
        try:
            found = [part.norms() for part in self.iterate_local_parts()]
        except Exception as error:
            self.ranked.report_failure(error)
        self.ranked.agree_after_pass(found[0].names)
        squared = self.ranked.gather_in_order([norms.squared for norms in found])
        return Norms(squared, found[0].names, found[0].estimate)

    def dot(self, u: Mapping[str, Tensor]) -> Tensor:
        """Returns ⟨g_i, u⟩ of all samples, by a pass over the lot."""
        return torch.cat([part.dot(u) for part in self])

    def weighted_sum(self, weights: Tensor, into: Grads | None = None) -> Grads:
        """Returns Σ_i w_i g_i over all samples of a lot of several batches, as the protocol of per-sample gradients
        asks, with the weights cut to each batch.
        """
        # Weights belong to samples by their place in the lot.
        total, start = into, 0
        for part in self:
            rows = len(part.losses)
            total = part.weighted_sum(weights[start : start + rows], into=total)
            start += rows
        assert total is not None, "a lot has at least one part"
        return total


def move_gradients(grads: PerSample, by: Mapping[str, Tensor]) -> PerSample:
    """Returns the gradients, under the protocol of per-sample gradients, of the same samples at θ + by: one pass over
    the lot when they are asked for.
    """
    # Only a lot of `Private` knows how to compute gradients at another point.
    if not isinstance(grads, Chunked) or grads.parts_at is None:
        raise Refusal(
            f"gradients at other parameters were asked of a {type(grads).__name__}.\n"
            "Only a lot knows how to compute them.\n"
            "Ask the lot that Private hands a query."
        )
    at = grads.parts_at
    return Chunked(lambda: at(by), estimate=grads.estimate, sizes=grads.sizes, most=grads.most, ranked=grads.ranked)
