"""Isolated records: each is loaded, collated and run by itself, so that none can see another.

    for each record of the lot:
        seed all generators by the record's own number
        read it from a dataset that holds no other record, and collate it alone
        run the loss on that batch of one, and differentiate it
        put back the state of the model, the loss, collate and the dataset

Privacy: a record's gradient is a function of the record, of the parameters and of the random numbers of its own, by
construction and not by a test. So one record more or fewer leaves every other gradient as it was, bit by bit, and moves
the sum by its own clipped gradient. What remains the user's word is in the claim: what code keeps in places that cannot
be put back, such as files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.lots.collate import join_records
from sordino.lots.frozen_state import FrozenState
from sordino.lots.loading import Alter, Loader
from sordino.lots.lot import DrawRequest
from sordino.lots.one_record import dataset_of_one_record
from sordino.per_sample import model_checks
from sordino.per_sample.batch_structure import batch_size, move_to, to_plain_containers
from sordino.per_sample.batch_structure import call_loss as losses_of
from sordino.per_sample.materialised import Materialised, make_empty
from sordino.per_sample.model_inventory import Inventory, find_spectral_vectors, keep_vectors
from sordino.per_sample.protocol import Backend, LossFn, PerSample, trainable_parameters
from sordino.refusal import Refusal
from sordino.release.vectors import accumulation_dtype
from sordino.rng.global_generators import preserve_generators, seed_all
from sordino.sampling.sampler import Informed

WORD_KEEPS_NOTHING = (
    "your word that your code keeps nothing of a record in files, other processes or modules that it imports by name"
)
WORD_READING = (
    "your word that each record is read from its own row alone: the dataset holds no rows that could be taken away"
)


def isolated_backend(given: Backend | None, *, several_ranks: bool) -> Isolated:
    """Returns the backend of a run with isolated records, by which each record is computed by itself.

    Raises:
        Refusal: another backend was asked for, or several ranks train together.

    """
    if given is not None and not isinstance(given, Isolated):
        raise Refusal(
            f"isolate=True and backend={given!r} were given.\n"
            "Isolation runs every record by itself, in its own way.\n"
            "Leave one of the two out."
        )
    if several_ranks:
        raise Refusal(
            "isolate=True was given on several ranks.\n"
            "Isolation is for one process.\n"
            "Leave it out, or train without torch.distributed."
        )
    return Isolated()


def isolated_request(request: DrawRequest, declare: Callable[[str], None]) -> DrawRequest:
    """Returns a request of draws whose records are isolated: they are read one by one.

    Raises:
        Refusal: the request needs several records at once.

    """
    # What would bring records together before they are run is refused.
    if not isinstance(request.load, Loader):
        raise Refusal(
            "isolate=True was given beside `unit`.\nIsolation is for single records.\nLeave one of the two out."
        )
    if request.workers:
        raise Refusal(
            f"workers={request.workers} was given with isolate=True.\n"
            "Each record is loaded when it is run.\n"
            "Use workers=0."
        )
    if isinstance(request.sampler, Informed):
        raise Refusal(
            f"isolate=True: {type(request.sampler).__name__} asks all records before it draws.\n"
            "Isolated records are looked at one by one.\n"
            "Use a sampler that does not ask, such as Poisson."
        )
    # What cannot be put back, such as files, remains the user's word, and the claim says so.
    declare(WORD_KEEPS_NOTHING)
    return replace(request, load=IsolatedLoader(request.load, declare))


@dataclass(frozen=True, eq=False)
class UnreadPart:
    """A part of a lot by the numbers of its records, none of which has been read."""

    indices: NDArray[np.int64]
    loader: IsolatedLoader


class IsolatedLoader:
    """Reads records one by one, each from a dataset that holds no other."""

    def __init__(self, loader: Loader, declare: Callable[[str], None]) -> None:
        self._loader, self.dataset, self._declare = loader, loader.dataset, declare
        self.join = join_records if loader.collate is None else loader.collate

    def as_if_unread(self) -> IsolatedLoader:
        """Returns itself: nothing is ever kept of what was read."""
        return self

    def to_single_records(self, indices: NDArray[np.int64]) -> tuple[Loader, NDArray[np.int64]]:
        """Returns the loader of single records, and the indices, which are those of records already."""
        return self._loader, indices

    def list_user_code(self) -> list[Any]:
        """Returns what a user wrote that is run to make a batch."""
        return self._loader.list_user_code()

    def __call__(
        self, indices: NDArray[np.int64], before: Callable[[int], None] | None = None, alter: Alter | None = None
    ) -> UnreadPart:
        """Returns the part of a lot; its records are read when their gradients are computed."""
        return UnreadPart(indices, self)

    def load_alone(self, index: int) -> Any:
        """Returns the batch of one isolated record, read from a dataset that holds no other and collated by itself."""
        source, place = dataset_of_one_record(self.dataset, index), 0
        # Where rows cannot be taken away, the record is read from the whole dataset, and the claim says so.
        if source is None:
            self._declare(WORD_READING)
            source, place = self.dataset, index
        fetch = getattr(source, "__getitems__", None)
        records = [source[place]] if fetch is None else fetch([place])
        batch = to_plain_containers(self.join(records))
        # Several rows from one record would each be clipped on their own.
        if batch_size(batch) != 1:
            raise Refusal(
                "isolate=True: collate made another number of rows than one of one record.\n"
                "A record must become one row, so that it is known whose loss it is.\n"
                "Return one row per record."
            )
        return batch


@dataclass(frozen=True)
class Isolated:
    """The backend of `Private(isolate=True)`."""

    seed: int | None = field(default=None, repr=False)
    """The seed of one pass over a lot; with the number of a record it gives the record's own seed."""

    def for_pass(self, inventory: Inventory) -> Isolated:
        """Returns a backend for one pass, with a seed that all parts of the lot share."""
        return replace(self, seed=int(torch.randint(2**62, ())))

    def per_sample(self, model: nn.Module, loss_fn: LossFn, batch: Any) -> PerSample:
        """Returns the gradients of the isolated records of a part of a lot, each computed by itself."""
        model_checks.refuse_batch_statistics(model)
        if not isinstance(batch, UnreadPart):
            raise Refusal(
                "isolate=True: a batch was given in place of a lot.\n"
                "Records are run one by one.\n"
                "Use the lots of private.draws."
            )
        # An empty lot has gradients of no records, to which noise is added as to any other.
        parameters = trainable_parameters(model)
        if not len(batch.indices):
            return make_empty(parameters)
        # One seed for the whole pass, from which each record's own seed is derived.
        seed = int(torch.randint(2**62, ())) if self.seed is None else self.seed
        device = next(iter(parameters.values())).device
        loader, vectors = batch.loader, find_spectral_vectors(model.modules())
        # Everything that the user's code can reach is noted before the first record.
        state = FrozenState(model, (loss_fn, loader.join), loader.dataset, len(loader.dataset))
        rows = {name: _zero_rows(p, len(batch.indices)) for name, p in parameters.items()}
        losses: list[Tensor] = []
        with preserve_generators(), keep_vectors(vectors):
            for place, index in enumerate(batch.indices.tolist()):
                # The record's random numbers depend on its own number, not on who else is in the lot.
                seed_all(_seed_of(seed, index))
                try:
                    # Plain autograd on one record: nothing of the engine could mix records either.
                    with torch.enable_grad():
                        loss = model_checks.require_one_loss(
                            losses_of(loss_fn, model, move_to(loader.load_alone(index), device))
                        )
                    if loss.requires_grad:
                        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
                        for (name, _), gradient in zip(parameters.items(), gradients, strict=True):
                            if gradient is not None:
                                rows[name][place] = gradient.to_dense()
                    losses.append(loss.detach().clone())
                    del loss
                except Refusal:
                    raise
                except Exception as error:
                    raise Refusal(
                        f"isolate=True: your code raised {type(error).__name__} on a record that was run by itself.\n"
                        "Isolation gives dataset, collate and loss one record at a time.\n"
                        "Make them take one record, or leave isolate out."
                    ) from error
                finally:
                    # Also after an error: nothing of this record may reach the next.
                    state.put_back()
        return Materialised(rows, torch.stack(losses))

    def sample_bytes(self, model: nn.Module) -> int:
        """Returns the bytes of one record's gradient, which is kept until the lot is summed."""
        return sum(p.numel() * max(4, p.element_size()) for p in trainable_parameters(model).values())


def _zero_rows(p: nn.Parameter, rows: int) -> Tensor:
    return torch.zeros((rows, *p.shape), dtype=accumulation_dtype(p.dtype), device=p.device)


def _seed_of(seed: int, index: int) -> int:
    """Returns the seed of one record in one pass: it does not depend on who else is in the lot."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=7).digest(), "little")
