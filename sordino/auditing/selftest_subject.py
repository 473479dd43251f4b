"""Subject of a selftest: the user's model, loss, query and sampler, and copies to try.

Privacy: a trial is another run, on a copy of the model, with a ledger of its own, on a few records copied out of the
dataset. What it saw before noise stays in it; what is said of it are bounds kept or broken, and properties of the noise.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.ledger.ledger import Ledger
from sordino.penalty import L2
from sordino.per_sample.protocol import Backend, LossFn
from sordino.private import Private
from sordino.queries.noisy_sum import Query
from sordino.release.noise import Laplace, Noise
from sordino.release.release import Steps, tap_releases
from sordino.release.sensitivity import Sensitivity, Unproven
from sordino.release.vectors import Grads
from sordino.rng.streams import Rng
from sordino.sampling.sampler import Draw, Sampler, keep_unamplified

EXPECTED = 6.5
"""What sums are divided by in trials: no lot has so many records."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """What is tested.

    Args:
        model: as it is now.
        loss_fn: one loss per record.
        query: what is asked of a lot.
        sampler: who is in one.
        penalty: L2(λ), if there is one.
        backend: how gradients are measured.
        collate: from records to a batch.

    Examples:
        >>> import torch, sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> Pieces(torch.nn.Linear(3, 1), lambda model, x: model(x).square().sum(1), query).query
        NoisySum(clipping=Flat(bound=1.0), noise=Gaussian(multiplier=1.1))

    """

    model: nn.Module
    loss_fn: LossFn
    query: Query
    sampler: Sampler | None = None
    penalty: L2 | None = None
    backend: Backend | None = None
    collate: Callable[[list[Any]], Any] | None = None

    @staticmethod
    def of(private: Private, sampler: Sampler | None = None) -> Pieces:
        """Returns the pieces of a run that was set up; lots are drawn by `sampler`."""
        inside = private.open_for_audit()
        return Pieces(inside.model, inside.loss_fn, inside.query, sampler, inside.penalty, inside.backend)

    def private(self, seed: int | None = None, *, backend: Backend | None = None) -> Private:
        """Returns another run of the selftest's subject, on a copy of the model, with its own ledger."""
        return Private(
            copy.deepcopy(self.model),
            self.loss_fn,
            self.query,
            penalty=self.penalty,
            backend=self.backend if backend is None else backend,
            seed=seed,
            ledger=Ledger(),
        )


@dataclass(frozen=True)
class GivenLots:
    """A sampler whose lots are given; nothing is amplified."""

    lots: tuple[tuple[int, ...], ...]
    size_is_public: bool = False

    def expected_size(self, n: int) -> float:
        """Returns a fixed number; any will do."""
        return EXPECTED

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        """Yields the lots in turn."""
        for lot in self.lots[start:]:
            yield Draw(np.array(lot, dtype=np.int64), keep_unamplified)


@dataclass(frozen=True, eq=False)
class SeenRelease:
    """A value that was released once: as it was before noise, its sensitivity, and the noise to be added."""

    value: Grads
    sensitivity: Sensitivity | Unproven
    noise: Noise

    @property
    def bound(self) -> float:
        """The promise, in the norm of the noise."""
        proved = isinstance(self.sensitivity, Sensitivity)
        return self.noise.bound_for(self.sensitivity) if proved else self.sensitivity.scale  # type: ignore[arg-type,union-attr]

    @property
    def scale(self) -> float:
        """What the noise's scale must be: multiplier × bound, raised by the rounding of sums."""
        raised = self.sensitivity.rounding if isinstance(self.sensitivity, Sensitivity) else 0.0
        return self.noise.multiplier * self.bound * (1 + raised)

    def distance_from(self, other: SeenRelease) -> float:
        """Returns how far apart two releases of a selftest's subject are, in the norm of the noise; infinite where one
        is not finite.
        """
        moved = flatten(self.value) - flatten(other.value)
        far = float(np.linalg.norm(moved, 1 if isinstance(self.noise, Laplace) else 2))
        return far if np.isfinite(far) else float("inf")

    def noise_in(self, written: Grads, divided_by: float) -> NDArray[np.float64]:
        """Returns the noise in what a trial of the selftest's subject wrote, over the scale of the noise.

        The value was divided by a public number after the release.
        """
        factors = self._unit_factors()
        parts = [
            (written[name].double() * divided_by * factors.get(name, 1.0) - value.double()).reshape(-1)
            for name, value in self.value.items()
        ]
        return torch.cat(parts).cpu().numpy() / self.scale

    def _unit_factors(self) -> Mapping[str, float]:
        units = self.sensitivity.units if isinstance(self.sensitivity, Sensitivity) else None
        return {} if units is None else units({name: value.numel() for name, value in self.value.items()})


class Trial:
    """One run of the pieces on given lots: what was released at each, and what was written to `.grad`."""

    def __init__(self, pieces: Pieces, records: Sequence[Any], *, seed: int | None = None) -> None:
        self.pieces, self.records = pieces, records
        self.private = pieces.private(seed)
        self.model = self.private.open_for_audit().model
        self.releases: list[list[SeenRelease]] = []
        self.written: list[Grads] = []
        self.choices = 0

    def run(
        self,
        lots: Sequence[Sequence[int]],
        *,
        noisy: bool = False,
        physical_batch: int = 64,
        keep: bool = True,
        handed: Sequence[Sequence[SeenRelease]] | None = None,
    ) -> Trial:
        """Runs a trial of a selftest's subject: asks the query of the given lots, each from its first state.

        Unless `noisy`, the release hands out the value without noise.

        `handed` is what was released in another world at each lot. It is handed out here too, so that the worlds can
        differ only in the values before release.
        """
        private = self.private
        given = GivenLots(tuple(tuple(lot) for lot in lots))

        def tap(value: Grads, sensitivity: Sensitivity | Unproven, noise: Noise) -> Grads | None:
            """Keeps a copy of what the selftest's subject releases in a trial and says what to hand out instead."""
            copied = {name: tensor.detach().clone() for name, tensor in value.items()} if keep else {}
            lot, place = len(self.releases) - 1, len(self.releases[-1])
            self.releases[-1].append(SeenRelease(copied, sensitivity, noise))
            if handed is not None and place < len(handed[lot]):
                return handed[lot][place].value
            return None if noisy else value

        def count_choice(scores: Tensor | Steps, sensitivity: float, epsilon: float) -> float | None:
            self.choices += 1
            return None

        # A tap sees every value before its noise.
        with tap_releases(tap, count_choice):
            drawn = private.draws(
                self.records,
                given,
                len(given.lots),
                expected_batch=EXPECTED,
                physical_batch=physical_batch,
                collate=self.pieces.collate,
            )
            for lot in drawn:
                self.releases.append([])
                # The same question every time. Without noise a query's own coins are the same too, so that worlds are
                # compared at one outcome of them. The neighbour test is made where the pieces draw for themselves.
                private.restart_query(noise=None if noisy else Rng.from_seed(1))
                private.backward(lot)
                grads = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
                self.written.append({name: grad.detach().clone() for name, grad in grads.items()})
        return self


def flatten(value: Grads) -> NDArray[np.float64]:
    """Returns all tensors of a value that a selftest's subject released or wrote, as one vector in float64."""
    if not value:
        return np.zeros(0)
    return torch.cat([tensor.detach().double().reshape(-1) for tensor in value.values()]).cpu().numpy()
