"""Diagnostics of a run: what papers plot of batches and updates, each named in the claim.

    update cosines          between consecutive released gradients: made of releases alone, covered by the claim
    length quantiles        of a lot's gradient lengths: private, disclosed
    dominant class          the most frequent class of a lot and its share: private, disclosed
    substep cosine          of ProjectedDPSGD's update, before noise, with the first part of it: private, disclosed
    cosine(a, b)            of two updates, such as the plain and the projected one

Privacy: what is computed from a lot's own records is a `Sealed` value that is opened by `disclose`: the claim keeps its
ε for all the rest and lists the diagnostic by name under what it does not cover. Whoever publishes such a plot
publishes more than the claim speaks about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sordino.lots.lot import Lot
from sordino.private import Private
from sordino.refusal import Refusal
from sordino.sampling.record_access import Label

LENGTHS = "gradient length quantiles of lots"
CLASSES = "dominant classes of lots"
SUBSTEPS = "cosines of updates with their first substep, before noise"
BOX_PLOT_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The quantiles of a box plot."""


def cosine(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Returns a diagnostic of two updates with the same parameter names: the cosine of the angle between them; nan if
    one is 0.

    >>> cosine({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([1.0, 1.0])})
    0.7071067811865475
    """
    if one.keys() != other.keys():
        raise ValueError(f"updates of different parameters: {sorted(one)} and {sorted(other)}; need the same names")
    a = torch.cat([one[name].detach().flatten().double() for name in one])
    b = torch.cat([other[name].detach().flatten().double() for name in one])
    lengths = float(a.norm() * b.norm())
    return float(a @ b) / lengths if lengths > 0 else math.nan


@dataclass
class UpdateCosines:
    """Cosines between consecutive updates: call it after every `private.backward`.

    The gradients it reads were released, so what it says is covered by the claim.

    Args:
        model: whose gradients are read.
        values: all cosines so far.
        last: the update before.

    Privacy:
        Made of released gradients alone.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> cosines = UpdateCosines(model)
        >>> model.weight.grad = torch.tensor([[1.0, 0.0]])
        >>> cosines()
        >>> cosines()
        1.0

    """

    model: nn.Module
    values: list[float] = field(default_factory=list)
    last: dict[str, Tensor] | None = None
    """The update before, released."""

    def __call__(self) -> float | None:
        """Appends and returns the cosine of this update with the one before; returns None the first time."""
        current = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
        last, self.last = self.last, current
        if last is None:
            return None
        self.values.append(cosine(last, current))
        return self.values[-1]


def substep_cosine(private: Private) -> float:
    """Returns a diagnostic of the last lot, which the claim names: the cosine of its projected update, before noise,
    with its first substep.

    Args:
        private: a run whose query is `Projected`.

    Returns:
        The cosine.

    Privacy:
        Computed before noise: the claim lists it as not covered.

    Examples:
        >>> import torch, sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> private = sd.Private(torch.nn.Linear(3, 1), lambda model, x: model(x).square().sum(1), query)
        >>> try:
        ...     substep_cosine(private)
        ... except sd.Refusal as error:
        ...     print(error)
        the query kept no substeps.
        Only queries that take a step in parts have any.
        Use such a query, for instance Projected.

    """
    kept = private.kept
    if "first" not in kept or "update" not in kept:
        raise Refusal(
            "the query kept no substeps.\n"
            "Only queries that take a step in parts have any.\n"
            "Use such a query, for instance Projected."
        )
    return cosine(kept["first"].disclose(SUBSTEPS), kept["update"].disclose(SUBSTEPS))


def length_quantiles(private: Private, lot: Lot, at: Sequence[float] = BOX_PLOT_QUANTILES) -> tuple[float, ...]:
    """Returns a diagnostic of a lot, which the claim names: quantiles of its gradient lengths at the current model; nan
    for an empty lot.

    Args:
        private: a run.
        lot: its last lot.
        at: which quantiles.

    Returns:
        One length for each.

    Privacy:
        Computed without noise: the claim lists it as not covered. For research on public data.

    Examples:
        >>> import torch, sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> private = sd.Private(torch.nn.Linear(3, 1), lambda m, x, y: m(x).square().sum(1), query)
        >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3), torch.zeros(100, dtype=torch.long))
        >>> lot = next(private.draws(data, sd.Poisson(rate=0.5), steps=1, expected_batch=50))
        >>> len(length_quantiles(private, lot))
        5

    """

    def quantiles_of(lengths: Tensor) -> tuple[float, ...]:
        if not len(lengths):
            return (math.nan,) * len(at)
        return tuple(torch.quantile(lengths.double(), torch.tensor(at, dtype=torch.float64)).tolist())

    return quantiles_of(private.lengths(lot).disclose(LENGTHS))


@dataclass(frozen=True)
class Dominant:
    """A lot's most frequent class and its share of the lot.

    Args:
        label: the class.
        share: its part of the lot.

    Examples:
        >>> Dominant(label=3, share=0.25)
        Dominant(label=3, share=0.25)

    """

    label: int
    share: float


def dominant_class(private: Private, lot: Lot, label: Label | None = None) -> Dominant | None:
    """Returns a diagnostic of a lot, which the claim names: its most frequent class and that class's share; None for an
    empty lot.

    Args:
        private: a run.
        lot: its last lot.
        label: makes the class of a batch's columns; by default it is the last.

    Returns:
        The class and its share; None for an empty lot.

    Privacy:
        Computed without noise: the claim lists it as not covered. For research on public data.

    Examples:
        >>> import torch, sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> private = sd.Private(torch.nn.Linear(3, 1), lambda m, x, y: m(x).square().sum(1), query)
        >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3), torch.zeros(100, dtype=torch.long))
        >>> lot = next(private.draws(data, sd.Poisson(rate=0.5), steps=1, expected_batch=50))
        >>> private.claim(delta=1e-5).not_covered if dominant_class(private, lot) else ()
        ('dominant classes of lots',)

    """

    def most_frequent(labels: Tensor) -> Dominant | None:
        """Returns the most frequent class of labels and its share for the diagnostic of a lot; None if there are no
        labels.
        """
        if not len(labels):
            return None
        # Class and share are computed from private labels; disclosing them below enters them in the claim.
        classes, counts = labels.unique(return_counts=True)
        largest = int(counts.argmax())
        return Dominant(int(classes[largest]), float(counts[largest]) / len(labels))

    return most_frequent(private.labels(lot, label).disclose(CLASSES))
