"""Estimates norms from random directions; no gradient of a single record is computed (DP-SGD-JL).

Bu et al. 2021, arXiv:2102.03013.

    M_i² = (1/r) Σ_j ⟨g_i, v_j⟩²,   v_j ~ N(0, I)          r forward-mode derivatives of the losses
    Σ w_i g_i = ∇ Σ w_i ℓ_i                                one backward pass

It costs r passes where `Captured` costs about one, so it is for models that nothing else takes, and for comparison.
Only the norm of the whole gradient is estimated: clipping rules with a bound per layer are refused.

Privacy: M_i²/‖g_i‖² is χ²_r/r, so after the clip a record contributes up to C·ρ with ρ = √(r/χ²_r), which no number
bounds. The directions are drawn anew for every pass over a lot, independently of the data, and are treated as known to
all; then the release is a mixture of Gaussians over ρ, and that is its event. All batches of a pass share them
(`for_pass`): with directions of its own for each, one record more would move others to other directions, and their
weights with them. Below 20 directions the tail of ρ alone is too much.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from sordino import validate
from sordino.per_sample import model_checks
from sordino.per_sample.batch_structure import batch_size, take_rows
from sordino.per_sample.batch_structure import call_loss as losses_of
from sordino.per_sample.engine.module_plan import find_loss_identity
from sordino.per_sample.engine.pruned_backward import require_loss_per_sample
from sordino.per_sample.materialised import make_empty
from sordino.per_sample.model_inventory import Inventory
from sordino.per_sample.protocol import LossFn, Norms, PerSample, trainable_parameters
from sordino.per_sample.row_arithmetic import zero_sum
from sordino.per_sample.vmap_backend import FunctionalLoss
from sordino.refusal import Refusal
from sordino.release.sensitivity import FromProjections
from sordino.release.vectors import Grads, accumulation_dtype
from sordino.rng.global_generators import Seeded

LEAST = 20
WHOLE_GRADIENT = ("all parameters",)
NO_NORMS = Norms(torch.zeros(0, 1), WHOLE_GRADIENT)
_AGREE = 1e-3
"""Relative difference allowed between the losses' derivative along a direction and their gradient's part in it."""


@dataclass(frozen=True)
class JL:
    """Estimates norms from `projections` random directions.

    >>> grads = JL(50).per_sample(nn.Linear(3, 1), lambda m, x: m(x).square().sum(1), (torch.ones(4, 3),))
    >>> grads.norms().squared.shape
    torch.Size([4, 1])
    """

    projections: int
    directions: int | None = field(default=None, repr=False)
    """The seed of the directions; None: anew for every batch, as is right where a batch is a whole pass."""
    _verified: WeakKeyDictionary[nn.Module, set[Hashable]] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )
    """For each model, the losses and modes whose derivative was found to be their gradient, by this object."""

    def __post_init__(self) -> None:
        if validate.count("projections", self.projections) < LEAST:
            raise ValueError(
                f"projections={self.projections}: must be >= {LEAST}; with fewer, a norm is so often read short "
                "that no useful guarantee is left"
            )

    @property
    def estimate(self) -> FromProjections:
        """How the norms are obtained."""
        return FromProjections(self.projections)

    def for_pass(self, inventory: Inventory) -> JL:
        """Returns a JL backend with random directions for one pass; what was verified is known to both."""
        # All batches of the pass use the same directions.
        made = replace(self, directions=_draw_seed())
        object.__setattr__(made, "_verified", self._verified)
        return made

    def per_sample(self, model: nn.Module, loss_fn: LossFn, batch: Any) -> PerSample:
        """Estimates each norm by JL, from one derivative of all losses along each random direction."""
        model_checks.refuse_batch_statistics(model)
        parameters = trainable_parameters(model)
        if not batch_size(batch):
            return make_empty(parameters, self.estimate)
        # Every forward pass uses the same seed, so that all drop the same; the directions have a generator of their
        # own.
        theta = {f"model.{name}": p.detach() for name, p in parameters.items()}
        seed = _draw_seed()  # of the forward passes, which must all drop the same
        directions = torch.Generator().manual_seed(_draw_seed() if self.directions is None else self.directions)
        wrapped, b, silent = FunctionalLoss(model, loss_fn), batch_size(batch), _padding_rows(model, parameters)

        def losses(values: dict[str, Tensor]) -> Tensor:
            """Returns the losses at these parameters."""
            return require_loss_per_sample(functional_call(wrapped, values, (batch,)), b)

        def differentiate_along(direction: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
            """Returns the losses and their derivative along a random direction of JL, in which rows of padding stay
            where they are.
            """
            # Rows of padding get no gradient, so they must not move along the direction either.
            tangent = {name: direction[name].to(p.dtype) for name, p in theta.items()}
            for name, row in silent:
                tangent[name] = tangent[name].index_fill(0, torch.tensor(row, device=tangent[name].device), 0)
            # Forward-mode differentiation gives ⟨g_i, v⟩ of all samples from one pass.
            try:
                with Seeded(seed), warnings.catch_warnings():  # torch's own, about how it loads its formulas
                    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
                    found: tuple[Tensor, Tensor] = jvp(losses, (theta,), (tangent,))  # type: ignore[assignment]
            except (RuntimeError, NotImplementedError) as error:
                with Seeded(seed), torch.no_grad():
                    losses_of(loss_fn, model, batch)  # fails too if forward mode is not to blame
                raise Refusal(
                    f"this model has no forward-mode derivative ({error}).\n"
                    "JL estimates norms from such derivatives.\n"
                    "Use the default backend."
                ) from error
            return found

        # Sum the squares of the derivatives along random directions; the first is compared with the backward pass.
        dtype = accumulation_dtype(next(iter(theta.values())).dtype)
        squared, value = torch.zeros(b, dtype=torch.float64), torch.zeros(b)
        for j in range(self.projections):
            direction = {
                name: torch.randn(p.shape, generator=directions, dtype=dtype).to(p.device) for name, p in theta.items()
            }
            value, slope = differentiate_along(direction)
            squared = squared.to(slope.device) + slope.double().square()
            if not j:
                self._verify_once(
                    _Estimated(value, NO_NORMS, differentiate_along, model, loss_fn, batch, seed), direction, slope
                )
        norms = Norms((squared / self.projections).to(dtype)[:, None], WHOLE_GRADIENT, self.estimate)
        return _Estimated(value.detach(), norms, differentiate_along, model, loss_fn, batch, seed)

    def _verify_once(self, grads: _Estimated, direction: Mapping[str, Tensor], slope: Tensor) -> None:
        """Verifies the JL estimates of a model with one loss, in one mode, at its first batch; another loss or mode is
        verified anew.
        """
        model = grads._model
        way = find_loss_identity(grads._loss_fn), tuple(module.training for module in model.modules())
        if way not in self._verified.get(model, ()) and _verify_derivative(grads, direction, slope):
            self._verified.setdefault(model, set()).add(way)

    def sample_bytes(self, model: nn.Module) -> int:
        """Returns a guess from the parameters: activations only, as nothing is kept per sample."""
        return max(1 << 14, sum(p.numel() for p in trainable_parameters(model).values()) // 4)


@dataclass(frozen=True)
class _Estimated:
    """Implements `PerSample` for gradients that exist only summed."""

    losses: Tensor
    _norms: Norms
    _differentiate_along: Callable[[Mapping[str, Tensor]], tuple[Tensor, Tensor]]
    _model: nn.Module
    _loss_fn: LossFn
    _batch: Any
    _seed: int

    def norms(self) -> Norms:
        """Returns the estimates, (B, 1)."""
        return self._norms

    def dot(self, u: Mapping[str, Tensor]) -> Tensor:
        """Returns ⟨g_i, u⟩, (B, P), of gradients whose norms JL estimates, by one derivative per tensor."""
        names = [(name, p) for name, p in trainable_parameters(self._model).items()]
        columns = []
        for name, p in names:
            direction = {f"model.{other}": torch.zeros_like(q) for other, q in names}
            if name in u:
                direction[f"model.{name}"] = u[name]
            columns.append(self._differentiate_along(direction)[1].to(accumulation_dtype(p.dtype)))
        return torch.stack(columns, dim=1)

    def weighted_sum(self, weights: Tensor, into: Grads | None = None) -> Grads:
        """Returns ∇ Σ w_i ℓ_i of the records whose norms JL estimated; a sample of weight 0 whose loss is not finite is
        replaced by another on the way.
        """
        if weights.shape[1] != 1:
            raise Refusal(
                "a clipping rule with a weight per layer was given.\n"
                "JL estimates the norm of the whole gradient.\n"
                "Use a flat clipping rule."
            )
        w = weights[:, 0]
        summed = self._weighted_gradient(self._batch, w)
        # A loss of weight 0 that is not finite would spoil the sum, since 0 · nan is nan. Another record stands in for
        # it.
        if not all(bool(torch.isfinite(g).all()) for g in summed.values()):  # 0 · nan is nan
            kept = w != 0
            first = int(kept.nonzero()[0]) if bool(kept.any()) else -1
            stand_in = torch.where(kept, torch.arange(len(w), device=w.device), first)
            summed = (
                self._weighted_gradient(take_rows(self._batch, stand_in), w)
                if first >= 0
                else zero_sum(trainable_parameters(self._model))
            )
        if into is None:
            return summed
        for name, g in summed.items():
            into[name].add_(g)
        return into

    def _weighted_gradient(self, batch: Any, w: Tensor) -> Grads:
        """Returns the gradient of the weighted losses of a batch, with the random numbers of the JL estimates of its
        norms.
        """
        parameters = trainable_parameters(self._model)
        with torch.enable_grad(), Seeded(self._seed):
            losses = require_loss_per_sample(losses_of(self._loss_fn, self._model, batch), len(w))
        found = torch.autograd.grad(losses, list(parameters.values()), w.to(losses), allow_unused=True)
        return {
            name: torch.zeros_like(p, dtype=accumulation_dtype(p.dtype)).detach()
            if g is None
            else g.to_dense().to(accumulation_dtype(p.dtype))
            for (name, p), g in zip(parameters.items(), found, strict=True)
        }


def _padding_rows(model: nn.Module, parameters: Mapping[str, Tensor]) -> list[tuple[str, int]]:
    """Returns the rows of tables that have a derivative along a JL direction and no gradient: those of padding_idx."""
    names = {id(p): f"model.{name}" for name, p in parameters.items()}
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.padding_idx is not None]
    return [(names[id(m.weight)], m.padding_idx) for m in tables if id(m.weight) in names and m.padding_idx is not None]


def _verify_derivative(grads: _Estimated, direction: Mapping[str, Tensor], slope: Tensor) -> bool:
    """Compares the derivative along a JL direction, which estimates norms, with the backward pass's, which is summed.

    Returns whether the two could be compared: where a derivative is not finite nothing is known.

    Raises:
        Refusal: the two differ by more than rounding.

    """
    summed = grads.weighted_sum(torch.ones_like(slope)[:, None])
    summed_slope = sum(float((g.double() * direction[f"model.{name}"].double()).sum()) for name, g in summed.items())
    measured_slope, size = float(slope.double().sum()), float(slope.double().abs().sum())
    if size < float("inf") and abs(summed_slope - measured_slope) > _AGREE * size:
        raise Refusal(
            "the derivative of this model's losses along a direction is not the gradient its backward pass gives.\n"
            "The one is measured and the other summed, so they must be the same.\n"
            "Look for hand-written backward passes, or use the default backend."
        )
    return size < float("inf")


def _draw_seed() -> int:
    """Returns a random seed from torch's global generator."""
    return int(torch.randint(2**62, ()))
