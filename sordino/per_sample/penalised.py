"""Per-sample gradients with an L2 penalty inside the clip, g_i + λθ, without writing them out.

    ‖g_i + λθ‖² = ‖g_i‖² + 2λ⟨g_i, θ⟩ + λ²‖θ‖²        per parameter tensor
    Σ w_i (g_i + λθ) = Σ w_i g_i + λ (Σ w_i) θ

⟨g_i, θ⟩ costs next to nothing: a layer that is linear in its parameters has ⟨∂ℓ_i/∂θ, θ⟩ = ⟨δ_i, y_i⟩, its output times
the gradient there (Euler), and both are at hand in `Captured`. Other layers take one product with θ.

Privacy: θ is public at the step, so a clipping rule's bound on ‖g_i + λθ‖ bounds what a record contributes, as it does
without λ. Where g_i ≈ −λθ the three terms cancel and rounding could make the norm read low, and a low norm breaks the
bound: the terms are added in float64 and the square is raised by κu(‖g_i‖² + λ²‖θ‖²), u the precision they were
computed in, and to what terms that cancel in the sum leave (`raised`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sordino.per_sample.captured_backend import Captured
from sordino.per_sample.engine.batch_result import Result
from sordino.per_sample.engine.two_pass import TwoPassResult
from sordino.per_sample.formulas.gradient_part import raise_cancelled_norms
from sordino.per_sample.protocol import Backend, Norms, PerSample, estimate_kind
from sordino.per_sample.row_arithmetic import row_squared_norms
from sordino.refusal import Refusal
from sordino.release.sensitivity import Exact
from sordino.release.vectors import Grads

KAPPA = 16.0
"""How many roundings the norms and inner products of one sample may be off by, in units of ‖g‖² + λ²‖θ‖²."""


def prepare_backend(backend: Backend) -> Backend:
    """Returns the backend for penalised gradients g_i + λθ, told to find ⟨g_i, θ⟩ on its way if it can."""
    if estimate_kind(backend) != Exact():
        raise Refusal(
            f"backend={backend!r} was given beside a penalty inside the clip.\n"
            "The penalty needs exact norms.\n"
            "Use the default backend."
        )
    return replace(backend, inner=True) if isinstance(backend, Captured) else backend


@dataclass(frozen=True)
class Shifted:
    """Implements `PerSample` for g_i + λθ, λ by parameter name; a name without λ is left as it is."""

    grads: PerSample
    parameters: Mapping[str, Tensor]  # θ
    factors: Mapping[str, float]  # λ
    _versions: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        # torch counts in-place changes: a step between norm and sum would add another θ than the one that was measured.
        object.__setattr__(self, "_versions", tuple(p._version for p in self.parameters.values()))

    @property
    def losses(self) -> Tensor:
        """The losses of the samples; the penalty is the same for all."""
        return self.grads.losses

    def norms(self) -> Norms:
        """Returns the squared norms of the penalised gradients g_i + λθ, never read low, in float64."""
        # ‖g + λθ‖² = ‖g‖² + 2λ⟨g, θ⟩ + λ²‖θ‖², for every parameter.
        plain = self.grads.norms()
        squared, inner = plain.squared.double(), self._products_with_parameters().double()  # (B, P)
        factor = torch.tensor([self.factors.get(name, 0.0) for name in plain.names], dtype=torch.float64)
        parameter_squares = [
            row_squared_norms(p.detach()[None])[0].double() for p in self._unchanged_parameters().values()
        ]
        shift = (torch.stack(parameter_squares) if parameter_squares else factor.new_zeros(0)) * factor.to(
            squared.device
        ).square()  # (P,) λ²‖θ‖²
        # Add the three terms in float64, and raise the result by what rounding may hide where they cancel.
        moved = squared + 2 * factor.to(squared.device) * inner + shift
        slack = KAPPA * torch.finfo(plain.squared.dtype).eps
        both = raise_cancelled_norms(
            (moved + slack * (squared + shift)).clamp(min=0), (squared.sqrt() + shift.sqrt()).square_()
        )
        # A tensor without a penalty keeps its plain norm, in which nothing was added that could cancel.
        return Norms(torch.where(shift > 0, both, squared), plain.names, plain.estimate)

    def dot(self, u: Mapping[str, Tensor]) -> Tensor:
        """Returns ⟨g_i + λθ, u⟩ of the penalised gradients."""
        found = self.grads.dot(u)
        for column, (name, p) in enumerate(self._unchanged_parameters().items()):
            if name in u and name in self.factors:
                found[:, column] += self.factors[name] * (p.detach().double() * u[name].double()).sum()
        return found

    def weighted_sum(self, weights: Tensor, into: Grads | None = None) -> Grads:
        """Returns Σ w_i g_i + λ (Σ w_i) θ, the weighted sum of penalised gradients."""
        total = self.grads.weighted_sum(weights, into=into)
        # In float64: an error of Σ w_i would move all coordinates of λ (Σ w_i) θ together.
        summed = weights.sum(dim=0, dtype=torch.float64)  # (1,) or (P,)
        for column, (name, p) in enumerate(self._unchanged_parameters().items()):
            if name in self.factors:
                w = float(summed[column if len(summed) > 1 else 0])
                total[name].add_(p.detach().to(total[name].dtype), alpha=w * self.factors[name])
        return total

    def _products_with_parameters(self) -> Tensor:
        """Returns ⟨g_i, θ⟩, (B, P), of which the norms of penalised gradients are made."""
        found = self.grads.inner if isinstance(self.grads, Result | TwoPassResult) else None
        if found is not None:
            return found
        return self.grads.dot({name: p.detach() for name, p in self.parameters.items() if name in self.factors})

    def _unchanged_parameters(self) -> Mapping[str, Tensor]:
        """Returns the parameters θ of the penalty, which must not have changed since the penalised gradients were
        computed.
        """
        now = tuple(p._version for p in self.parameters.values())
        assert now == self._versions, "the parameters changed between the gradients and their use"
        return self.parameters
