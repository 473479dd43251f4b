"""Probes the loss before the first draw: changes one record and watches the losses of the others.

Losses may be random. Two passes over batches of one shape are compared with the same random numbers; a batch and its
single records draw different amounts, so they are compared with steady draws (`rng/shape_independent.py`), or, where
numpy or Python were asked, by the distributions of their losses over many passes.

Altered records may be ones that the loss cannot take: a target outside [0, 1], a count that is negative, an id that
stands for nothing. Then a record stands in for another instead, which the loss can take. An error that only the probe's
own batches cause is reported as such, without the words of the error, which may quote a record.

Privacy: the probe runs on a fixed few records before the first draw, releases nothing, and its messages quote shapes
and names only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sordino.per_sample.batch_structure import batch_size, list_tensors, map_tensors, take_rows
from sordino.per_sample.batch_structure import call_loss as losses_of
from sordino.per_sample.forward_writes import make_up_batch, refuse_changed, refuse_written
from sordino.per_sample.model_checks import require_loss_vector
from sordino.per_sample.model_inventory import find_spectral_vectors, keep_vectors, list_modules
from sordino.per_sample.protocol import LossFn
from sordino.per_sample.user_state import UserState
from sordino.refusal import Refusal
from sordino.rng.global_generators import NextDraws, draw_next, preserve_generators, seed_all
from sordino.rng.shape_independent import SteadyDraws

PROBE = 3
"""Number of records the probe uses: one to change, two to watch."""
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
    "changing one record changed the losses of others: the samples of a batch are coupled\n"
    "  Why       Clipping bounds what one record contributes only if its loss depends on that record alone.\n"
    "  Look for  a normalisation, a ranking or a mean over the batch, in the model and in the loss\n"
    "  Fix       Make each loss depend on its own record alone."
)
_COUNTED = (
    "a record's loss depends on which others are in the batch, or on how many: the samples are coupled\n"
    "  Why       Clipping bounds what one record contributes only if its loss depends on that record alone.\n"
    "  Look for  a mean or a divisor that is counted over the batch, in the model and in the loss\n"
    "  Fix       Divide by nothing that is counted over the batch."
)
_NO_GRADIENT = (
    "loss_fn returned losses without a gradient\n"
    "  Why       No parameter can learn from them: every step would be noise alone, and would be charged.\n"
    "  Look for  .detach(), .item(), .numpy(), torch.no_grad(), argmax and comparisons, in the loss and in the model\n"
    "  Fix       Compute the losses from the model's outputs by differentiable operations."
)
_KEPT = (
    "the same records with the same random numbers gave other losses the second time\n"
    "  Why       What is kept of one batch reaches the losses of the next, where no clipping bounds it.\n"
    "  Look for  a queue, a running statistic or a cache in the model or the loss; a random generator of its own\n"
    "  Fix       Keep nothing of the records between batches, and draw from torch's, numpy's or Python's global\n"
    "            generators, which the run seeds."
)
COUNTER = (
    "the model or the loss counts its own calls: the same records gave other losses at the next call\n"
    "  Why       How often a loss is called depends on how many records were drawn, so one record more would move\n"
    "            the schedule of all later losses. The checks call it as well.\n"
    "  Look for  a counter inside the loss or the model, such as self.step += 1 for annealing or warm-up\n"
    "  Fix       Set the schedule in the loop, once per lot, and only read it in the loss:\n"
    "                for step, lot in enumerate(private.draws(...)):\n"
    "                    loss.weight = min(1.0, step / 1000)\n"
    "                    private.backward(lot)"
)


def _cannot_run(error: Exception) -> str:
    """Returns what the loss probe says of an error that a batch of one record causes.

    Its words may quote a record, so they are left out.
    """
    return (
        f"loss_fn raised {type(error).__name__} for a batch of one record, which this check made of the first records\n"
        "  Why       Lots are drawn at random, so a batch may hold one record only.\n"
        "  Look for  squeeze() without an axis, and code that needs at least two records\n"
        "  Fix       Make loss_fn return a loss of shape (1,) for one record; try it with the first record of the dataset."
    )


def probe_loss(model: nn.Module, loss_fn: LossFn, batch: Any) -> None:
    """Probes a loss and refuses one that is not one per sample or couples samples, and a forward pass that writes to
    buffers.

    The samples are watched in the model's own mode and, because masks of dropout hide some couplings, in eval mode too.
    """
    samples = batch_size(batch)  # which refuses what is no batch
    # What the user's objects hold is kept and put back, so that the run does not begin where the probe ended.
    state = UserState([model, loss_fn])
    asked = _LossProbe(model, loss_fn, batch, state)
    # Every pass seeds the global generators; they are put back once, after the last of them.
    with preserve_generators():
        try:
            # Look for writes on made-up input, before a private record has been seen; then check the losses' shape.
            refuse_written(model, asked.run_as_it_is, make_up_batch(batch))
            state.put_back()
            before = {name: buffer.clone() for name, buffer in model.named_buffers()}
            first = asked.run_as_it_is(batch)
            require_loss_vector(first.losses, samples)
            if not first.has_graph and any(p.requires_grad for p in model.parameters()):
                raise Refusal(_NO_GRADIENT)
            refuse_changed(model, before)
            # Change one record and watch the others, in both modes; then compare single records with the batch.
            asked.refuse_coupled(first, changed=samples - 1)
            with evaluation_mode(model):
                first = asked.run(batch)
                asked.refuse_coupled(first, changed=0)
                asked.refuse_counted(first)
        finally:
            state.put_back()


@dataclass(frozen=True)
class _PassResult:
    """One pass: its losses, and what the global generators would have drawn next."""

    losses: Tensor
    has_graph: bool  # the losses have a gradient
    drawn: bool  # something was drawn at random
    torch_only: bool  # neither numpy nor Python was asked
    ended: NextDraws


@dataclass(frozen=True)
class _LossProbe:
    """Asks the questions on one batch."""

    model: nn.Module
    loss_fn: LossFn
    batch: Any
    state: UserState

    def refuse_coupled(self, first: _PassResult, changed: int) -> None:
        """Refuses a probed loss that changes for others when one record does, or that is not the same the second time.

        Args:
            first: the pass over the batch as it is, which was made last.
            changed: the place of the record that is changed.

        """
        # The same records must give the same losses again; if not, something is kept or counted between passes.
        if not _is_same(first.losses, self.run_as_it_is(self.batch).losses):
            raise Refusal(COUNTER if self._is_counted(changed) else _KEPT)
        others = torch.arange(len(first.losses)) != changed
        # Change one record in several ways; where the records decide how much is drawn, compare with steady draws.
        for other in self._altered_batches(changed):
            try:
                now = self.run(other)
            except Exception:  # the loss does not take such a record
                continue
            if now.ended == first.ended:
                if not self._is_same_but_rounding(first.losses, now.losses, others):
                    raise Refusal(_COUPLED)
                continue
            for seed in _STEADY:  # the records decide how much is drawn
                one, two = self._run_with_steady_draws(self.batch, seed), self._run_with_steady_draws(other, seed)
                if one is not None and two is not None and not _is_same(one[others], two[others]):
                    raise Refusal(_COUPLED)

    def _altered_batches(self, changed: int) -> list[Any]:
        """Returns the probe's batches in which one record is another: scaled, mirrored between the values of the batch,
        or exchanged.

        On a GPU an impossible value, such as a probability above 1, ends the process, so nothing is scaled there.
        """
        scaled = [_change_record(self.batch, changed, partial(_scale_row, factor)) for factor in (-7.0, 0.01)]
        mirrored = _change_record(self.batch, changed, lambda row, leaf: leaf.amin() + leaf.amax() - row)
        # Another record of the batch is one that the loss can take, where made-up numbers may be refused.
        exchanged = map_tensors(lambda leaf: _replace_row(leaf, changed, leaf[changed - 1]), self.batch)
        on_cpu = all(leaf.is_cpu for leaf in list_tensors(self.batch))
        return [*scaled, mirrored, exchanged] if on_cpu else [mirrored, exchanged]

    def _is_counted(self, changed: int) -> bool:
        """Returns whether what changed of the probed loss from pass to pass is the same whatever the records are, as a
        counter is.
        """
        self.state.put_generators_back()
        first = self.run(self.batch).losses
        self.state.put_generators_back()
        if _is_same(first, self.run_as_it_is(self.batch).losses):
            return False  # a generator of its own
        self.run(self.batch)
        after_itself = self.run_as_it_is(self.batch).losses
        self.run(map_tensors(lambda leaf: _replace_row(leaf, changed, leaf[changed - 1]), self.batch))
        after_other = self.run_as_it_is(self.batch).losses
        return _is_same(first, self.run(self.batch).losses) and _is_same(after_itself, after_other)

    def refuse_counted(self, first: _PassResult) -> None:
        """Refuses a probed loss that differs for a record alone and the same record among others.

        Args:
            first: the pass over the batch.

        """
        singles = [take_rows(self.batch, slice(i, i + 1)) for i in range(len(first.losses))]
        try:
            first_alone = self.run(singles[0])
        except Exception as error:
            raise Refusal(_cannot_run(error)) from None
        # Without random draws the losses are compared directly.
        if not first.drawn:
            alone = torch.cat([first_alone.losses, *(self.run(single).losses for single in singles[1:])])
            if not self._is_same_but_rounding(first.losses, alone):
                raise Refusal(_COUNTED)
            return
        # With draws they are compared under steady ones, or else by their distributions over many passes.
        for seed in _STEADY:
            together, apart = (
                self._run_with_steady_draws(self.batch, seed),
                [self._run_with_steady_draws(single, seed) for single in singles],
            )
            known = [losses for losses in apart if losses is not None]
            if together is None or len(known) < len(apart):
                self._refuse_other_distribution(singles[0])
                return
            if not self._is_same_but_rounding(together, torch.cat(known)):
                raise Refusal(_COUNTED)

    def _refuse_other_distribution(self, single: Any) -> None:
        """Refuses a probed loss whose distribution for a record alone is not that among others."""
        together = torch.stack([self.run(self.batch, seed).losses[0] for seed in range(_DRAWS)])
        alone = torch.stack([self.run(single, _DRAWS + seed).losses[0] for seed in range(_DRAWS)])
        if _distribution_distance(together, alone) > _FAR:
            raise Refusal(_COUNTED)

    def _is_same_but_rounding(self, one: Tensor, other: Tensor, watched: Tensor | None = None) -> bool:
        """Returns whether probed losses are the same, or differ no more than when their inputs move by a rounding
        error.

        Large terms that cancel leave losses of which little is known; what is left of them differs with the shape of
        the batch, and with the last bit of the input.
        """
        if one.shape != other.shape:
            return False
        # Equal losses need no further pass.
        a, b = (one, other) if watched is None else (one[watched], other[watched])
        if _is_same(a, b):
            return True
        # How far do losses move if the inputs move by a rounding error? That is the scale below which a difference
        # means nothing.
        noise = torch.zeros_like(one)
        for seed in range(_NUDGES):
            noise = torch.maximum(
                noise, (self.run(_nudge_batch(self.batch, seed)).losses - self.run(self.batch).losses).abs()
            )
        noise = noise if watched is None else noise[watched]
        return bool(((a - b).abs() <= _NOISE * noise + _tolerance(a) * (1 + a.abs())).all())

    def _run_with_steady_draws(self, batch: Any, seed: int) -> Tensor | None:
        """Returns the probed losses with steady draws; None where not everything drawn could be made so."""
        steady = SteadyDraws(seed)
        self.state.put_back()
        ran = self.run_as_it_is(batch, within=steady)
        return None if steady.has_unknown_draws or not ran.torch_only else ran.losses

    def run(self, batch: Any, seed: int = 0) -> _PassResult:
        """Makes one pass by a seed, from the state in which the user's objects were found."""
        self.state.put_back()
        return self.run_as_it_is(batch, seed)

    def run_as_it_is(self, batch: Any, seed: int = 0, within: SteadyDraws | None = None) -> _PassResult:
        """Makes one pass of the loss probe by a seed; the vectors of spectral norms are left as they were.

        Args:
            batch: the records.
            seed: of the global generators, which `probe_loss` puts back.
            within: steady draws that the pass meets instead of those of torch's generator.

        """
        seed_all(seed)
        untouched = draw_next()  # what comes next where the pass draws nothing
        with (
            keep_vectors(find_spectral_vectors(list_modules(self.model))),
            torch.enable_grad(),
            within or nullcontext(),
        ):
            # Under one seed passes of one shape draw the same numbers, so what differs is due to the records.
            seed_all(seed)
            losses = losses_of(self.loss_fn, self.model, batch)
        ended = draw_next()
        has_graph = isinstance(losses, Tensor) and losses.requires_grad
        losses = losses.detach() if isinstance(losses, Tensor) else losses
        return _PassResult(losses, has_graph, ended != untouched, ended[1:] == untouched[1:], ended)


