"""A probe of the loss before the first draw: one record is changed, and the losses of the others are watched.

Losses may be random. Two passes over batches of one shape are compared with the same random numbers; a batch and its
single records draw different amounts, so they are compared with steady draws (`random/steady.py`), or, where numpy or
Python were asked, by the distributions of their losses over many passes.

Privacy: the probe runs on a fixed few records before the first draw, releases nothing, and its messages quote shapes and
names only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sordino.gradients.batch import losses as losses_of
from sordino.gradients.batch import mapped, size, take
from sordino.gradients.check import loss_vector
from sordino.gradients.inventory import modules_of
from sordino.gradients.protocol import LossFn
from sordino.gradients.spectral import left_unmoved, vectors_of
from sordino.gradients.written import made_up, refuse_changed, refuse_written
from sordino.random.global_state import GlobalState, left_as_they_were, seed_all
from sordino.random.steady import Steady
from sordino.refusal import Refusal

PROBE = 3
"""Records the probe uses: one to change, two to watch."""
_STEADY = (0, 1)
"""Seeds of the steady draws, which fall otherwise: their coins land on other sides."""
_DRAWS = 160
"""Passes whose losses make a distribution."""
_FAR = 0.3
"""Distance between two such distributions from which on they are two: by chance once in 10⁶ (Kolmogorov and Smirnov:
2·exp(−160·0.3²)). Losses that are divided by 3 records instead of 1 are farther apart, unless they spread over decades."""
_NUDGES, _NOISE = 4, 8.0
"""Times the inputs are moved by a rounding error, and how far beyond what that does two losses may be apart."""

_COUPLED = (
    "changing one record changed the losses of others: the samples of a batch are coupled; need each loss to "
    "depend on its own record alone; look for a normalisation, a ranking or a mean over the batch"
)
_COUNTED = (
    "a record's loss depends on which others are in the batch, or on how many: the samples are coupled; divide "
    "by nothing in loss_fn that is counted over the batch"
)


def probe(model: nn.Module, loss_fn: LossFn, batch: Any) -> None:
    """Refuse a loss that is not one per sample or couples samples, and a forward pass that writes to buffers.

    The samples are watched in the model's own mode and, because masks of dropout hide some couplings, in eval mode too.
    """
    samples = size(batch)  # which refuses what is no batch
    asked = _Asked(model, loss_fn, batch)
    refuse_written(model, asked.run, made_up(batch))  # before a private record has been seen
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    loss_vector(asked.run(batch).losses, samples)
    refuse_changed(model, before)
    asked.refuse_coupled(changed=samples - 1)
    with evaluation_mode(model):
        asked.refuse_coupled(changed=0)
        asked.refuse_counted()


@dataclass(frozen=True)
class _Ran:
    """One pass: its losses, and where the generators stood after it."""

    losses: Tensor
    drawn: bool  # something was drawn at random
    torch_only: bool  # neither numpy nor Python was asked
    ended: GlobalState


@dataclass(frozen=True)
class _Asked:
    """The questions on one batch."""

    model: nn.Module
    loss_fn: LossFn
    batch: Any

    def refuse_coupled(self, changed: int) -> None:
        """Change one record, with the same random numbers."""
        first = self.run(self.batch)
        if not _same(first.losses, self.run(self.batch).losses):
            raise Refusal(
                "the same records with the same random numbers gave other losses the second time: the model or the loss "
                "keeps something from one batch to the next, or draws from a generator of its own; keep nothing of the "
                "records between batches, and draw from torch's, numpy's or Python's global generators, which the run seeds"
            )
        others = torch.arange(len(first.losses)) != changed
        for factor in (-7.0, 0.01):
            other = _changed(self.batch, changed, factor)
            now = self.run(other)
            if now.ended.same(first.ended):
                if not self._same_but_rounding(first.losses, now.losses, others):
                    raise Refusal(_COUPLED)
                continue
            for seed in _STEADY:  # the records decide how much is drawn
                one, two = self._steady(self.batch, seed), self._steady(other, seed)
                if one is not None and two is not None and not _same(one[others], two[others]):
                    raise Refusal(_COUPLED)

    def refuse_counted(self) -> None:
        """Each record by itself: has it the loss that it has among others?"""
        first = self.run(self.batch)
        singles = [take(self.batch, slice(i, i + 1)) for i in range(len(first.losses))]
        if not first.drawn:
            alone = torch.cat([self.run(single).losses for single in singles])
            if not self._same_but_rounding(first.losses, alone):
                raise Refusal(_COUNTED)
            return
        for seed in _STEADY:
            together, apart = self._steady(self.batch, seed), [self._steady(single, seed) for single in singles]
            known = [losses for losses in apart if losses is not None]
            if together is None or len(known) < len(apart):
                self._refuse_other_distribution(singles[0])
                return
            if not self._same_but_rounding(together, torch.cat(known)):
                raise Refusal(_COUNTED)

    def _refuse_other_distribution(self, single: Any) -> None:
        together = torch.stack([self.run(self.batch, seed).losses[0] for seed in range(_DRAWS)])
        alone = torch.stack([self.run(single, _DRAWS + seed).losses[0] for seed in range(_DRAWS)])
        if _distance(together, alone) > _FAR:
            raise Refusal(_COUNTED)

    def _same_but_rounding(self, one: Tensor, other: Tensor, watched: Tensor | None = None) -> bool:
        """The same, or as different as the losses are from themselves when their inputs move by a rounding error.

        Large terms that cancel leave losses of which little is known; what is left of them differs with the shape of the
        batch, and with the last bit of the input.
        """
        if one.shape != other.shape:
            return False
        a, b = (one, other) if watched is None else (one[watched], other[watched])
        if _same(a, b):
            return True
        noise = torch.zeros_like(one)
        for seed in range(_NUDGES):
            noise = torch.maximum(
                noise, (self.run(_nudged(self.batch, seed)).losses - self.run(self.batch).losses).abs()
            )
        noise = noise if watched is None else noise[watched]
        return bool(((a - b).abs() <= _NOISE * noise + _tolerance(a) * (1 + a.abs())).all())

    def _steady(self, batch: Any, seed: int) -> Tensor | None:
        """The losses with steady draws; None where not everything drawn could be made so."""
        with Steady(seed) as steady:
            ran = self.run(batch)
        return None if steady.unknown or not ran.torch_only else ran.losses

    def run(self, batch: Any, seed: int = 0) -> _Ran:
        """One pass by a seed; the generators and the vectors of spectral norms are left as they were."""
        with left_as_they_were(), left_unmoved(vectors_of(modules_of(self.model))), torch.enable_grad():
            seed_all(seed)
            began = GlobalState.now()
            losses = losses_of(self.loss_fn, self.model, batch)
            ended = GlobalState.now()
        losses = losses.detach() if isinstance(losses, Tensor) else losses
        return _Ran(losses, not began.same(ended), began.same_outside_torch(ended), ended)


def _distance(one: Tensor, other: Tensor) -> float:
    """The largest difference between the distribution functions of two samples, beyond what rounding moves."""
    a, b = one.double().sort().values, other.double().sort().values
    places = torch.cat([a, b])
    slack = _tolerance(one) * (1 + places.abs())

    def ahead(low: Tensor, high: Tensor) -> float:
        below = torch.searchsorted(low, places, right=True) / len(low)
        return float((below - torch.searchsorted(high, places + slack, right=True) / len(high)).max())

    return max(ahead(a, b), ahead(b, a))


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """All modules in evaluation mode for a while; each is put back into its own."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return torch.allclose(one, other, rtol=_tolerance(one), atol=_tolerance(one), equal_nan=True)


def _tolerance(losses: Tensor) -> float:
    return max(1e-4, 16 * torch.finfo(losses.dtype).eps)  # rounding differs a little between batch shapes


def _nudged(batch: Any, seed: int) -> Any:
    """The batch with its numbers moved by about a rounding error."""
    generator = torch.Generator().manual_seed(seed)

    def nudge(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        signs = torch.randint(0, 2, leaf.shape, generator=generator).to(leaf) * 2 - 1
        return leaf * (1 + 2 * torch.finfo(leaf.dtype).eps * signs)

    return mapped(nudge, batch)


def _changed(batch: Any, i: int, factor: float) -> Any:
    """The batch with record i made very different."""

    def change(leaf: Tensor) -> Tensor:
        result = leaf.clone()
        if leaf.dtype == torch.bool:
            result[i] = ~leaf[i]
        elif leaf.is_floating_point():
            result[i] = 3 + factor * leaf[i]
        else:
            result[i] = leaf[i - 1]  # another record's own value is always a legal label or token
        return result

    return mapped(change, batch)
