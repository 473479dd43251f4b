"""Gradient lengths and labels of records, for samplers and diagnostics that ask for them.

Privacy: bare values of private records. They stay inside `Records`, which keeps count of who looked, or are sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.lots.loading import Load, cut_into_batches
from sordino.per_sample.batch_structure import batch_size
from sordino.per_sample.batch_structure import columns as columns_of
from sordino.per_sample.protocol import Norms, PerSample
from sordino.refusal import Refusal
from sordino.release.sensitivity import Exact
from sordino.sampling.record_access import Label, Lengths, Records, Rows
from sordino.sampling.remembered_lengths import STRETCHES

_LABEL_DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


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

    def squares(rows: Rows) -> Lengths:
        with gathered_parameters():
            found = squared_lengths_by_stretch(gradients(load(part)) for part in cut_into_batches(rows, chunk))
            return found.cpu().numpy()

    return Records(n, lengths, labels, squares)


def gradient_lengths(parts: Iterable[PerSample]) -> Tensor:
    """Returns the gradient length of each of the records that a sampler or a diagnostic asks about, with one part in
    memory at a time and nothing but norms computed.
    """
    lengths = [_exact_norms(part).total() for part in parts]
    return torch.cat(lengths) if lengths else torch.zeros(0)


def squared_lengths_by_stretch(parts: Iterable[PerSample]) -> Tensor:
    """Returns the squared gradient lengths of the records that a sampler asks about, by stretch of the network,
    (records, stretches); neighbouring parameters are added up where there are more than `STRETCHES`.
    """
    found = []
    for part in parts:
        columns = _exact_norms(part).squared.tensor_split(STRETCHES, dim=1)
        # Where there are fewer parameters than stretches, the last splits are empty.
        found.append(torch.stack([some.sum(dim=1) for some in columns if some.shape[1]], dim=1))
    return torch.cat(found) if found else torch.zeros(0, 1)


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
