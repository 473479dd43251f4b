"""Lot checks: what a run has checked before it draws, sums and claims.

Some things are checked at every lot, others at secret moments:

- every number of the parameters is finite; if training diverged, the run ends, with all its records;
- parameters and buffers changed by nothing but steps on released gradients (the tripwire);
- no module takes statistics of a batch, in the mode it is in now;
- the forward pass wrote to nothing;
- the neighbour test, at the lots of its schedule;
- and how many lots fed no optimizer step, which the claim says.

Privacy: whether training diverged is decided by public values alone: the parameters, which are made of releases, and what
was released. Losses and gradients of single records are private, and one that is not finite is dropped without a word.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.accelerations import accelerate
from sordino.distributed.process_group import Ranks
from sordino.distributed.row_shard import local_rows
from sordino.ledger import claims
from sordino.ledger.ledger import Ledger
from sordino.ledger.lot_counts import LotCounts
from sordino.ledger.tripwire import Tripwire
from sordino.lots.loading import BatchReader, Loader
from sordino.lots.lot_gradients import LotGradients
from sordino.per_sample import batch_structure as batches
from sordino.per_sample import model_checks
from sordino.per_sample.model_inventory import Inventory, find_spectral_vectors, keep_vectors
from sordino.rng.global_generators import preserve_generators
from sordino.rng.streams import Rng
from sordino.runtime_checks.coupling_finding import Broken, CouplingFinding
from sordino.runtime_checks.dataset_view import Exchange
from sordino.runtime_checks.kept_records import KeptRecords
from sordino.runtime_checks.loss_rows_check import RowsOfLoss, find_rows_of_loss
from sordino.runtime_checks.reading_check import ReadingCheck, find_containers_of_records
from sordino.runtime_checks.records_in_memory import RecordsInMemory
from sordino.runtime_checks.test_runner import NeighbourTestRunner


class FindsOnAnyRank(Protocol):
    """Tells a rank what the others found in their parts of a sharded model; `DistributedRun` does."""

    def find_on_any_rank(self, local_finding: str | None) -> str | None:
        """Returns what any rank found, or None."""
        ...


class LotChecks:
    """The checks of one run."""

    def __init__(
        self, model: nn.Module, gradients: LotGradients, ledger: Ledger, stream: Rng, ranks: Ranks | None = None
    ) -> None:
        # The parts of a run that the checks look at.
        self._model, self._gradients, self._ledger = model, gradients, ledger
        self.tripwire = Tripwire(ledger)
        self._neighbour_tests = NeighbourTestRunner(model, gradients, ledger.void, stream, ranks)
        self._reading = ReadingCheck(
            stream.child("reading"),
            ledger.void,
            ledger.declare,
            self._find_rows_of_loss,
            gradients.pass_model.gathered_parameters,
            ranks,
            is_sharded=gradients.pass_model.is_sharded,
        )
        self._in_memory = RecordsInMemory(ledger.disclose, ledger.declare)
        # What is counted for the claim.
        self._section, self._drawn, self._unused, self._drawn_isolated = "", 0, 0, 0
        self._kept = KeptRecords(model)
        self._read: tuple[BatchReader, NDArray[np.int64]] | None = (
            None  # what loads the lot drawn last, and its records
        )
        self.is_isolated = False  # every record is run by itself, so there is nothing to test
        self.is_last_of_loop = False  # no lot will follow the one drawn last, in this call of `draws`
        self._parameters: Mapping[str, nn.Parameter] | None = None  # at the last draw; the ledger knows their number
        self._watch_parameters()
        ledger.watchers.add(self.before_claim)

    def count_lots(self) -> LotCounts:
        """Returns how many lots the lot checks saw drawn, tested and left unused; the last counts as unused too if no
        step used it and the loop is over.
        """
        last = int(not self.tripwire.release_was_used and not self.tripwire.is_looping)
        unused, untested = self._unused + last, 0 if self.is_isolated else self._neighbour_tests.untested
        return LotCounts(self._drawn, self._neighbour_tests.tested, unused, untested, self._drawn_isolated)

    def state_dict(self) -> dict[str, Any]:
        """Returns the counts of the lot checks (lots drawn, tests made) as JSON, for a checkpoint.

        A lot that waits for its step is lost with its gradient, which is not saved.
        """
        unused = self._unused + int(not self.tripwire.release_was_used)
        return {"lots": [self._drawn, unused], **self._neighbour_tests.state_dict()}

    def resume_from(self, state: Mapping[str, Any], stream: Rng, *, replayed: bool) -> None:
        """Continues the lot checks from a loaded state, which has their counts.

        From the first draw on the parameters are right as they are.
        """
        begun = state["page"] is not None  # else it goes on as another run, with lots of its own
        self._drawn, self._unused = state.get("lots", (0, 0)) if begun else (0, 0)
        self._neighbour_tests.resume_from(state if begun else {}, stream, replayed=replayed)
        self._reading.replace_stream(stream.child("reading"))
        self._section = state["page"] or ""
        self.tripwire.release_was_used = True
        if begun:
            self.tripwire.trust()

    def before_draw(self, distributed: FindsOnAnyRank) -> str | None:
        """Makes the lot checks before a draw: returns the name of a parameter that is not finite any more, on any rank,
        or None.

        Parameters are public, so they may be looked at. If all are finite, the claim is voided should one have been
        changed other than by a step on released gradients.
        """
        self._gradients.pass_model.release_full_parameters()
        parameters = self._parameters or dict(self._model.named_parameters())
        name = self._find_not_finite(parameters)
        if self._gradients.pass_model.is_sharded:
            name = distributed.find_on_any_rank(name)
        if name is None:
            self.tripwire.check_parameters(numbers=False)  # `before_backward` compares those
        return name

    def _find_not_finite(self, parameters: Mapping[str, nn.Parameter]) -> str | None:
        """Returns the name of a parameter that is not finite, or None; for a model on a device it reads what the
        tripwire has to compare in the same copy, because the host waits here anyway.
        """
        taken = self.tripwire.take_numbers_to_compare()
        if not taken:
            return first_not_finite(parameters)
        tensors, beside = list(parameters.values()), [t for each in taken for t in (each.expected, each.found)]
        # A model that was moved meanwhile has its parameters elsewhere, and its numbers are read by themselves.
        if any(tensor.device != beside[0].device for tensor in tensors):
            self.tripwire.judge_numbers(taken, torch.cat(beside).tolist())
            return first_not_finite(parameters)
        are_finite, read = read_with_lengths(tensors, beside)
        self.tripwire.judge_numbers(taken, read)
        return None if are_finite else first_not_finite(parameters)

    def note_lot(
        self, section: str, lot: int, load: BatchReader, indices: NDArray[np.int64], n: int, chunk: int
    ) -> None:
        """Tells the lot checks that a lot was drawn and charged; training runs `chunk` records of it at once."""
        # A release that fed no step is counted; the claim mentions it.
        self._unused += int(not self.tripwire.release_was_used)
        self._section, self._drawn, self.tripwire.release_was_used = section, self._drawn + 1, False
        self._drawn_isolated += int(self.is_isolated)
        # Records that are run by themselves cannot be coupled, so such lots are counted and not tested.
        if not self.is_isolated:
            self._neighbour_tests.note_lot(lot, load, indices, n, chunk, last=self.is_last_of_loop)
            self._reading.note_lot(lot, load, indices)
            self._read = load, indices
        self.tripwire.is_looping = True
        # The cost of the noise's end grows with the number of coordinates.
        if self._parameters is not self._gradients.pass_model.named:
            self._parameters = self._gradients.pass_model.named
            self._ledger.record_coordinates(sum(p.numel() for p in self._parameters.values()))
        self._record_counts()

    def skip_test_of_lot(self) -> None:
        """Leaves the lot drawn last without a neighbour test, for trials whose claim is void."""
        self._neighbour_tests.forget_lot()

    def before_backward(self, *, lot_was_drawn: bool) -> None:
        """Makes the lot checks of the model before a backward pass; `lot_was_drawn` says that there is a lot which may
        be tested.
        """
        self._gradients.pass_model.release_full_parameters()
        self.tripwire.check_parameters(may_wait=False)
        inventory = Inventory(self._model)
        model_checks.refuse_batch_statistics(self._model, inventory.modules)
        model_checks.refuse_parameter_hooks(self._gradients.pass_model.named)
        self._gradients.pass_model.refresh_inventory(inventory)
        self.tripwire.drop_gradients()  # the last gradients' memory is free for the next sum
        if lot_was_drawn:
            self._reading.before_backward(step_was_taken=self.tripwire.steps > 0)
            self._neighbour_tests.before_backward(inventory, step_was_taken=self.tripwire.steps > 0)
            self._record_counts()

    def after_query(self) -> None:
        """Finishes the lot checks after a query's passes: makes the rest of a neighbour test, and voids the claim if a
        pass wrote to the model.
        """
        self.tripwire.accept_restored()  # a query may have moved the model and put it back
        self._neighbour_tests.after_pass()
        if self._gradients.written is not None:
            self._ledger.void(str(CouplingFinding(Broken.WRITTEN, self._gradients.written)))
        self._gradients.pass_model.finish_passes()
        self._watch_parameters()

    def before_claim(self) -> None:
        """Makes the lot checks that a claim waits for: looks at the parameters once more, and tests the last lot."""
        self._gradients.pass_model.refresh_inventory()
        self._watch_parameters()
        self.tripwire.check_parameters()
        over = self.is_last_of_loop or not self.tripwire.is_looping
        self._reading.before_claim(over=over)
        self._neighbour_tests.before_claim(over=over)
        self._name_kept_records()
        self._in_memory.look_for_changes()
        self._record_counts()

    def before_log(self) -> None:
        """Makes the lot checks before ε goes into a log: looks at the parameters, and tests the last lot if none was
        tested for long.
        """
        self._gradients.pass_model.refresh_inventory()
        self._watch_parameters()
        self.tripwire.check_parameters(numbers=False)
        self._neighbour_tests.before_log()
        self._record_counts()

    def _find_rows_of_loss(self, load: Loader, records: list[int], seed: int) -> RowsOfLoss:
        """Tests, as one of the lot checks, whether the losses of some records are made of other rows of the dataset."""
        with preserve_generators():
            containers = find_containers_of_records(load, records, seed)
            self._in_memory.look(
                [container for container, _ in containers],
                self._model,
                self._gradients.loss_fn,
                is_first=self.tripwire.steps == 0,
            )
            if not records:
                return RowsOfLoss.OWN
            # They are read from a copy of the dataset, so that nothing is counted or kept in the original. Records that
            # cannot be loaded by themselves are left to the neighbour test.
            try:
                read = load.as_if_unread()(np.asarray(records, dtype=np.int64))
                batch = batches.move_to(read, self._gradients.pass_model.device)
            except Exception:
                return RowsOfLoss.OWN

            def losses(loss_fn: Any, batch: Any) -> Tensor:
                found: Tensor = batches.call_loss(loss_fn, self._model, batch)
                return found

            loss_fn = self._gradients.loss_fn
            roots = [self._model, loss_fn, *load.list_user_code()]
            others = Exchange.all_but(len(load.dataset), records, np.random.default_rng(seed))
            with keep_vectors(find_spectral_vectors(list(self._model.modules()))):
                return find_rows_of_loss(losses, loss_fn, batch, containers, others, seed, roots)

    def _name_kept_records(self) -> None:
        """Names, as one of the lot checks, attributes of modules that hold values of records: they leave with the
        model, and no noise is on them.
        """
        if self._read is None:
            return
        # Once for a lot: parameters that are divided among ranks are gathered for it, and later claims may be asked on one.
        (load, indices), self._read = self._read, None
        probe_indices = np.unique(indices)[:8]

        def losses(batch: Any) -> object:
            return batches.call_loss(self._gradients.loss_for(batch), self._model, batch)

        kept: list[tuple[str, str]] = []
        # Two small passes over other records show which attributes depend on them.
        with (
            self._gradients.pass_model.gathered_parameters(),
            preserve_generators(),
        ):  # ranks with no record of the lot take part in this too
            if len(probe_indices) >= 2:
                kept = list(
                    self._kept.find(
                        losses, lambda: batches.move_to(load(probe_indices), self._gradients.pass_model.device)
                    )
                )
        for module, attribute in kept:
            self._ledger.disclose(claims.name_kept_records(f"{module}.{attribute}" if module else attribute))

    def begin_watching(self) -> None:
        """Begins the lot checks' watch over the parameters: trusts them as they are before the first draw.

        The model may have been moved to a device since `Private` was created, which can make new parameter objects.
        """
        self._gradients.pass_model.refresh_inventory()
        self._watch_parameters()
        self.tripwire.begin()

    def _watch_parameters(self) -> None:
        self.tripwire.watch(self._gradients.pass_model.named, self._gradients.pass_model.buffers)

    def _record_counts(self) -> None:
        if self._drawn:
            self._ledger.count(self._section, self.count_lots())


@dataclass(frozen=True)
class Diverged:
    """At which step, counted from 0, and what was not finite after it.

    >>> print(Diverged(17, "parameter '0.weight'"))
    training diverged at step 17: parameter '0.weight' is not finite
    """

    step: int
    what: str

    def __str__(self) -> str:
        return f"training diverged at step {self.step}: {self.what} is not finite"


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Returns whether every number of these tensors is finite, as far as this rank has them."""
    return are_all_finite([local_rows(tensor) for tensor in tensors])


