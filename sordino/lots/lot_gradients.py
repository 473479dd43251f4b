"""Computes the per-sample gradients of a lot, batch by batch, at the current model.

The engine is asked for each batch, a penalty joins the gradients, and the model can be moved for a pass and is put
back. `PassModel` is the model as these passes see it: its parameters by name, all that it holds, and where shards are
gathered.

Privacy: nothing leaves here but gradients and losses of single records, to callers that clip and seal them. What is
drawn at random for all records of a pass is drawn once for it, not once for a batch: one record more moves others into
another batch, and must not change anything for them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from operator import attrgetter, is_
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.distributed.fully_sharded import FullySharded
from sordino.distributed.shared_lot import RankedLot
from sordino.lots.lot import Lot
from sordino.lots.padding import LotPadding, keep_first_rows
from sordino.penalty import L2
from sordino.per_sample import batch_structure as batches
from sordino.per_sample.captured_backend import Captured
from sordino.per_sample.displaced_model import displace_model
from sordino.per_sample.materialised import make_empty
from sordino.per_sample.model_inventory import (
    Inventory,
    ParameterNames,
    advance_vectors,
    find_spectral_vectors,
    keep_vectors,
    list_model_tensors,
    list_tensor_names,
)
from sordino.per_sample.protocol import Backend, Chunked, LossFn, PerSample, estimate_kind
from sordino.per_sample.unit_loss import UnitBatch, compute_unit_losses
from sordino.refusal import Refusal
from sordino.release.release import Release
from sordino.release.sealed import Seal, Sealed
from sordino.rng.global_generators import Seeded, set_seed
from sordino.rng.streams import Rng

_version = attrgetter("_version")
_AS_THEY_ARE = nullcontext()


class PassModel:
    """Knows a model's modules, parameters and buffers, and gathers the parameters that are divided among ranks."""

    def __init__(self, model: nn.Module, sharded: FullySharded | None, *, layer_by_layer: bool) -> None:
        self.model = model
        self.layer_by_layer = layer_by_layer  # parameters are gathered layer by layer in the passes over a lot
        self._sharded = sharded
        self.device = torch.device("cpu")  # where the model is
        # The names of parameters at rest, and as the passes see them where a sharded model is gathered.
        self._at_rest = ParameterNames(model)
        self.names = self._at_rest if sharded is None else ParameterNames(model)
        self.inventory: Inventory
        self.tensors: list[Tensor] = []  # all that the model holds
        self.vectors: list[Tensor] = []  # of spectral normalisations
        self.buffers: list[tuple[str, Tensor]] = []
        self.refresh_inventory()

    @property
    def is_sharded(self) -> bool:
        """Whether the parameters are divided among ranks."""
        return self._sharded is not None

    @property
    def named(self) -> dict[str, nn.Parameter]:
        """The parameters at rest by name; the dict is the same object for as long as they are the same."""
        return self._at_rest.named

    def refresh_inventory(self, new_inventory: Inventory | None = None) -> None:
        """Refreshes what is known of the model before the gradients of a lot are computed, once per lot.

        Parameters may be thawed, frozen or moved between lots, not within one.
        """
        self.release_full_parameters()
        inventory = Inventory(self.model) if new_inventory is None else new_inventory
        if self._sharded is None or not self._sharded.is_gathered:
            self._at_rest.refresh(inventory)
        for p in self.named.values():
            self.device = p.device
            break
        self._refresh_pass_view(inventory)

    def _refresh_pass_view(self, inventory: Inventory) -> None:
        """Refreshes what is known of the model as the passes over a lot's gradients see it, with gathered parameters."""
        self.inventory = inventory
        held = list_model_tensors(inventory.modules)
        self.vectors = find_spectral_vectors(inventory.modules)
        # The names of buffers are listed only where the model holds other tensors than before.
        if len(held) != len(self.tensors) or not all(map(is_, held, self.tensors)):
            named = zip(list_tensor_names(inventory.modules), held, strict=True)
            self.tensors = held
            self.buffers = [(name, tensor) for name, tensor in named if not isinstance(tensor, nn.Parameter)]

    def release_full_parameters(self) -> None:
        """Releases gathered parameters, so that of a sharded model this rank holds its own rows only."""
        if self._sharded is not None:
            self._sharded.release_full_parameters()

    @contextmanager
    def gathered_parameters(self) -> Iterator[None]:
        """Gathers parameters that are divided among ranks within a `with` block, so that a lot's gradients can be
        computed.
        """
        if self._sharded is None:
            yield
            return
        with self._sharded.gathered_parameters():
            self._refresh_gathered()
            yield

    @contextmanager
    def parameters_for_passes(self) -> Iterator[None]:
        """Makes the parameters ready, within a `with` block, for passes that compute a lot's gradients, gathered layer
        by layer if that is asked for.
        """
        if self._sharded is None or not self.layer_by_layer:
            with self.gathered_parameters():
                yield
            return
        with self._sharded.gathered_layer_by_layer():
            self._refresh_gathered()
            yield

    def _refresh_gathered(self) -> None:
        self._refresh_pass_view(Inventory(self.model))
        self.names.refresh(self.inventory)

    def count_elements(self) -> dict[str, int]:
        """Returns the number of elements of each trainable parameter."""
        return {name: p.numel() for name, p in self.names.trained.items()}

    def finish_passes(self) -> None:
        """Ends the passes over a lot's gradients: vectors of spectral normalisations, which move once per lot, move on."""
        if self.vectors:
            with self.gathered_parameters():
                advance_vectors(self.inventory.modules)


