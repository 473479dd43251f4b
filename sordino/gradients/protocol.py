"""Above the waist: what a backend hands over, and the plain form of it that holds every gradient.

A backend turns (model, loss_fn, batch) into a `PerSample`: B gradients that can be measured and summed but need never
exist. Parameters are the model's trainable tensors in the order of `named_parameters()`, each once, tied or not; P of
them. Everything is a sum: no method divides by B, because B is private.

Privacy: the values here are not protected by anything yet. They pass to a weigher and then through `release`; only the
query touches them, and nothing here prints, logs or raises on what they contain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sordino.door.sensitivity import EXACT, Estimate
from sordino.door.vectors import Grads, accumulation_dtype

LossFn = Callable[..., Tensor]
"""`loss_fn(model, *batch)` returns one loss per sample, shape (B,)."""


@dataclass(frozen=True)
class Norms:
    """Squared L2 norms, sample by parameter tensor."""

    squared: Tensor  # (B, P), float32 or better
    names: tuple[str, ...]  # the P parameters
    estimate: Estimate = EXACT

    @classmethod
    def summed(cls, squared: Tensor, sums: Tensor, finite: bool, names: tuple[str, ...]) -> Norms:
        """Exact norms whose sums over the parameters are known already."""
        norms = cls(squared, names)
        norms.__dict__["sums"], norms.__dict__["finite"] = sums, finite
        return norms

    @cached_property
    def sums(self) -> Tensor:
        """The squared L2 norm of each sample's whole gradient, shape (B,)."""
        return self.squared.sum(dim=1)

    def total(self) -> Tensor:
        """The L2 norm of each sample's whole gradient, shape (B,)."""
        return self.sums.sqrt()

    @cached_property
    def finite(self) -> bool:
        """Whether all are finite: squares do not cancel, so a finite sum has finite terms. Never to be logged."""
        return math.isfinite(self.sums.sum().item())


class PerSample(Protocol):
    """The gradients of B samples."""

    @property
    def losses(self) -> Tensor:
        """Each sample's loss, shape (B,), detached."""
        ...

    def norms(self) -> Norms:
        """Squared norms, (B, P)."""
        ...

    def dot(self, u: Mapping[str, Tensor]) -> Tensor:
        """⟨g_i, u⟩ per parameter tensor, (B, P); tensors missing from u count as zero."""
        ...

    def weighted_sum(self, weights: Tensor, into: Grads | None = None) -> Grads:
        """Σ_i w_i g_i for weights of shape (B, 1) or (B, P). Never a mean. Given `into`, adds to that sum in place.

        A row of weight 0 contributes exactly nothing, even where its gradient is not finite.
        """
        ...


class Backend(Protocol):
    """A way to obtain per-sample gradients."""

    def per_sample(self, model: nn.Module, loss_fn: LossFn, batch: Any) -> PerSample:
        """The gradients of each sample of a batch; `batch` is a tuple of loss_fn's arguments after the model."""
        ...

    def sample_bytes(self, model: nn.Module) -> int:
        """About how much memory one more sample takes, from which a physical batch is chosen."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A backend with choices that decide rounding: a run that is to resume bit-equal must take them along."""

    def state_dict(self) -> dict[str, Any]:
        """The choices, as JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Choose the same again."""
        ...


@runtime_checkable
class PerPass(Protocol):
    """A backend that draws something at random which all records of a pass must share, whatever batches they come in."""

    def drawn(self) -> Backend:
        """The backend for one pass."""
        ...


@runtime_checkable
class Estimating(Protocol):
    """A backend whose norms are not exact says what they are."""

    @property
    def estimate(self) -> Estimate:
        """How the norms are obtained."""
        ...


def estimate_of(backend: Backend | None) -> Estimate:
    """How a backend obtains its norms: what an `Estimating` one says. Asked every step, and `isinstance` is slow there."""
    found: Estimate = getattr(backend, "estimate", EXACT)
    return found


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by name, in order, tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def zeros(parameters: Mapping[str, Tensor]) -> Grads:
    """A sum over no samples."""
    return {n: torch.zeros(p.shape, dtype=accumulation_dtype(p.dtype), device=p.device) for n, p in parameters.items()}


BLOCK = 1 << 18
"""Elements squared at once: few enough to stay in cache, and for float32 sums over them to be good to 1e-7. Longer runs
read low, and a low norm breaks the bound."""


def flattened(rows: Tensor) -> Tensor:
    """(B, …) as (B, d) in float32 or better; a scalar parameter has d = 1, an empty lot B = 0."""
    return rows.reshape(rows.shape[0], math.prod(rows.shape[1:])).to(accumulation_dtype(rows.dtype))


def squared_norms(rows: Tensor) -> Tensor:
    """Σ x² of each row of (B, …), accumulated in float32 or better, block by block."""
    flat = flattened(rows)
    total = torch.zeros(flat.shape[0], dtype=torch.float64, device=flat.device)
    together = max(1, BLOCK // max(1, flat.shape[1]))  # rows
    for start in range(0, flat.shape[0], together):
        for block in flat[start : start + together].split(BLOCK, dim=1):
            total[start : start + together] += block.square().sum(dim=1)
    return total.to(flat.dtype)


@dataclass(frozen=True)
class Materialised:
    """Per-sample gradients held in full: the plain form, and the oracle's."""

    rows: Grads  # name -> (B, *shape)
    losses: Tensor  # (B,)
    estimate: Estimate = EXACT  # anything else only where there are no rows

    def norms(self) -> Norms:
        """Squared norms from the gradients themselves."""
        columns = [squared_norms(rows) for rows in self.rows.values()]
        if not columns:
            return Norms(torch.zeros(len(self.losses), 0), (), self.estimate)
        return Norms(torch.stack(columns, dim=1), tuple(self.rows), self.estimate)

    def dot(self, u: Mapping[str, Tensor]) -> Tensor:
        """Inner products from the gradients themselves."""
        columns = []
        for name, rows in self.rows.items():
            flat = flattened(rows)
            other = u[name].flatten().to(flat.dtype) if name in u else flat.new_zeros(flat.shape[1])
            columns.append((flat * other).sum(dim=1, dtype=torch.float64).to(flat.dtype))
        return torch.stack(columns, dim=1)

    def weighted_sum(self, weights: Tensor, into: Grads | None = None) -> Grads:
        """Σ_i w_i g_i, tensor by tensor."""
        total: Grads = {} if into is None else into
        for column, (name, rows) in enumerate(self.rows.items()):
            dtype = accumulation_dtype(rows.dtype)
            w = weights[:, column if weights.shape[1] > 1 else 0].to(dtype)  # (B,)
            summed = torch.tensordot(w, rows.to(dtype), dims=1)
            if not torch.isfinite(summed).all():  # 0 · nan is nan: leave the rows of weight 0 out
                summed = torch.tensordot(w[w != 0], rows[w != 0].to(dtype), dims=1)
            total[name] = total[name].add_(summed) if name in total else summed
        return total