def _distribution_distance(one: Tensor, other: Tensor) -> float:
    """Returns the largest difference between the distribution functions of two samples of a loss under the probe,
    beyond what rounding moves.
    """
    a, b = one.double().sort().values, other.double().sort().values
    # Distribution functions of samples jump at the samples only, so their largest difference is found there.
    places = torch.cat([a, b])
    slack = _tolerance(one) * (1 + places.abs())

    def ahead(low: Tensor, high: Tensor) -> float:
        """Returns how far the first distribution function is above the second, at most."""
        below = torch.searchsorted(low, places, right=True) / len(low)
        return float((below - torch.searchsorted(high, places + slack, right=True) / len(high)).max())

    return max(ahead(a, b), ahead(b, a))


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Puts all modules in evaluation mode for a while, as the loss probe does, and each back into its own mode after
    it.
    """
    # Module by module: model.train() afterwards would also wake layers that the user had put in evaluation mode.
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Returns whether the losses of two passes of the loss probe agree up to rounding."""
    if one.shape != other.shape:
        return False
    return torch.allclose(one, other, rtol=_tolerance(one), atol=_tolerance(one), equal_nan=True)


def _tolerance(losses: Tensor) -> float:
    return max(1e-4, 16 * torch.finfo(losses.dtype).eps)  # rounding differs a little between batch shapes


