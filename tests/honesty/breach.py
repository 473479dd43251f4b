"""By how much one record moves a script's sums, over the bound: computed here, without the library under test.

Two worlds run the script's own dataset, collate, model and loss over the same lots at the same weights, with the same
random numbers; in one of them a record is not there (or is another). Every record's gradient is autograd's, shortened to
the bound. What the worlds' sums differ by is compared with the bound, or with twice it where a record is replaced. Above
1 the claim that would be printed is false.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from tests.honesty.script import Case, Script, nothing

LOTS = 4
TRIED = 6


def breach(case: Case, seed: int = 0) -> float:
    """The largest move over its bound, for a few records of the script's own data."""
    first = _build(case, seed)
    n = len(first.dataset)
    order = np.random.default_rng(seed)
    lots = [order.permutation(n)[: first.together].tolist() for _ in range(first.warmup + LOTS)]
    unlike = set(first.suspects[1:])  # two of them would hide each other
    tried = [i for i in dict.fromkeys([*first.suspects, *lots[-1]]) if i not in unlike][:TRIED]
    other = int(next(i for i in range(n - 1, -1, -1) if i not in tried))
    for k, lot in enumerate(lots):  # a record must be there to be missed
        if first.late and k < first.warmup:
            lot[:] = [i for i in lot if i not in tried]
        else:
            lot[: len(tried)] = tried
        lot[:] = [i for i in dict.fromkeys(lot) if i != other and i not in unlike]
    reach = first.bound * (2 if first.exchanged else 1)
    here = _sums(_build(case, seed), lots)
    worst = 0.0
    for gone in tried:
        if first.exchanged:
            there = [[other if i == gone else i for i in lot] for lot in lots]
        else:
            there = [[i for i in lot if i != gone] for lot in lots]
        for one, two in zip(here, _sums(_build(case, seed), there), strict=True):
            worst = max(worst, float((one - two).norm()) / reach)
    return worst


def _build(case: Case, seed: int) -> Script:
    torch.manual_seed(seed)
    return case.build(seed)


def _sums(script: Script, lots: list[list[int]]) -> list[Tensor]:
    """The clipped sums of the lots after the warm-up, flat, at weights that stay as they are."""
    if script.begun is not nothing:
        script.begun(_Still(script))  # type: ignore[arg-type]
    sums = []
    for k, lot in enumerate(lots):
        random.seed(k)
        np.random.seed(k)
        torch.manual_seed(k)
        batch = _loaded(script, lot)
        if k < script.warmup:
            with torch.no_grad():
                script.loss(script.model, *batch)
        else:
            sums.append(_attributed(script, batch) if script.attributed else _clipped(script, batch))
    return sums


class _Still:
    """A training that goes nowhere: for what a script does to its model before the first lot."""

    def __init__(self, script: Script) -> None:
        self.script, self.model, self.private, self.optimizer = script, script.model, None, None


def _loaded(script: Script, lot: list[int]) -> tuple[Any, ...]:
    many = getattr(script.dataset, "__getitems__", None)
    rows = many(lot) if many is not None else [script.dataset[i] for i in lot]
    batch = (script.collate or default_collate)(rows)
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def _clipped(script: Script, batch: tuple[Any, ...]) -> Tensor:
    parameters = [p for p in script.model.parameters() if p.requires_grad]
    losses = script.loss(script.model, *batch)
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    for one in losses:
        if one.requires_grad:
            found = torch.autograd.grad(one, parameters, retain_graph=True, allow_unused=True)
            total += _shortened(_flat(found, parameters), script.bound)
    return total


def _flat(found: tuple[Tensor | None, ...], like: list[Tensor]) -> Tensor:
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten().double() for g, p in zip(found, like, strict=True)]
    )


def _shortened(g: Tensor, bound: float) -> Tensor:
    norm = float(g.norm())
    if not np.isfinite(norm):
        return torch.zeros_like(g)
    return g if norm <= bound else g * (bound / norm)


def _attributed(script: Script, batch: tuple[Any, ...]) -> Tensor:
    """Every record has weights of its own, so one backward pass of the sum leaves each record's part in its row."""
    layers = [m for m in script.model.modules() if isinstance(m, nn.Linear) and m.weight.requires_grad]
    with _own_weights(layers, len(batch[0])) as own:
        found = torch.autograd.grad(script.loss(script.model, *batch).sum(), own, allow_unused=True)
    rows = torch.cat([g.flatten(1).double() for g in found if g is not None], dim=1)
    return torch.stack([_shortened(row, script.bound) for row in rows]).sum(0)


@contextmanager
def _own_weights(layers: list[nn.Linear], b: int) -> Iterator[list[Tensor]]:
    own: list[Tensor] = []

    def forward(weight: Tensor, bias: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.einsum("bi,boi->bo", x, weight) + bias

    try:
        for layer in layers:
            weight = layer.weight.detach().expand(b, -1, -1).clone().requires_grad_()
            bias = layer.bias.detach().expand(b, -1).clone().requires_grad_()
            layer.forward = forward(weight, bias)  # type: ignore[method-assign]
            own += [weight, bias]
        yield own
    finally:
        for layer in layers:
            del layer.forward
