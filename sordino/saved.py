"""Saving, loading and copying a run.

Privacy: noise is never in two places. A loaded state and a copy go on with a key of their own; the ledger goes with
both. The key is in no state dict: `save_secret` writes it to a file of its own, for those who want to replay a run bit
by bit.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

from torch import nn

from sordino.accounting import Accountant
from sordino.distributed_run import DistributedRun
from sordino.ledger.ledger import Ledger
from sordino.lots.lot_gradients import LotGradients
from sordino.noise_key import write_secret
from sordino.per_sample.protocol import Backend, LossFn
from sordino.progress import Progress
from sordino.queries.noisy_sum import Query
from sordino.replay import Replay
from sordino.runtime_checks import LotChecks

NOTHING_LEFT_SINCE = "nothing of the lots drawn after the loaded state was saved has left the process that drew them"
"""The user's word for what no saved state can know."""


class StatesAndCopies:
    """The methods of a run that save, load and copy it; `Private` inherits them."""

    _model: nn.Module
    _loss_fn: LossFn
    _query: Query
    _distributed: DistributedRun
    _backend: Backend
    _lot_gradients: LotGradients
    _accountant: Accountant
    _ledger: Ledger
    _progress: Progress
    _checks: LotChecks
    _isolate: bool

    def state_dict(self) -> dict[str, Any]:
        """Returns ledger and position, as JSON but for tensors of a query's state. It does not hold the noise key.

        It can go wherever the model goes: everything in it is public, or released, or encrypted under the run's key. Of
        several `draws` in turn, the last can be gone on with.
        """
        return {**self._progress.state_dict(), **self._checks.state_dict()}

    def secret_state(self) -> dict[str, Any]:
        """Returns the run's noise key as JSON. Whoever reads it can subtract the noise: it is as secret as the data.

        It is needed for a `Replay` and for nothing else. States that are saved from here on can be replayed, because
        from here on nothing is measured: formulas and batch sizes are chosen by shapes alone, which a replay repeats.
        """
        return self._progress.secret_state()

    def save_secret(self, folder: str | Path) -> Path:
        """Writes the run's noise key to `SECRET-noise-key-do-not-share.json` in a folder, and returns the file's path.

        Only its owner can read the file, and the folder's `.gitignore` names it. Call this once, before the first state
        is saved that may be replayed, and again after a state was loaded without a `Replay`, which makes a new key.
        Delete the file when the run is over.
        """
        return write_secret(folder, self.secret_state())

    def load_state_dict(self, state: Mapping[str, Any], *, replay: Replay | None = None) -> None:
        """Continues a saved run: ledger, steps and position of the next `draws` with the same sampler and dataset.

        The noise and the draws are new, from a new key: what the run released after it was saved, here or elsewhere,
        used those of the old one. So a pass that was begun is charged once more, for its rest, and a sampler that
        remembers records asks them anew. Lots that were drawn after the state was saved are not in it; the claim says
        that it rests on nothing of them having left. With a `Replay` the key is that of its `secret`, and the run goes
        on bit by bit. Model and optimizer are the user's own, loaded by their own methods.
        """
        self._load_state(state, replay)
        if replay is None and self._progress.steps:
            self._ledger.declare(NOTHING_LEFT_SINCE)

    def _load_state(self, state: Mapping[str, Any], replay: Replay | None) -> None:
        """Loads a state where it is known what was drawn since: nothing, or what a write-ahead ledger says."""
        self._progress.load_state_dict(state, replay)
        self._checks.resume_from(state, self._progress.root.child("standing test"), replayed=replay is not None)

    def renew(self, *, draws: bool) -> None:
        """Replaces the noise by noise that was never used before, for a run that goes on otherwise than it did.

        With `draws` the lots to come are new too. Without it they are the ones that the loaded state would have drawn,
        so that the rest of a pass over the data still belongs to that pass.
        """
        self._progress.renew_key(draws=draws)

    def __copy__(self) -> Self:
        """Returns another run on the same model, in the same ledger, with noise of its own."""
        return self._create_twin(self._model)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Returns another run on a copy of the model; it writes in the same ledger, and its noise is its own."""
        return self._create_twin(copy.deepcopy(self._model, memo))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Private cannot be pickled, its noise must not be in two places: save its state_dict()")

    def _create_twin(self, model: nn.Module) -> Self:
        """Returns a second run on `model` that shares the ledger and continues this run's position with a new key."""
        query, penalty = self._query, self._lot_gradients.penalty
        ledger, backend, mesh = self._ledger, self._backend, self._distributed.ranks
        create: Any = type(self)
        options: dict[str, Any] = {"ledger": ledger, "mesh": mesh, "isolate": self._isolate}
        twin: Self = create(model, self._loss_fn, query, penalty=penalty, backend=backend, **options)
        twin._accountant = self._accountant
        # The twin takes a ledger section of its own, and its query state must not be shared.
        state = self.state_dict()
        twin._load_state({**state, "page": None, "state": copy.deepcopy(state["state"])}, None)
        return twin
