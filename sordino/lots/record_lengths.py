"""Gradient lengths and labels of records, for samplers and diagnostics that ask for them.

Privacy: bare values of private records. They stay inside `Records`, which keeps count of who looked, or are sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.lots.loading import Load, cut_into_batches
from sordino.per_sample.batch_structure import batch_size
from sordino.per_sample.batch_structure import columns as columns_of
from sordino.per_sample.protocol import Norms, PerSample
from sordino.refusal import Refusal
from sordino.release.sensitivity import Exact
from sordino.sampling.record_access import Label, Lengths, Records, Rows, Summaries

_LABEL_DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_PICTURE, _CHANNELS = 4, 4
"""The side of the picture in a summary, and the most channels that a summarised image has."""


def records_for_samplers(
    n: int,
    load: Load,
    chunk: int,
    gradients: Callable[[Any], PerSample],
    gathered_parameters: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Records:
    """Returns the records of a dataset as a sampler may ask their lengths and labels; `gradients` computes those of a
    batch.

    Passes are made inside `gathered_parameters()`.
    """

    def lengths(rows: Rows) -> Lengths:
        # Ranks that hold shards of the model gather them for as long as lengths are computed.
        with gathered_parameters():
            return gradient_lengths(gradients(load(part)) for part in cut_into_batches(rows, chunk)).cpu().numpy()

    def labels(rows: Rows, label: Label | None) -> Rows:
        found = [class_labels(load(part), label) for part in cut_into_batches(rows, chunk)]
        return torch.cat(found).cpu().numpy().astype(np.int64)

    def summaries(rows: Rows) -> Summaries:
        parts = [summarise_batch(load(part)) for part in cut_into_batches(rows, chunk)]
        few, many = zip(*parts, strict=True)
        return Summaries(torch.cat(few).cpu().numpy(), torch.cat(many).cpu().numpy())

    return Records(n, lengths, labels, summaries)


def gradient_lengths(parts: Iterable[PerSample]) -> Tensor:
    """Returns the gradient length of each of the records that a sampler or a diagnostic asks about, with one part in
    memory at a time and nothing but norms computed.
    """
    lengths = [_exact_norms(part).total() for part in parts]
    return torch.cat(lengths) if lengths else torch.zeros(0)


def summarise_batch(batch: Any) -> tuple[Tensor, Tensor]:
    """Returns what samplers may know of each record of a batch without a model: a few properties, and many.

    Of an image the few are the mean and deviation of each channel and the mean difference between neighbouring pixels, and
    the many are a picture of 4 × 4 pixels. Of another row of numbers the few are its mean and deviation, and there are no
    many. Of anything else there is nothing.
    """
    columns = columns_of(batch)
    x = columns[0]
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2:
        nothing = torch.zeros(batch_size(batch), 0)
        return nothing, nothing
    x = x.float()
    # An image has channels, height and width, and is large enough for a smaller picture of it.
    if x.dim() == 4 and min(x.shape[2:]) >= _PICTURE and x.shape[1] <= _CHANNELS:
        across, down = x.diff(dim=3).abs().mean((1, 2, 3)), x.diff(dim=2).abs().mean((1, 2, 3))
        few = torch.cat([x.mean((2, 3)), x.flatten(2).std(dim=2), torch.stack([across, down], dim=1)], dim=1)
        return few, nn.functional.adaptive_avg_pool2d(x, _PICTURE).flatten(1)
    rows = x.flatten(1)
    return torch.stack([rows.mean(dim=1), rows.std(dim=1, correction=0)], dim=1), rows[:, :0]


def _exact_norms(part: PerSample) -> Norms:
    """Returns the norms of a part of the records, and refuses norms that are estimates."""
    norms = part.norms()
    if norms.estimate != Exact():  # the estimates of all records hang together, and with them who is drawn
        raise Refusal(
            f"lengths were asked for and norms are {norms.estimate!r}.\n"
            "Lengths that are estimates would not be those of the gradients.\n"
            "Use the default backend, whose norms are exact."
        )
    return norms


def class_labels(batch: Any, label: Label | None) -> Tensor:
    """Returns the class label of every record of a batch, which samplers and diagnostics ask for beside gradient
    lengths: what `label` makes of its columns, or the last column.
    """
    # The shape and the kind are checked before the labels are used to choose records.
    columns = columns_of(batch)
    labels = columns[-1] if label is None else label(*columns)
    if (
        not isinstance(labels, Tensor)
        or labels.dim() != 1
        or labels.dtype not in _LABEL_DTYPES
        or len(labels) != batch_size(batch)
    ):
        what = "the last column of a batch" if label is None else "what `label` returned"
        raise Refusal(
            f"{what} is not a class per record.\n"
            "Classes are whole numbers, one for each record.\n"
            "Give label=, a function of the batch's columns, such as label=lambda x, y: y.argmax(1)."
        )
    return labels
