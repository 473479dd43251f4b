"""The private run behind an integration: its query, its ledger, ε while it trains and the claim at the end.

Lightning, the Trainer of Hugging Face, skorch and the models for tables differ in how they ask for batches and where they
log. What makes them private is the same, and is written here once.

Privacy: gradients come from `Private.backward` alone. What was not released is not returned, and evaluating records that
were trained on voids the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sordino.distributed.process_group import SINGLE
from sordino.integrations.launched import is_first_rank, is_in_group
from sordino.integrations.privacy import Privacy
from sordino.integrations.same_records import TrainedOn
from sordino.ledger.claims import Claim
from sordino.ledger.ledger import Ledger, ledger_for
from sordino.lots.loading import count_records
from sordino.lots.lot import Draws, Lot
from sordino.per_sample.protocol import Backend
from sordino.private import Private
from sordino.queries.with_loss import WithLoss
from sordino.refusal import Refusal
from sordino.replay import Replay
from sordino.sampling.sampler import Sampler

_SAME_BITS = "the same script, data and settings, from the run's own last checkpoint"
"""What a run with a key folder promises of its continuation; printed with the claim."""


def require_privacy(given: object) -> Privacy:
    """Returns the privacy settings that an integration was given for its integrated run, or raises TypeError with an
    example of such settings.
    """
    if not isinstance(given, Privacy):
        raise TypeError(f"privacy={given!r}: must be a Privacy, as in Privacy.target(epsilon=3.0, delta=…, bound=…)")
    return given


class IntegratedRun:
    """One run of `Private` on behalf of another library.

    Args:
        model: the user's model.
        loss_fn: gives one loss per record.
        privacy: a query and a δ, or a target ε that the noise is calibrated to.
        dataset: the training records.
        sampler: who is in a lot.
        steps: how many lots the whole training has.
        expected_batch: the public number that sums are divided by; rate × N by default.
        backend: how gradients are measured; the engine by default.
        ledger: where it is charged; by default that of the model's parameters.
        seed: for tests.
        key_folder: where the noise key is kept, apart from the checkpoints, so that a run that continues repeats the bits
            of the undisturbed one. One process then computes with the bits that any number of ranks would have.

    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Tensor],
        privacy: Privacy,
        dataset: Any,
        sampler: Sampler,
        steps: int,
        *,
        expected_batch: float | None = None,
        backend: Backend | None = None,
        ledger: Ledger | None = None,
        seed: int | None = None,
        key_folder: str | Path | None = None,
    ) -> None:
        # The noise is calibrated before the first draw, to the public numbers of the whole training.
        query = privacy.query_for(sampler, count_records(dataset), steps, expected_batch)
        self.ledger = ledger_for(model, ledger)
        # Kept bits are those of the arithmetic for ranks, also where one process makes up the whole run.
        self.has_bits_of_ranks = is_in_group() or key_folder is not None
        self.private = Private(
            model,
            loss_fn,
            query,
            backend=backend,
            ledger=self.ledger,
            seed=seed,
            mesh=SINGLE if self.has_bits_of_ranks and not is_in_group() else None,
            isolate=privacy.isolate,
        )
        self.delta, self.steps, self.releases_loss = privacy.delta, steps, isinstance(query, WithLoss)
        self._key_folder = key_folder
        self._dataset, self._sampler, self._expected_batch = dataset, sampler, expected_batch
        self._trained_on = TrainedOn(dataset)

    def start(self, saved: Mapping[str, Any] | None) -> None:
        """Begins an integrated run, or continues a saved one.

        With a key folder, a run that begins writes its noise key there, and a run that continues reads it there and
        repeats the bits of the undisturbed run. Without one, a run that continues has a new key.

        Args:
            saved: the state of `Private` in a checkpoint; None for a run that begins.

        """
        # With a key folder the saved key comes back, and the run goes on with the bits that it would have had.
        if saved is not None:
            replay = None if self._key_folder is None else Replay(_SAME_BITS, secret=self._key_folder)
            self.private.load_state_dict(saved, replay=replay)
        elif self._key_folder is not None and is_first_rank():  # all ranks have one key
            Path(self._key_folder).mkdir(parents=True, exist_ok=True)
            self.private.save_secret(self._key_folder)

    def draws(self, dataset: Any = None, steps: int | None = None, **more: Any) -> Draws:
        """Returns the lots that an integrated run trains on: all of them, or so many as are left.

        Args:
            dataset: the training records in another form, such as with fewer columns.
            steps: how many lots; all by default.
            **more: goes to `Private.draws`.

        """
        return self.private.draws(
            self._dataset if dataset is None else dataset,
            self._sampler,
            self.steps if steps is None else steps,
            expected_batch=self._expected_batch,
            **more,
        )

    def backward(self, lot: object, cure: str) -> float | None:
        """Writes the noisy gradient of an integrated run's lot to `.grad` and returns the released mean loss, or None
        if none is released.

        Raises:
            Refusal: for a batch that no sampler drew, with `cure` as what to do about it.

        """
        # A batch of the framework's own loader has no draw behind it, so nothing could be charged for it.
        if not isinstance(lot, Lot):
            raise Refusal(
                f"training was given a batch ({type(lot).__name__}) that no sampler drew.\n"
                "The claim is about lots that are drawn at random; other batches have no amplification and no charge.\n"
                f"{cure}"
            )
        self.private.backward(lot)
        return self.private.loss if self.releases_loss else None

    def epsilon(self) -> float | None:
        """Returns ε so far, for a log; None as soon as the run has no guarantee."""
        return self.private.spent_epsilon(self.delta)

    def claim(self) -> Claim:
        """Returns what can truly be said of the training so far."""
        return self.private.claim(self.delta)

    def void_if_trained_on(self, datasets: Iterable[Any], reason: str) -> None:
        """Voids the claim, for this reason, if records that were trained on are about to be evaluated."""
        if any(dataset is not None and self._trained_on.shares_records_with(dataset) for dataset in datasets):
            self.ledger.void(reason)
