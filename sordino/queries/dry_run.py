"""Computes what a run would cost, by running its own query on no data.

The event of a plan is therefore that of the real run.
"""

from __future__ import annotations

from itertools import islice

from sordino import validate
from sordino.clipping.clipping_rule import State
from sordino.events import Event
from sordino.ledger.ledger import Ledger
from sordino.per_sample.materialised import Materialised
from sordino.per_sample.protocol import Backend, Chunked, estimate_kind
from sordino.queries.noisy_sum import NO_NORMS, Query
from sordino.release.sensitivity import Estimate
from sordino.rng.streams import Rng
from sordino.sampling.record_access import indistinguishable_records
from sordino.sampling.sampler import Sampler, draw_lots


def no_gradients(estimate: Estimate) -> Chunked:
    """Returns the gradients of no records in no parameters, at any point."""
    empty = (Materialised({}, NO_NORMS.squared.sum(dim=1), estimate),)
    return Chunked(lambda: empty, lambda _: empty, estimate=estimate)


def dry_step(query: Query, state: State, expected_batch: float, backend: Backend | None = None) -> tuple[Event, State]:
    """Returns the event of one lot, and the state after it if the lot were empty and the noise fixed."""
    released, state = query(no_gradients(estimate_kind(backend)), state, expected_batch, Rng(bytes(32)))
    return released.event, state


def dry_run(
    query: Query,
    sampler: Sampler,
    dataset_size: int,
    steps: int,
    expected_batch: float | None = None,
    backend: Backend | None = None,
) -> Event:
    """Returns the event of a dry run of `steps` lots, which touches no record; the backend matters only where its norms
    are estimates.

    Args:
        query: what would be asked of every lot.
        sampler: how lots would be drawn.
        dataset_size: how many records there are.
        steps: how many lots.
        expected_batch: the public divisor; rate × N by default.
        backend: how gradients would be measured; `JL` is charged for its estimates.

    Returns:
        The event that such a run would cost.

    Privacy:
        Nothing is released and no data is touched.

    Examples:
        >>> from sordino import Flat, Gaussian, NoisySum, Poisson
        >>> dry_run(NoisySum(Flat(1.0), Gaussian(1.1)), Poisson(0.01), dataset_size=1000, steps=5)
        Repeat(event=Poisson(rate=0.01, event=Gaussian(multiplier=1.1)), count=5)

    """
    # Check everything before the first draw, as a real run does.
    validate.query("query", query)
    validate.sampler("sampler", sampler)
    n = validate.count("dataset_size", dataset_size)
    expected = (
        sampler.expected_size(n) if expected_batch is None else validate.positive("expected_batch", expected_batch)
    )
    # Make every draw of the run on records that are all alike, and charge it in a ledger of its own.
    ledger, state = Ledger(), query.init()
    for draw in islice(
        draw_lots(sampler, indistinguishable_records(n), Rng(bytes(32)), 0), validate.count("steps", steps)
    ):
        event, state = dry_step(query, state, expected, backend)
        # Close the draw before what the next one cost is entered, or that would be amplified by the wrong draw.
        ledger.close()
        for spent in draw.spent:
            ledger.release(spent)  # no draw is open: of the whole data
        ledger.open(draw.amplify_in(steps), lambda event=event: event, _pass_name(draw.cover), draw.bins)  # type: ignore[misc]
    return ledger.event()


def _pass_name(cover: int | None) -> str | None:
    return None if cover is None else str(cover)
