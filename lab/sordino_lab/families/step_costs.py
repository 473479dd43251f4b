"""What a step costs: time and memory by ways to take per-sample norms (source 004), and the price of sorting (001)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from sordino.app.report.panels import Panel, Series
from sordino.clipping.flat import Flat
from sordino.nn import cifar_net, mnist_cnn, mnist_net
from sordino.per_sample import JL, Backend, Captured, Loop, Vmap
from sordino.private import Private
from sordino.queries.microbatches import ByCoin, Microbatches
from sordino.queries.noisy_sum import NoisySum, Query
from sordino.release.noise import Gaussian
from sordino.sampling.full import Full
from sordino.sampling.length_based import Threshold
from sordino.sampling.poisson import Poisson
from sordino.sampling.sampler import Sampler
from sordino.sampling.sorted import Sorted
from sordino_lab.experiment import Compared, Figure, Finding, Outcome
from sordino_lab.training_curves import mark_published
from sordino_lab.workbench import Workbench

SORTED_BATCH = 200
_SOURCE_LOTS = 250
"""Lots of 200 records in CIFAR-10."""
_PRINTED_PRICE = (50.0, 75.0)
"""By which factors the time of an epoch rose (001:505)."""
_RANKED_STEPS = 3
"""How many steps with exact ranking are timed."""


def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns the cross-entropy of every record."""
    return F.cross_entropy(model(x), y, reduction="none")


def time_steps(data: TensorDataset, sampler: Sampler, steps: int) -> float:
    """Returns what the first steps of a training through `Private` cost, in CPU seconds."""
    # Every sampler starts from the same parameters, so that the passes differ in their lots alone.
    torch.manual_seed(0)
    model = cifar_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = Private(model, loss_fn, NoisySum(Flat(1.0), Gaussian(1.1)), seed=0)
    # CPU time is measured, not time on the clock, which other processes on the machine would lengthen.
    begun = time.process_time()
    for lot in private.draws(data, sampler, steps):
        private.backward(lot)
        optimizer.step()
    return time.process_time() - begun


def price_exact_ranking(data: TensorDataset, lots: int, plain: float) -> float:
    """Returns what a pass with exact ranking costs, over a pass without that takes `plain` CPU seconds.

    Before each lot the lengths of all records that are left in the pass are computed, so the first steps rank the most
    records. These are timed, and the rest of the pass is charged by the number of its lengths: timing all of it would take
    half an hour at 250 lots.
    """
    steps = min(_RANKED_STEPS, lots)
    ranking = time_steps(data, Sorted.top_k(SORTED_BATCH), steps) - plain * steps / lots
    # Step k of a pass ranks what the k lots before it have left.
    left = [SORTED_BATCH * (lots - k) for k in range(lots)]
    return 1 + ranking / sum(left[:steps]) * sum(left) / plain


def draw_sorting_price(bench: Workbench) -> Outcome:
    """Draws what sorting costs on the thesis' network and lot: the time of a pass with exact ranking, a pool of
    candidates and coins over a DP-SGD pass, against its lots.
    """
    counts = bench.pick((2,), (5, 10), (10, 20, 40), (60, 120, _SOURCE_LOTS))
    ratios: dict[str, list[float]] = {
        "top_k, exact": [],
        "top_k, pool of 4 lots": [],
        "threshold, refreshed each pass": [],
    }
    for lots in counts:
        # What a pass costs does not depend on what the images show.
        rng = torch.Generator().manual_seed(lots)
        data = TensorDataset(
            torch.randn(lots * SORTED_BATCH, 3, 32, 32, generator=rng),
            torch.randint(0, 10, (lots * SORTED_BATCH,), generator=rng),
        )
        # The first pass compiles and warms up; it is not timed.
        time_steps(data, Poisson(1 / lots), min(2, lots))
        plain = time_steps(data, Poisson(1 / lots), lots)
        threshold = Threshold(1.0, low=0.5 / lots, high=min(1.0, 2 / lots), refresh=lots)
        ratios["top_k, exact"].append(price_exact_ranking(data, lots, plain))
        ratios["top_k, pool of 4 lots"].append(time_steps(data, Sorted.top_k(SORTED_BATCH, pool=4), lots) / plain)
        ratios["threshold, refreshed each pass"].append(time_steps(data, threshold, lots) / plain)
    exact = ratios["top_k, exact"]
    # The price depends on the number of lots, so only that of the source is compared.
    is_source_lots = counts[-1] == _SOURCE_LOTS
    compared = [Compared("exact ranking, 250 lots", exact[-1], sum(_PRINTED_PRICE) / 2, "001:505, middle of 50 to 75")]
    by_rank = "lots by rank"
    methods = (("sorted", by_rank), ("similar-length", by_rank), ("threshold", ""))
    # The source prints a range, which is drawn as a star in its middle with a bar.
    least, most = _PRINTED_PRICE
    star = replace(
        mark_published("published, lots of 200", [(_SOURCE_LOTS, (least + most) / 2)], "sorted", by_rank),
        low=[least],
        high=[most],
    )
    return Outcome(
        [
            Panel(
                "a pass of Conv_CIFAR_Net with sorting, over one without",
                "lots in a pass",
                "times a DP-SGD pass",
                [
                    *(
                        Series(name, counts, row, method=method, variant=k, hollow=reason)
                        for k, ((name, row), (method, reason)) in enumerate(zip(ratios.items(), methods, strict=True))
                    ),
                    *([star] if is_source_lots else []),
                ],
                ylog=True,
            )
        ],
        compared if is_source_lots else [],
        [
            Finding(
                "at batch size 200 the running time of an epoch rose by a factor of 50 to 75",
                "001:505",
                bench.judge(_PRINTED_PRICE[0] <= exact[-1] <= _PRINTED_PRICE[1]),
                f"{exact[-1]:.1f} times at {counts[-1]} lots",
            )
        ],
        [
            f"Of a pass with exact ranking the first {_RANKED_STEPS} steps are timed, and the others are charged by the "
            "number of records that they rank.",
            "A pool of candidates, or coins that a record's own length weighs, cost a few passes whatever the number "
            "of lots. Of these only the coins (Threshold) have a guarantee.",
        ],
        numbers={"lots": list(counts), **ratios},
    )


