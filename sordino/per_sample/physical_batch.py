"""Chooses how many samples are processed at once, by free memory or by shapes alone.

Shapes alone decide where a run must repeat.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import ceil, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from sordino.kernels.allocator import return_free_memory
from sordino.per_sample.batch_structure import call_loss as losses_of
from sordino.release.rounding import USUAL_ROWS
from sordino.rng.global_generators import preserve_generators

SHARE = 0.25
"""The share of the free memory that per-sample gradients may take."""

MOST = USUAL_ROWS
"""No physical batch is larger, unless one is asked for: more records added up at once in float32 would take more than
half a percent more noise (`release.rounding`), and past this larger chunks gain little."""

LEAST_BY_SHAPES = 16
_CHUNKS = 16  # of a lot of the expected size, for ranks to divide
_OUTPUTS = 1 << 25
"""Bytes of layers' outputs: more leaves the caches, and fresh memory costs more than what is computed."""
_COPIES = 4
"""Activations, their gradients and two temporaries, each about as large as the outputs of the layers. Ranks on one
machine share its caches, so they count all of them."""

_UNKNOWN = 2 << 30
_LARGER = 1.2  # times the mean: parts up to a fifth larger, or up to so many standard deviations, are not cut again
_CACHE = 20 << 20  # bytes of activations that a cache holds, more or less
_BUSY = 32  # samples; fewer leave the processor waiting
_MODEST = 1 << 24  # bytes of activations that are not worth a second pass
_SUMS = 2  # times the parameters: a sum of several chunks is in float64, and takes so much more than that of one
_HEAVY = 16  # times the parameters: with activations up to that, a chunk more costs more than a cache saves
_BOTH = 2  # times the parameters: themselves and their gradient, which plain training has too
_ROOM = 0.9  # of plain training's memory for what the backward pass leaves: more comes on top of it on the way there


def free_bytes(device: torch.device) -> int:
    """Returns the memory free on a device for a physical batch; a cautious guess where it cannot be asked."""
    if device.type != "cpu":
        ask = getattr(torch.get_device_module(device), "mem_get_info", None)
        return _UNKNOWN if ask is None else int(ask(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return _UNKNOWN


def release_free_memory() -> None:
    """Hands memory that is free inside the C library back to the system, where the library can (glibc)."""
    return_free_memory()


def activation_bytes(model: nn.Module, loss_fn: Callable[..., Tensor], batch: Any) -> int:
    """Returns the bytes plain training keeps of one sample of a physical batch between forward and backward, seen on a
    few samples.

    Left out is what torch's fused recurrent layers keep for themselves, as bytes: their rules keep less, and other
    things.
    """
    # Parameters are there once, however large the batch is, so they do not count per sample.
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    held: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        """Counts the memory of a tensor that autograd saves, each storage once and without parameters, to choose the
        physical batch.
        """
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.dtype != torch.uint8:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # an output that holds the graph which holds it would never be freed

    with (
        preserve_generators(),
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        losses: Tensor = losses_of(loss_fn, model, batch)
    return sum(held.values()) // max(1, losses.numel())


def choose_physical_batch(
    sample_bytes: int,
    device: torch.device,
    lot: float = 0.0,
    activations: int = 0,
    parameters: int = 0,
    held: Callable[[], int] = lambda: 0,
) -> int:
    """Chooses the physical batch, the number of samples processed at once: as many as fit, or half a lot or less if
    activations are large.

    Norms and sums want inputs and output gradients of all layers, up to twice what plain training keeps. Half the
    samples at a time take what plain training takes for all; fewer are faster still while what they take leaves the
    cache, down to as many as keep the layers busy. But every chunk pays for the parameters once more: weights are
    copied for products, sums are written and added up. Where the parameters are not small beside a lot's activations, a
    whole lot is faster, and it stays whole if the backward pass leaves less of it than plain training keeps (rows in
    place of inputs and gradients), or if halves would save less than their sums take.

    `activations` is what plain training keeps of a sample, `parameters` the bytes of a sum of gradients, which a
    smaller batch does not change, and `held` gives what the backward pass leaves of a sample, or 0 if that is not
    known.
    """
    fits = int(min(MOST, max(1, SHARE * free_bytes(device) // max(1, sample_bytes))))
    # A lot with few activations goes as a whole.
    plain = lot * activations
    if plain <= max(_MODEST, _SUMS * parameters):
        return fits
    # So does one beside whose parameters halves would save little.
    if plain <= _HEAVY * parameters and (wanted := held()) > 0:
        both, saved = _BOTH * parameters, lot * wanted / 2  # by halves
        if saved <= _SUMS * parameters or both + lot * wanted <= _ROOM * (both + plain):
            return fits
    # Otherwise half a lot, or as many as fit the cache.
    part = min(lot / 2, max(_BUSY, _CACHE // max(1, activations)))
    return min(fits, _limit_of_equal_parts(part, lot))


def _limit_of_equal_parts(wanted: float, lot: float) -> int:
    """Returns the physical batch that cuts most lots into equal parts of at most `wanted` samples on average.

    Lots are cut by halves of halves (`lots.loading`). A limit that parts exceed as often as not would cut every other
    part once more, into parts that are too small to keep the layers busy.
    """
    part = max(1.0, lot)
    while part > wanted and part > 1:
        part /= 2
    # Poisson lots vary in size, and so do their parts: a part somewhat larger than the mean is still one part.
    return ceil(max(_LARGER * part, part + _LARGER * sqrt(part)))


def choose_for_ranks(activations: int, lot: float) -> int:
    """Chooses the physical batch, the number of samples processed at once, where ranks divide a lot: the same for any
    number of ranks.

    A lot is meant to have a few chunks for each of up to a dozen ranks, and chunks enough samples to keep layers busy.
    For more ranks, or larger lots per rank, give draws(physical_batch=…).
    """
    fits = max(LEAST_BY_SHAPES, _OUTPUTS // max(1, _COPIES * activations))
    return int(min(MOST, fits, max(LEAST_BY_SHAPES, ceil(lot / _CHUNKS))))


def choose_by_shapes(model: nn.Module, inputs: Tensor, lot: float) -> int:
    """Chooses the physical batch, the number of samples processed at once, by the size of the layers' outputs: the same
    in every process.

    Lots are cut into parts of about one size: a small last part costs nearly as much as a full one. Poisson lots are
    seldom larger than `lot` by more than four of their deviations.
    """
    total = 0

    def count(module: nn.Module, given: Any, output: Any) -> None:
        """Adds up the bytes of a module's output."""
        nonlocal total
        total += output.numel() * output.element_size() if isinstance(output, Tensor) else 0

    # Run one made-up sample to see the sizes of all outputs.
    hooks = [module.register_forward_hook(count) for module in model.modules()]
    training = model.training
    device = next((p.device for p in model.parameters()), inputs.device)
    try:
        with torch.no_grad():
            model.eval()(torch.zeros_like(inputs[:1], device=device))
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    # A lot that fits is not cut, even if it is larger than the mean by four standard deviations.
    fits = max(LEAST_BY_SHAPES, _OUTPUTS // max(1, total))
    limit = ceil(lot + 4 * sqrt(lot)) if lot <= fits else _limit_of_equal_parts(fits, lot)
    return min(MOST, limit)
