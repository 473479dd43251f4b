"""One comparison for every test here: a backend against the loop, norms, inner products and weighted sums."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sordino.per_sample import Captured, Loop, PerformanceOptions

NORM = {torch.float32: 1e-5, torch.float64: 1e-10}  # relative
RAISED = {torch.float32: 3e-5, torch.float64: 1e-10}
"""Norms by Gram sums are raised by what their rounding may hide, 4·eps·(Σ‖a‖‖g‖)²: they may be above by this much more."""
TENSOR = {torch.float32: 1e-4, torch.float64: 1e-10}


def square(model: nn.Module, *inputs: Tensor) -> Tensor:
    """A smooth loss per sample of whatever comes out, different for every output position."""
    out = model(*inputs)
    flat = out.flatten(1)
    return (flat * torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype)).sin().sum(1)


def same(model: nn.Module, batch: Any, loss_fn: Any = square, backend: Any = None, lenient: float = 1.0) -> None:
    """Norms, dots and sums are the loop's."""
    backend = backend or Captured()
    dtype = next(model.parameters()).dtype
    for p in model.parameters():
        p.grad = None
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = {id(m): set(m.__dict__) for m in model.modules()}
    oracle, ours = Loop().per_sample(model, loss_fn, batch), backend.per_sample(model, loss_fn, batch)
    assert torch.allclose(ours.losses, oracle.losses, rtol=1e-4 if dtype == torch.float32 else 1e-10, atol=1e-6)
    true, found = oracle.norms(), ours.norms()
    assert true.names == found.names
    assert found.squared.dtype == torch.promote_types(dtype, torch.float32)
    # Relative to a tensor's own norm, with a floor at rounding of the whole gradient for tensors whose gradient is
    # zero.
    floor = 1e-2 * true.total()[:, None] + 1e-12
    above = (found.squared.sqrt() - true.squared.sqrt()) / (true.squared.sqrt() + floor)
    for worst, allowed in ((-above, NORM[dtype]), (above, NORM[dtype] + RAISED[dtype])):
        assert worst.max() <= lenient * allowed, dict(zip(true.names, worst.max(0).values.tolist(), strict=True))
    total = (found.total() - true.total()) / true.total().clamp(min=1e-30)
    assert -lenient * NORM[dtype] <= total.min() <= total.max() <= lenient * (NORM[dtype] + RAISED[dtype]), total
    b = len(oracle.losses)
    generator = torch.Generator().manual_seed(b)
    u = {
        name: torch.randn(p.shape, generator=generator, dtype=dtype) for name, p in before.items() if name in true.names
    }
    scale = true.squared.sqrt() * torch.stack([t.norm() for t in u.values()]) + floor
    assert ((ours.dot(u) - oracle.dot(u)).abs() / scale).max() <= lenient * TENSOR[dtype]
    for shape in ((b, 1), (b, len(true.names))):
        weights = torch.rand(shape, generator=generator, dtype=dtype)
        ours_sum, loop_sum = ours.weighted_sum(weights), oracle.weighted_sum(weights)
        assert list(ours_sum) == list(loop_sum)
        size = torch.sqrt(sum(t.square().sum() for t in loop_sum.values()))
        for name, t in loop_sum.items():
            assert ours_sum[name].shape == t.shape
            error = (ours_sum[name] - t).norm() / (t.norm() + 1e-2 * size + 1e-12)
            assert error <= lenient * TENSOR[dtype], (name, float(error))
    for name, p in model.named_parameters():
        assert p.grad is None
        assert torch.equal(p.detach(), before[name])
    assert {id(m): set(m.__dict__) for m in model.modules()} == state


__all__ = ["PerformanceOptions", "same", "square"]
