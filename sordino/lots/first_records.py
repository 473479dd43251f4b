"""What is done with the first records of a dataset, before a lot is drawn: the loss is probed, a batch size chosen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from sordino.distributed.message_guard import refuse_messages
from sordino.lots.lot_gradients import LotGradients
from sordino.per_sample import batch_structure as batches
from sordino.per_sample import loss_probe
from sordino.per_sample.captured_backend import Captured
from sordino.per_sample.engine.backward_memory import count_lifted_bytes
from sordino.per_sample.physical_batch import activation_bytes, choose_for_ranks, choose_physical_batch
from sordino.refusal import Refusal
from sordino.rng.global_generators import Seeded

_NORM_TOLERANCE = 1e-3  # relative, of squared norms: a layer may round otherwise


def probe_first_records(gradients: LotGradients, load_first: Callable[[int], Any]) -> Any:
    """Returns the first records of a dataset, moved to the model's device, after a probe of the loss on them."""
    seen = gradients.pass_model
    seen.refresh_inventory()
    probe_batch = batches.move_to(load_first(loss_probe.PROBE), seen.device)
    with seen.gathered_parameters(), refuse_messages():
        loss_probe.probe_loss(seen.model, gradients.loss_for(probe_batch), probe_batch)
    if seen.layer_by_layer:
        _compare_layer_by_layer(gradients, probe_batch)
    return probe_batch


def _compare_layer_by_layer(gradients: LotGradients, probe_batch: Any) -> None:
    """Compares norms of the first records, computed layer by layer, with those of the gathered model, and refuses a
    difference.

    What reads a parameter outside its module's forward reads nan where parameters are gathered layer by layer.
    """
    with Seeded(0), gradients.pass_model.gathered_parameters():
        gathered_norms = gradients.compute_gradients(probe_batch).norms()
    with Seeded(0), gradients.pass_model.parameters_for_passes():
        layered_norms = gradients.compute_gradients(probe_batch).norms()
    if not torch.allclose(gathered_norms.squared, layered_norms.squared, rtol=_NORM_TOLERANCE, equal_nan=True):
        raise Refusal(
            "layer_by_layer=True: with parameters gathered layer by layer the norms are others.\n"
            "Some parameter is read outside the forward of the module that has it in its charge.\n"
            "Apply fully_shard to a module around both, or leave layer_by_layer out."
        )


def choose_batch_size(gradients: LotGradients, probe_batch: Any, expected: float, *, by_shapes: bool = False) -> int:
    """Returns how many records are processed at once, from the memory that a few of the first records take.

    By shapes alone it is the same on every rank, and for any number of ranks.
    """
    seen, backend = gradients.pass_model, gradients.backend
    with seen.gathered_parameters():
        activations = activation_bytes(seen.model, gradients.loss_for(probe_batch), probe_batch)
        if by_shapes:
            return choose_for_ranks(activations, expected)
        parameters = sum(map(count_lifted_bytes, seen.model.parameters()))
        bytes_per_record = backend.sample_bytes(seen.model)
        held_bytes = partial(_held_bytes, gradients, probe_batch)
        return choose_physical_batch(bytes_per_record, seen.device, expected, activations, parameters, held_bytes)


def _held_bytes(gradients: LotGradients, probe_batch: Any) -> int:
    """Returns the bytes that norms and sums of the first records need per record; 0 for backends that do not say."""
    backend = gradients.backend
    if not isinstance(backend, Captured):
        return 0
    return backend.held_bytes(gradients.pass_model.model, gradients.loss_for(probe_batch), probe_batch)