def _nudge_batch(batch: Any, seed: int) -> Any:
    """Returns the loss probe's batch with its numbers moved by about a rounding error."""
    generator = torch.Generator().manual_seed(seed)

    def nudge(leaf: Tensor) -> Tensor:
        """Moves the numbers of one tensor of the loss probe's batch by about a rounding error."""
        if not leaf.is_floating_point():
            return leaf
        # Two rounding units up or down at random: about what another order of additions does.
        signs = torch.randint(0, 2, leaf.shape, generator=generator).to(leaf) * 2 - 1
        return leaf * (1 + 2 * torch.finfo(leaf.dtype).eps * signs)

    return map_tensors(nudge, batch)


def _change_record(batch: Any, i: int, number: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Returns the loss probe's batch with record i made very different; `number` changes a row of numbers, given its
    tensor too.
    """

    def change(leaf: Tensor) -> Tensor:
        """Changes the row of one record in one tensor of the loss probe's batch."""
        if leaf.dtype == torch.bool:
            return _replace_row(leaf, i, ~leaf[i])
        if leaf.is_floating_point():
            return _replace_row(leaf, i, number(leaf[i], leaf))
        return _replace_row(leaf, i, leaf[i - 1])  # another record's own value is always a legal label or token

    return map_tensors(change, batch)


def _scale_row(factor: float, row: Tensor, leaf: Tensor) -> Tensor:
    """Returns a row of numbers scaled and moved away from where they were."""
    return 3 + factor * row


def _replace_row(leaf: Tensor, i: int, row: Tensor) -> Tensor:
    """Returns a copy of a tensor of the loss probe's batch with one row replaced."""
    result = leaf.clone()
    result[i] = row
    return result
