"""A run that several ranks make together: one key, one model, one draw, each rank its chunks of every lot.

    torchrun --nproc-per-node 4 train.py        # the loop of one process, unchanged

The first rank's parameters and key are copied to all. From then on every rank draws the same lots, computes its own chunks
(`ranks/ranked_lot.py`), and has the same parameters, ledger and claim after every step, bit by bit, as any other number of
ranks would have.

Privacy: the sum over all ranks is what one record moves by C, so the proof is that of one process. Noise is one draw for
the whole sum, each coordinate made by one rank (`door/release.py`): never a share of the variance by each, of which a rank
that is lost would leave less than was charged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino import validate
from sordino.door import claims
from sordino.door.grid import MOST_RECORDS
from sordino.door.ledger import Ledger
from sordino.gradients.captured.engine import Captured
from sordino.gradients.captured.options import PerformanceOptions
from sordino.gradients.protocol import Backend
from sordino.lots.cutting import InTurn
from sordino.lots.loading import Batches
from sordino.lots.lot import Lot
from sordino.lots.lot_gradients import LotGradients
from sordino.lots.request import Request
from sordino.lots.sites import BySite, Sites, owners
from sordino.progress import Progress
from sordino.random.rng import Rng
from sordino.ranks.digest import digest, of_all
from sordino.ranks.fully_sharded import fully_sharded
from sordino.ranks.group import Ranks, ranks_of
from sordino.ranks.layer_by_layer import is_absent
from sordino.ranks.ranked_lot import RankedLot, in_step, meet_at_the_end
from sordino.ranks.shard import is_shard
from sordino.refusal import Refusal
from sordino.standing.finding import Broken, Finding


class Together:
    """What one of several ranks does so that all do the same; nothing where there are none."""

    def __init__(self, mesh: Any, model: nn.Module) -> None:
        self._model, self.sharded, self._looks = model, fully_sharded(model), 0
        ranks = ranks_of(self.sharded.mesh if mesh is None and self.sharded is not None else mesh)
        self.ranks = ranks
        if ranks is not None:
            ranks.copy_first(self._tensors())
            if self.sharded is not None:
                self.sharded.join(ranks)

    def backend(self, given: Backend | None) -> Backend:
        """The engine: by shapes alone where a stopwatch could choose another formula on another rank."""
        if self.ranks is None:
            return Captured() if given is None else given
        if isinstance(given, Captured) and given.options.measure:
            raise Refusal(
                "backend=Captured() measures which formula is fastest, and ranks that choose apart round differently; "
                "leave it out, or give Captured(PerformanceOptions(measure=False))"
            )
        return Captured(PerformanceOptions(measure=False)) if given is None else given

    def root(self, seed: int | None, ledger: Ledger) -> Rng:
        """The key of the run, the same on all ranks; of a seed the claim will say that it does not cover it."""
        if seed is not None:
            ledger.disclose(claims.SEED)
            return Rng.from_seed(validate.count("seed", seed, least=0))
        return self.fresh()

    def fresh(self) -> Rng:
        """A stream nobody can repeat, the same on all ranks."""
        return Rng.from_entropy() if self.ranks is None else self.ranks.fresh()

    def arranged(self, request: Request) -> Request:
        """The request with its lots cut among the ranks: in turn, or by where the records are."""
        ranks, data = self.ranks or Ranks(), request.dataset
        if not isinstance(data, Sites):
            return replace(request, cutting=InTurn(ranks.rank, ranks.size))
        told = ranks.gathered((data.lengths, list(data.held), request.copies))
        if len({lengths for lengths, _, _ in told}) > 1:
            raise Refusal("the ranks were given sites of other lengths: need the same list on each")
        whose = owners([held for _, held, _ in told], len(data.lengths))
        copies = max(copies for _, _, copies in told)
        return replace(request, copies=copies, cutting=BySite(data.ends, whose, ranks.rank, ranks.size))

    def physical_batch(self, gradients: LotGradients, few: Any, expected: float) -> int:
        """How many records are processed at once; where there are ranks the same for any number of them."""
        found = gradients.physical_batch(few, expected, by_shapes=self.ranks is not None)
        return found if self.ranks is None else int(self.ranks.of_first(found))  # at sites records may be longer

    def ranked(
        self, run: Progress, lot: Lot, records: NDArray[np.int64] | None, gradients: LotGradients
    ) -> RankedLot | None:
        """The lot as this rank takes part in it; None where there are no ranks."""
        if self.ranks is None:
            return None
        if not isinstance(lot.loads, Batches) or records is None:
            raise Refusal("a batch that no sampler drew cannot be divided among ranks; use draws(), or one process")
        if len(records) >= MOST_RECORDS:
            raise Refusal(
                f"a lot of {MOST_RECORDS} records or more: their sum may not fit into 64 bits; draw smaller ones"
            )
        shape = (lot.step, lot.expected_batch, lot.most, lot.loads.chunks, records)
        return RankedLot(
            self.ranks,
            lot.loads.numbers,
            lot.loads.chunks,
            lot.loads.most_chunks,
            digest(*shape, *self._facts(run)),
            run.forward.split(),
            partial(_noticed, gradients, run.ledger),
            run.ledger.void,
            None if self.sharded is None else gradients.named,
            None if self.sharded is None or self.sharded.layers is None else self.sharded.layers.rounds,
        )

    def over(self, run: Progress) -> bool:
        """Is training over because a parameter, on some rank, is not finite any more?"""
        if self.sharded is not None:
            self.sharded.rest()
        return run.over(self._model, self.anywhere)

    def ended(self, run: Progress) -> bool:
        """After the last lot of a call of `draws`: all ranks have come to the same. Are there any?"""
        if self.ranks is not None:
            meet_at_the_end(self.ranks, self._facts(run), lambda: run.ledger.voided, run.ledger.void)
        return self.ranks is not None

    def _facts(self, run: Progress) -> Sequence[Any]:
        """What must be the same on all ranks; of the noise key a digest."""
        keys = [digest(stream.state_dict()) for stream in (run.root, run.noise, run.forward)]
        return run.steps, keys, run.state, run.ledger.length, of_all(self._tensors())

    def _tensors(self) -> list[Tensor]:
        """What every rank has whole: in the passes over a lot all of the model."""
        held = (*self._model.parameters(), *self._model.buffers())
        return [t for t in held if not is_shard(t) and not is_absent(t)]

    def anywhere(self, found: str | None) -> str | None:
        """What some rank found in its own part of a model that is divided; of another model all find the same."""
        if self.sharded is None or self.ranks is None:
            return found
        self._looks += 1
        if not in_step(self.ranks, "a look at the numbers", self._looks, found is not None):
            return None
        return next((str(each) for each in self.ranks.gathered(found) if each is not None), None)


def _noticed(gradients: LotGradients, ledger: Ledger) -> str | None:
    """Why there is no guarantee any more, if this rank knows."""
    if ledger.voided is None and gradients.written is not None:
        ledger.void(str(Finding(Broken.WRITTEN, gradients.written)))
    return ledger.voided
