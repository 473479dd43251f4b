"""Distributed training: coordinates the ranks of one run.

    torchrun --nproc-per-node 4 train.py        # the loop of one process, unchanged

The first rank's parameters and key are copied to all. When `draws` is called the ranks compare everything that the
claim depends on and stop if anything differs (`distributed/agreement.py`). From then on every rank draws the same lots,
computes its own chunks of them (`distributed/shared_lot.py`), and after every step has the same parameters, ledger and
claim.

The bits are those of any other number of ranks, one included, given the same number of threads in each process and the
same kind of processor: torch splits sums by threads. One process without a group is faster, and rounds otherwise: it
chooses formulas by a stopwatch, takes larger chunks and adds up in floating point. `Private(mesh="single")` gives it
the bits of ranks.

Privacy: the sum over all ranks is what one record moves by C, so the proof is that of one process. Noise is one draw
for the whole sum, each coordinate made by one rank (`release/release.py`): never a share of the variance by each, of
which a rank that is lost would leave less than was charged.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino import environment, validate
from sordino.distributed.agreement import collect_and_agree
from sordino.distributed.agreement_digest import digest_of, sums_of_words
from sordino.distributed.claim_facts import ClaimFacts
from sordino.distributed.fully_sharded import wrap_if_sharded
from sordino.distributed.layer_by_layer import is_absent
from sordino.distributed.process_group import Ranks, ranks_of
from sordino.distributed.row_shard import is_shard
from sordino.distributed.shared_lot import Disagreement, RankedLot, check_in_step, meet_at_the_end
from sordino.ledger import claims
from sordino.ledger.ledger import Ledger
from sordino.lots import data_digest
from sordino.lots.data_owners import CuttingBySite, Sites, assign_sites
from sordino.lots.first_records import choose_batch_size
from sordino.lots.loading import CuttingInTurn, Loader, LotBatches
from sordino.lots.lot import DrawRequest, Lot
from sordino.lots.lot_gradients import LotGradients
from sordino.lots.privacy_units import UnitLoader
from sordino.per_sample.captured_backend import Captured
from sordino.per_sample.performance_options import PerformanceOptions
from sordino.per_sample.protocol import Backend
from sordino.reduced_precision import read_matmul_precision
from sordino.refusal import Refusal
from sordino.release.exact_sums import MOST_RECORDS
from sordino.rng.streams import Rng
from sordino.runtime_checks.coupling_finding import Broken, CouplingFinding


class RunFacts(NamedTuple):
    """What the ranks compare about a run: it must be the same on all of them."""

    query: Any
    query_state: Any
    steps: int
    streams: tuple[Rng, Rng, Rng]  # root, noise and forward; only digests of their keys leave a rank
    ledger: Ledger


class DistributedRun:
    """Keeps one rank in step with the others; does nothing where there is only one process."""

    def __init__(self, mesh: Any, model: nn.Module) -> None:
        self._model, self.sharded, self._comparisons = model, wrap_if_sharded(model), 0
        # A sharded model brings the mesh that it is divided over, unless the user gave another.
        ranks = ranks_of(self.sharded.mesh if mesh is None and self.sharded is not None else mesh)
        self.ranks = ranks
        self._digest_key = secrets.token_bytes(32)  # of the digests that ranks compare records by
        # All ranks begin with the first rank's parameters, and share a key that only they know.
        if ranks is not None:
            self._digest_key = bytes(ranks.broadcast_from_first(self._digest_key))
            ranks.copy_first(self._replicated_tensors())
            if self.sharded is not None:
                self.sharded.check_ranks(ranks)

    def choose_backend(self, given: Backend | None) -> Backend:
        """Returns the backend of a distributed run: the given one, or the engine, which chooses formulas by shapes
        alone when there are several ranks.

        A stopwatch could choose another formula on another rank, and formulas round differently.
        """
        # A single process may time formulas. Several ranks may not: other formulas round differently, and their digests
        # would differ.
        if self.ranks is None:
            return Captured() if given is None else given
        if isinstance(given, Captured) and given.options.measure:
            raise Refusal(
                "backend=Captured() measures which formula is fastest.\n"
                "Ranks that choose apart round differently, and their parameters would drift apart.\n"
                "Leave it out, or give Captured(PerformanceOptions(measure=False))."
            )
        return Captured(PerformanceOptions(measure=False)) if given is None else given

    def create_root_stream(self, seed: int | None, ledger: Ledger) -> Rng:
        """Returns the root stream of a distributed run, with the same key on all ranks; the claim names a seed as not
        covered.
        """
        if seed is not None:
            ledger.disclose(claims.SEED)
            return Rng.from_seed(validate.count("seed", seed, least=0))
        return self.create_stream()

    def create_stream(self) -> Rng:
        """Returns a random stream that nobody can repeat, the same on all ranks."""
        return Rng.from_entropy() if self.ranks is None else self.ranks.new_rng()

    def refuse_device_of_another_kind(self) -> None:
        """Raises a `Refusal` if the ranks of a distributed run cannot send each other sums of the model's kind of device,
        neither directly nor by a copy on the host.
        """
        ranks, p = self.ranks, next(self._model.parameters(), None)
        if ranks is None or ranks.size == 1 or p is None or p.device.type in ranks.carried_kinds:
            return
        # A whole model is trained over the host. The rows of a sharded one are gathered by collectives of their device.
        if "cpu" in ranks.carried_kinds and self.sharded is None:
            return
        carried = " and ".join(sorted(ranks.carried_kinds)) or "no device"
        raise Refusal(
            f"the model is on {p.device}, and the process group carries tensors of {carried} only.\n"
            "Ranks send each other sums of the model's gradients.\n"
            f"Call init_process_group with a backend for {p.device.type} (nccl for CUDA), or move the model."
        )

    def agree_on_request(
        self, make_request: Callable[[], DrawRequest], describe_run: Callable[[], RunFacts], settings: Mapping[str, Any]
    ) -> DrawRequest:
        """Returns what a call of `draws` in a distributed run asks for, once all ranks are found to ask the same of the
        same records.

        Args:
            make_request: checks the arguments of the call and makes the request; what it raises here stops the
                other ranks too.
            describe_run: returns the run as it is once the request is made; its query, random streams and ledger are
                compared.
            settings: everything else that the claim depends on, by name.

        Raises:
            Disagreement: on every rank and before anything is drawn, with the names of what differs.

        """
        # A single process has nobody to agree with.
        ranks = self.ranks
        if ranks is None or ranks.size == 1:
            return self._divide_among_ranks(make_request(), {})
        seconds = 0.0  # that one record takes to be read
        sites: dict[int, bytes] = {}

        def collect() -> tuple[DrawRequest, ClaimFacts]:
            """Makes the request on this rank of a distributed run and collects every fact that the claim depends on."""
            nonlocal seconds
            request, facts = make_request(), ClaimFacts(b"", ranks.rank)
            self._add_run_facts(facts, describe_run(), settings)
            _add_request_facts(facts, request)
            seconds = self._add_data_facts(facts, request, sites)
            return request, facts

        # Compare the facts on all ranks; a difference is refused on each of them before anything is drawn.
        request = collect_and_agree(ranks, collect)
        self._compare_more_records(request, seconds)
        return self._divide_among_ranks(request, sites)

    def _add_run_facts(self, facts: ClaimFacts, run: RunFacts, settings: Mapping[str, Any]) -> None:
        """Adds facts about this process and the distributed run before its next draws, for the ranks to compare."""
        for name, value in _rounding_environment().items():
            facts.add(name, value)
        # Keys are compared by digest, so that they never leave a rank.
        keys = [digest_of(stream.state_dict()) for stream in run.streams]
        facts.add("random streams (the seed, or a loaded state)", keys)
        facts.add("model", self._model)
        # Kinds of devices round differently, so that ranks on several of them would drift apart.
        facts.add("kind of the model's device", sorted({p.device.type for p in self._model.parameters()}))
        facts.add("query", run.query)
        for name, value in settings.items():
            facts.add(name, value)
        facts.add("steps before", run.steps)
        facts.add("state of the query", digest_of(run.query_state))
        facts.add("ledger", _guaranteed_history(run.ledger))

    def _add_data_facts(self, facts: ClaimFacts, request: DrawRequest, sites: dict[int, bytes]) -> float:
        """Adds digests of the records for the ranks of a distributed run to compare, and returns the seconds that
        reading one took; 0 where rows are compared.

        Sites are data that differ on purpose. Their digests go to `sites`, to be compared among ranks that hold the
        same.
        """
        # Each owner knows only its own sites, so digests of records are exchanged by site.
        if isinstance(request.dataset, Sites):
            facts.add("lengths of the sites", list(request.dataset.lengths))
            for site, held in request.dataset.held.items():
                facts_of_site = ClaimFacts(b"")
                data_digest.add_records(facts_of_site, self._digest_key, Loader(held, None), len(held))
                sites[site] = facts_of_site.digest()
            return 0.0
        # Otherwise all ranks must hold the same records, which are compared by digest.
        load = request.load.load if isinstance(request.load, UnitLoader) else request.load
        if not isinstance(load, Loader):
            return 0.0
        return data_digest.add_records(facts, self._digest_key, load, len(request.dataset))

    def _compare_more_records(self, request: DrawRequest, seconds: float) -> None:
        """Compares between the ranks of a distributed run as many records, of a dataset with code of its own, as the
        first rank can read in the given time.
        """
        assert self.ranks is not None, "one process has nobody to compare with"
        load = request.load.load if isinstance(request.load, UnitLoader) else request.load
        # The first rank decides for all, because another rank may read faster.
        count = int(
            self.ranks.broadcast_from_first(
                data_digest.count_reads_in_time(seconds, len(request.dataset)) if seconds else 0
            )
        )
        if count <= data_digest.FIRST_READS or not isinstance(load, Loader):
            return

        def collect() -> tuple[None, ClaimFacts]:
            """Collects digests of records that all ranks of a distributed run choose alike."""
            facts = ClaimFacts(b"")
            chosen = data_digest.choose_records(self._digest_key, len(request.dataset), count)
            facts.add("records of the dataset", b"".join(data_digest.digest_reads(self._digest_key, load, chosen)))
            return None, facts

        collect_and_agree(self.ranks, collect)

    def _divide_among_ranks(self, request: DrawRequest, sites: Mapping[int, bytes]) -> DrawRequest:
        """Returns the request of a distributed run with its lots cut among the ranks: in turn, or by where the records
        are.
        """
        ranks, data = self.ranks or Ranks(), request.dataset
        if not isinstance(data, Sites):
            return replace(request, cutting=CuttingInTurn(ranks.rank, ranks.size))
        # Data owners hold different records. A site that several ranks hold must be the same on all of them.
        from_ranks = ranks.gather_objects((sites, list(data.held), request.copies))
        for site in range(len(data.lengths)):
            if len({digests[site] for digests, _, _ in from_ranks if site in digests}) > 1:
                raise Disagreement(
                    f"the ranks do not agree, so nothing was drawn or released. Site {site} is held by several "
                    "ranks, and "
                    "its records are not the same on all of them.\nGive each site the same records wherever it is held."
                )
        # Assign each site to one rank; the number of copies of a record is the largest that any rank found.
        owner_of_site = assign_sites([held for _, held, _ in from_ranks], len(data.lengths))
        copies = max(copies for _, _, copies in from_ranks)
        return replace(request, copies=copies, cutting=CuttingBySite(data.ends, owner_of_site, ranks.rank, ranks.size))

    def choose_physical_batch(
        self, gradients: LotGradients, probe_batch: Any, expected: float, *, by_shapes: bool = False
    ) -> int:
        """Returns how many records are processed at once in a distributed run. With ranks it is the same for any number
        of them.
        """
        chosen = choose_batch_size(gradients, probe_batch, expected, by_shapes=by_shapes or self.ranks is not None)
        return (
            chosen if self.ranks is None else int(self.ranks.broadcast_from_first(chosen))
        )  # at sites records may be longer

    def share_lot(
        self, run: RunFacts, lot: Lot, records: NDArray[np.int64] | None, gradients: LotGradients
    ) -> RankedLot:
        """Returns the lot as this rank takes part in it, in a distributed run with several ranks."""
        assert self.ranks is not None, "one process has nobody to share a lot with"
        # Only a lot of our own samplers is known on all ranks.
        if not isinstance(lot.loads, LotBatches) or records is None:
            raise Refusal(
                "a batch that no sampler drew cannot be divided among ranks.\n"
                "Ranks divide a lot by the numbers of its records.\n"
                "Use draws(), or one process."
            )
        # Sums are whole numbers of 64 bits; so many records at the bound fill them.
        if len(records) >= MOST_RECORDS:
            raise Refusal(
                f"a lot of {MOST_RECORDS} records or more was drawn.\n"
                "The sum of so many may not fit into 64 bits.\n"
                "Draw smaller lots."
            )
        # The digest covers everything that must be equal on all ranks before their sums are added.
        public_facts = (lot.step, lot.expected_batch, lot.most, lot.loads.chunks, records)
        return RankedLot(
            self.ranks,
            lot.loads.numbers,
            lot.loads.chunks,
            lot.loads.most_chunks,
            digest_of(*public_facts, *self._facts_to_compare(run)),
            run.streams[2].split(),
            partial(_void_if_written, gradients, run.ledger),
            run.ledger.void,
            None if self.sharded is None else gradients.pass_model.named,
            None if self.sharded is None or self.sharded.layers is None else self.sharded.layers.rounds,
        )

    def compare_at_end(self, run: RunFacts) -> None:
        """Compares all ranks of a distributed run after the last lot of a call of `draws`."""
        assert self.ranks is not None, "one process has nobody to compare with"
        facts = (*self._facts_to_compare(run), _guaranteed_history(run.ledger))
        meet_at_the_end(self.ranks, facts, lambda: run.ledger.voided, run.ledger.void)

    def _facts_to_compare(self, run: RunFacts) -> Sequence[Any]:
        """Returns what must be the same on all ranks of a distributed run; of the noise keys it holds digests."""
        # Streams are compared by digests: the keys themselves never leave a rank.
        keys = [digest_of(stream.state_dict()) for stream in run.streams]
        query = ClaimFacts(b"")
        query.add("query", run.query)
        # Each rank makes the correlated noise of its own coordinates, so all must be at the same step of the phase.
        phase = run.streams[1].phase
        return (
            run.steps,
            keys,
            None if phase is None else (phase.step, phase.steps),
            run.query_state,
            run.ledger.length,
            sums_of_words(self._replicated_tensors()),
            query.digest(),
        )

    def _replicated_tensors(self) -> list[Tensor]:
        """Returns the parameters and buffers that every rank of a distributed run holds in full; in the passes over a
        lot that is the whole model.
        """
        held = (*self._model.parameters(), *self._model.buffers())
        return [t for t in held if not is_shard(t) and not is_absent(t)]

    def find_on_any_rank(self, local_finding: str | None) -> str | None:
        """Returns what any rank of a distributed run found in its part of a sharded model; of another model all ranks
        find the same.
        """
        if self.sharded is None or self.ranks is None:
            return local_finding
        self._comparisons += 1
        if not check_in_step(self.ranks, "a look at the numbers", self._comparisons, local_finding is not None):
            return None
        return next((str(each) for each in self.ranks.gather_objects(local_finding) if each is not None), None)


def _void_if_written(gradients: LotGradients, ledger: Ledger) -> str | None:
    """Returns why a distributed run has no guarantee any more, or None as far as this rank knows."""
    if ledger.voided is None and gradients.written is not None:
        ledger.void(str(CouplingFinding(Broken.WRITTEN, gradients.written)))
    return ledger.voided


def _add_request_facts(facts: ClaimFacts, request: DrawRequest) -> None:
    """Adds the facts about the requested draws of a distributed run, except for the records, for the ranks to compare."""
    # Whatever changes who is drawn, or by how much a record counts, is compared.
    facts.add("sampler", request.sampler)
    facts.add("steps", request.steps)
    facts.add("number of records", request.n)
    facts.add("expected_batch", request.expected)
    facts.add("collate", request.collate)
    facts.add("unit", (request.unit, request.declared))
    if isinstance(request.load, UnitLoader):
        facts.add("records of the units", request.load.members)
    if not isinstance(request.dataset, Sites):
        facts.add("copies of one record", request.copies)


def _guaranteed_history(ledger: Ledger) -> dict[str, Any]:
    """Returns what a distributed run did to the data so far, as far as it has a guarantee, for the ranks to compare.

    What voids a claim on one rank is told to the others at the next sum, and what is disclosed is said by each for
    itself.
    """
    state = ledger.state_dict()
    # Entries that void a claim may be on one rank only, the one that noticed; the guaranteed part must be equal.
    entries: list[list[Any]] = []
    for event, count, *more in state["entries"]:
        if "NonPrivate" in str(event):
            continue
        # What voided a claim may stand between two equal entries, on the rank that noticed it alone.
        if entries and entries[-1][0] == event and entries[-1][2:] == more:
            entries[-1][1] += count
        else:
            entries.append([event, count, *more])
    return {"entries": entries, "unit": state["unit"], "coordinates": state["coordinates"]}


def _rounding_environment() -> dict[str, Any]:
    """Returns what rounding on this rank of a distributed run depends on: versions, kernels, threads and switches of
    torch.

    The model of the processor is left out: machines of several kinds may train together if their instructions are the
    same.
    """
    # Equal versions, kernels and switches, because the ranks' sums must agree to the last bit.
    known = {
        f"environment: {name}": value
        for name, value in environment.current_environment().items()
        if name != "processor"
    }
    accelerator = torch.accelerator.current_accelerator()
    kinds = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
    switches = {
        "default dtype": torch.get_default_dtype(),
        "float32 matmul precision": read_matmul_precision(),
        "autocast": [torch.is_autocast_enabled(kind) for kind in kinds],
        "autocast dtype": [torch.get_autocast_dtype(kind) for kind in kinds],
        "mkldnn": torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
    }
    return {**known, **{f"torch: {name}": value for name, value in switches.items()}}