@accelerate
def are_all_finite(tensors: Sequence[Tensor]) -> bool:
    """Returns whether the checks of a lot find every number of these tensors finite, in one pass, because a sum that is
    finite has finite terms.
    """
    with torch.no_grad():
        # On a device the lengths of all tensors are one launch, and the host waits once.
        if tensors and all(not t.is_cpu and t.device == tensors[0].device and t.is_floating_point() for t in tensors):
            return all(map(math.isfinite, torch.stack(torch._foreach_norm(list(tensors))).tolist()))
        sums = [tensor.sum() for tensor in tensors]
        all_alike = bool(sums) and len({(t.device, t.dtype) for t in sums}) == 1  # a device is waited for once
        return math.isfinite(float(torch.stack(sums).double().sum()) if all_alike else sum(map(float, sums)))


def read_with_lengths(tensors: Sequence[Tensor], beside: Sequence[Tensor]) -> tuple[bool, list[float]]:
    """Returns whether the checks of a lot find all tensors on a device finite, and some vectors beside them, by one
    copy that the host waits for.

    A length that is not finite may come of numbers too large to be squared: `first_not_finite` tells.
    """
    with torch.no_grad():
        lengths = torch._foreach_norm([local_rows(tensor) for tensor in tensors])
        read: list[float] = torch.cat([length.view(1) for length in lengths] + list(beside)).tolist()
    return all(map(math.isfinite, read[: len(lengths)])), read[len(lengths) :]


def first_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Returns the name of the first tensor in which the checks of a lot find a number that is not finite, or None."""
    if all_finite(list(tensors.values())):
        return None
    return next(
        (name for name, tensor in tensors.items() if not local_rows(tensor).isfinite().all()), None
    )  # sums may overflow