class Watcher(Protocol):
    """Observes the training pass over the first batch of a lot."""

    def watch(self, batch: Any, make: Callable[[], tuple[PerSample, Tensor]]) -> tuple[PerSample, Tensor]:
        """Makes the pass by calling `make`, and returns what it returned."""
        ...


class LotGradients:
    """Makes passes over lots with one model, loss, backend and penalty."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        backend: Backend,
        penalty: L2 | None,
        sharded: FullySharded | None = None,
    ) -> None:
        self.model, self.loss_fn, self.backend, self.penalty = model, loss_fn, backend, penalty
        self.pass_model = PassModel(model, sharded, layer_by_layer=_wants_layer_by_layer(backend, penalty, sharded))
        self._unit_loss = partial(compute_unit_losses, loss_fn)
        self.written: str | None = None  # a parameter or buffer that a forward pass wrote to
        self.watcher: Watcher | None = None  # sees the next training pass over a lot's first batch, once
        self.padding: LotPadding | None = None  # of the lot drawn last, if its batches are filled up to one size

    def loss_for(self, batch: Any) -> LossFn:
        """Returns the loss, or its mean over the records of a unit where the batch is of units."""
        return self._unit_loss if type(batch) is UnitBatch else self.loss_fn

    def seeded_passes(self, stream: Rng) -> AbstractContextManager[None]:
        """Allows inside the passes that compute a lot's gradients, with random numbers of the run.

        Dropout and the like draw from our stream, so that a resumed run draws what it would have drawn.
        """
        seeded = Seeded(stream.seed())
        return self._seeded_sharded_passes(seeded) if self.pass_model.is_sharded else seeded

    @contextmanager
    def _seeded_sharded_passes(self, seeded: Seeded) -> Iterator[None]:
        with seeded, self.pass_model.parameters_for_passes():
            yield

    def compute_gradients(self, batch: Any) -> PerSample:
        """Returns the per-sample gradients of one batch that is the whole pass over a lot.

        Where lots are padded, a batch of about their size is padded too, so that tests at the size of training make the
        passes of training. A few records are computed on as they are.
        """
        padding = self.padding
        if padding is not None and 2 * batches.batch_size(batch) < padding.rows:
            padding = None
        backend = _backend_for_pass(self.backend, Inventory(self.model))
        return self._compute_part(backend, batch, self.pass_model.names.trained, padding)[0]

    def compute_gradients_of_model(self, model: nn.Module, batch: Any) -> PerSample:
        """Returns a batch's per-sample gradients for another model than the lot's, such as a copy in double precision,
        without the penalty.
        """
        inventory = Inventory(model)
        with keep_vectors(find_spectral_vectors(inventory.modules)):
            return _backend_for_pass(self.backend, inventory).per_sample(
                model, self.loss_for(batch), batches.move_to(batch, self.pass_model.device)
            )

    def ask_query(
        self,
        query: Callable[[PerSample, Any, float, Rng], tuple[Release, Any]],
        state: Any,
        lot: Lot,
        records: NDArray[np.int64] | None,
        noise: Rng,
        forward: Rng,
        seal: Seal,
        join_ranks: Callable[[], RankedLot] | None = None,
    ) -> tuple[Release, Any, Sealed[Tensor]]:
        """Asks a query of a lot's gradients, with the random numbers of the run's own streams.

        Args:
            query: what is asked; it clips, sums and releases.
            state: the query's state before the lot.
            lot: the lot; its records are loaded and computed on batch by batch.
            records: their numbers in the dataset; None where no sampler drew them.
            noise: the stream of the noise.
            forward: the stream of whatever the forward passes draw, such as dropout.
            seal: records the opening of the losses.
            join_ranks: makes the lot one that several ranks compute together; None for one process.

        Returns:
            The release, the query's next state, and the losses of the records, sealed.

        """
        losses: list[Tensor] = []
        # The passes get the run's own random numbers, and whatever was displaced on the way is put back at the end,
        # also after an error.
        with self.seeded_passes(forward), ExitStack() as put_back:
            ranked = None if join_ranks is None else join_ranks()
            grads = self.as_query_input(lot, losses, put_back, records, ranked)
            # Gradients are computed when the query asks for them, batch by batch, so a lot of any size passes through
            # memory.
            release, state = query(grads, state, lot.expected_batch, noise)
        return release, state, Sealed(losses[0] if len(losses) == 1 else torch.cat(losses), seal)

    def as_query_input(
        self,
        lot: Lot,
        losses: list[Tensor],
        put_back: ExitStack,
        records: NDArray[np.int64] | None,
        ranked: RankedLot | None = None,
    ) -> Chunked:
        """Returns the gradients of a lot as a query is given them: at the current model, and at a model moved, which is
        put back.
        """
        return Chunked(
            lambda: self.generate_parts(lot, losses, ranked, notify_watcher=True),
            partial(self.generate_parts_moved, lot, losses, put_back, ranked),
            records,
            estimate_kind(self.backend),
            self.pass_model.count_elements,
            lot.most,
            ranked,
        )

    def generate_parts(
        self, lot: Lot, losses: list[Tensor], ranked: RankedLot | None = None, *, notify_watcher: bool = False
    ) -> Iterator[PerSample]:
        """Yields the lot's per-sample gradients batch by batch, one empty part for an empty lot, and fills `losses`.

        `notify_watcher`: a watcher that waits sees the first of these passes.
        """
        losses.clear()
        # A neighbour test that waits for a training pass sees the first batch of this one, and no other.
        watcher: Watcher | None = None
        if notify_watcher:
            watcher, self.watcher = self.watcher, None
        if ranked is not None:  # what is drawn for all chunks of a pass is the same on all ranks
            set_seed(ranked.begin_pass())
        # What is random for all records of a pass is drawn once, in `_backend_for_pass`, and not once per batch.
        parameters = self.pass_model.names.trained
        if not parameters:
            raise Refusal(
                "the model has no trainable parameter.\n"
                "There is nothing that a release could train.\n"
                "Set requires_grad on what is to be trained."
            )
        backend = _backend_for_pass(self.backend, self.pass_model.inventory)
        for batch in lot.loads() if ranked is None else self._load_local_batches(lot, ranked):
            if watcher is None:
                part, loss = self._compute_part(backend, batch, parameters, self.padding)
            else:
                part, loss = watcher.watch(batch, partial(self._compute_part, backend, batch, parameters, self.padding))
                watcher = None
            losses.append(loss)
            yield part
            del part  # or it would live on beside the next one
        # A padded lot takes one number of passes, however few records it has: the others run on rows of zeros, and add
        # nothing.
        if self.padding is not None and self.padding.has_seen_records:
            for _ in range(self.padding.passes - len(losses)):
                part, loss = self._compute_part(backend, self.padding.blank, parameters, self.padding, real_rows=0)
                losses.append(loss)
                yield part
                del part
        # An empty lot still has one part, so that noise is added to a sum of zeros.
        if not losses:
            part = make_empty(parameters, estimate_kind(backend))
            losses.append(part.losses)
            yield part

    def _load_local_batches(self, lot: Lot, ranked: RankedLot) -> Iterator[Any]:
        """Yields the batches of a lot whose gradients this rank computes; each is loaded and computed under its own
        seed, whichever rank does it.
        """
        loads = iter(lot.loads())
        for place in range(len(ranked.numbers)):
            set_seed(ranked.begin_chunk(place))
            yield next(loads)

    def generate_parts_moved(
        self,
        lot: Lot,
        losses: list[Tensor],
        put_back: ExitStack,
        ranked: RankedLot | None,
        displacement: Mapping[str, Tensor],
    ) -> Iterator[PerSample]:
        """Yields the lot's per-sample gradients, batch by batch, with the parameters moved by `displacement`.

        The parameters are put back after the last part, or when the query is left.

        The losses handed to the user are those of the first pass, wherever it was made.
        """

        # The model is moved while the generator is being read, and put back when it is closed.
        def parts() -> Generator[PerSample, None, None]:
            with displace_model(self.model, displacement):
                yield from self.generate_parts(lot, [] if losses else losses, ranked)

        generator = parts()
        put_back.callback(generator.close)
        return generator

    def _compute_part(
        self,
        backend: Backend,
        batch: Any,
        parameters: Mapping[str, nn.Parameter],
        padding: LotPadding | None = None,
        real_rows: int | None = None,
    ) -> tuple[PerSample, Tensor]:
        """Returns the per-sample gradients of one batch of a lot, the penalty in them, and its losses.

        With a `padding` the batch is filled up to its size for the pass, and nobody sees the rows that were added. Only
        the first `real_rows` rows are records; None for all of them.
        """
        if padding is not None:
            real_rows = batches.batch_size(batch) if real_rows is None else real_rows
            batch = padding.fill(batch)
        # The versions of all tensors before and after show whether the forward pass wrote to any of them.
        seen = self.pass_model
        before = list(map(_version, seen.tensors))
        loss_fn, batch = self.loss_for(batch), batches.move_to(batch, seen.device)
        with keep_vectors(seen.vectors) if seen.vectors else _AS_THEY_ARE:
            part = backend.per_sample(self.model, loss_fn, batch)
        # A forward pass that wrote to a parameter or buffer may have kept something of the records; it is reported.
        after = list(map(_version, seen.tensors))
        if before != after:
            named = zip(list_tensor_names(seen.inventory.modules), before, after, strict=True)
            self.written = next(name for name, a, b in named if a != b)
        part, losses = part if self.penalty is None else self.penalty.add_to(part, parameters), part.losses
        if real_rows is not None:
            return keep_first_rows(part, real_rows), losses[:real_rows]
        return part, losses


def _wants_layer_by_layer(backend: Backend, penalty: L2 | None, sharded: FullySharded | None) -> bool:
    """Returns whether a lot's gradients are computed with parameters gathered layer by layer; raises Refusal where that
    cannot be.
    """
    wanted = isinstance(backend, Captured) and backend.options.layer_by_layer
    if wanted and sharded is None:
        raise Refusal(
            "layer_by_layer=True was given, and the model is not divided.\n"
            "All of its parameters are here already.\n"
            "Apply fully_shard to it, or leave layer_by_layer out."
        )
    if wanted and penalty is not None:
        raise Refusal(
            "layer_by_layer=True was given beside a penalty inside the clip.\n"
            "The penalty reads all parameters at once.\n"
            "Leave one of the two out."
        )
    return wanted


def _backend_for_pass(backend: Backend, inventory: Inventory) -> Backend:
    """Returns what a backend with `for_pass` is for one pass over a lot's gradients; another backend is returned as it
    is.

    Such a backend has something that all batches of a pass share: random directions, or a look at the model's modules.

    `isinstance` with a protocol would be slow here, because this is called at every step.
    """
    for_pass: Callable[[Inventory], Backend] | None = getattr(backend, "for_pass", None)
    return backend if for_pass is None else for_pass(inventory)