TIMED_LOT = 64


def dp_sgd() -> Query:
    """Returns the query of DP-SGD."""
    return NoisySum(Flat(1.0), Gaussian(1.1))


TIMED_WAYS: dict[str, tuple[str, Callable[[], Query], Callable[[], Backend]]] = {
    "book-keeping\n(ours)": ("captured", dp_sgd, Captured),
    "torch.func": ("dpsgd", dp_sgd, Vmap),
    "one by one": ("sgd", dp_sgd, Loop),
    "JL, r = 50": ("jl", dp_sgd, lambda: JL(50)),
    "micro-\nbatches of 8": (
        "microbatches",
        lambda: Microbatches(Flat(1.0), Gaussian(1.1), ByCoin(TIMED_LOT // 8)),
        Captured,
    ),
}
"""Name: colour, query, backend."""


def time_step(make: Callable[[], nn.Module], query: Query, backend: Backend, steps: int) -> float:
    """Returns what a step costs: its median CPU time, in milliseconds."""
    torch.manual_seed(0)
    model = make()
    # Random images, because the time of a step does not depend on what is in them.
    data = TensorDataset(torch.rand(TIMED_LOT, 1, 28, 28), torch.randint(0, 10, (TIMED_LOT,)))
    private = Private(model, loss_fn, query, backend=backend, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # The first step plans the model and is not counted.
    times = []
    for lot in private.draws(data, Full(), steps + 1):
        begun = time.process_time()
        private.backward(lot)
        optimizer.step()
        times.append(time.process_time() - begun)
    return 1e3 * statistics.median(times[1:])


def draw_speed(bench: Workbench) -> Outcome:
    """Draws what a step of the MNIST CNN costs by backend: its time and the bytes that a record takes."""
    steps = bench.pick(1, 6, 30, 100)
    make = mnist_net if bench.is_tiny else mnist_cnn
    some = dict(list(TIMED_WAYS.items())[:2]) if bench.is_tiny else TIMED_WAYS
    # Every way takes the same lot of the same model.
    # One thread, because the CPU time of several includes what they wait for one another.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = {name: time_step(make, query(), backend(), steps) for name, (_, query, backend) in some.items()}
    finally:
        torch.set_num_threads(threads)
    model = make()
    # What the backend itself plans with, so that nothing else in the process counts.
    memory = {name: backend().sample_bytes(model) / 1e6 for name, (_, _, backend) in some.items()}
    ticks = tuple(some)
    # DP-SGD of the slides computes all gradients; book-keeping, which needs none, is said beside it.
    ours, written_out = times["book-keeping\n(ours)"], times["torch.func"]
    jl = times.get("JL, r = 50", ours)
    return Outcome(
        [
            Panel(
                "a step of the MNIST CNN, lot of 64",
                "way",
                "CPU time of a step, ms",
                [Series("", [k], [times[name]], method=some[name][0], points=True) for k, name in enumerate(ticks)],
                xticks=ticks,
                ylog=True,
            ),
            Panel(
                "memory that a record needs, as the planner counts it",
                "way",
                "megabytes per record",
                [
                    Series("", [k], [max(memory[name], 1e-6)], method=some[name][0], points=True)
                    for k, name in enumerate(ticks)
                ],
                xticks=ticks,
                ylog=True,
            ),
        ],
        findings=[
            Finding(
                "DP-SGD-JL results in faster training time",
                "004:359",
                bench.judge(jl < written_out),
                f"{jl:.1f} ms by JL with 50 projections, {ours:.1f} ms by exact norms from book-keeping, "
                f"{times.get('torch.func', 0):.1f} ms with gradients written out",
            ),
            Finding(
                "and a smaller memory footprint",
                "004:359",
                bench.judge(memory.get("JL, r = 50", 0) < memory["torch.func"]),
                f"{memory.get('JL, r = 50', 0):.3f} MB a record by JL, "
                f"{memory['book-keeping' + chr(10) + '(ours)']:.3f} MB by book-keeping, {memory['torch.func']:.3f} MB "
                "written out",
            ),
        ],
        notes=[
            "JL was compared with gradients written out, which it beats in memory. Its norms are estimates: the "
            "price of those that come out too small is in the claim, and fewer than 20 projections are refused.",
            f"Times are the median of {steps} steps on one thread of a processor, for lots of {TIMED_LOT}; the source "
            "trains for 500 iterations.",
        ],
        numbers={"milliseconds": {name.replace(chr(10), " "): value for name, value in times.items()}},
    )


FIGURES = {
    "sorting-price": Figure(draw_sorting_price, measures_time=True),
    "speed-jl": Figure(draw_speed, measures_time=True),
}
