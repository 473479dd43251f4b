"""Step time and memory of DP-SGD by four ways to take per-sample norms, of JL and of microbatches, on the MNIST CNN.

source     004, Speed of DP-SGD vs. DP-SGD-JL (a), lines 349–365
setting    MNIST CNN, step time and memory: DP-SGD, DP-SGD-JL, microbatches, the book-keeping engine
reduced    a lot of 64, few steps
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from sordino.app.report.panels import Panel, Series
from sordino.clipping.flat import Flat
from sordino.nn import mnist_cnn, mnist_net
from sordino.per_sample import JL, Backend, Captured, Loop, Vmap
from sordino.private import Private
from sordino.queries.microbatches import ByCoin, Microbatches
from sordino.queries.noisy_sum import NoisySum, Query
from sordino.release.noise import Gaussian
from sordino.sampling.full import Full
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.workbench import Workbench

LOT = 64


def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy per record."""
    return F.cross_entropy(model(x), y, reduction="none")


def plain() -> Query:
    """DP-SGD's."""
    return NoisySum(Flat(1.0), Gaussian(1.1))


WAYS: dict[str, tuple[str, Callable[[], Query], Callable[[], Backend]]] = {
    "book-keeping\n(ours)": ("captured", plain, Captured),
    "torch.func": ("dpsgd", plain, Vmap),
    "one by one": ("sgd", plain, Loop),
    "JL, r = 50": ("jl", plain, lambda: JL(50)),
    "micro-\nbatches of 8": (
        "microbatches",
        lambda: Microbatches(Flat(1.0), Gaussian(1.1), ByCoin(LOT // 8)),
        Captured,
    ),
}
"""Name: colour, query, backend."""


def milliseconds(make: Callable[[], nn.Module], query: Query, backend: Backend, steps: int) -> float:
    """CPU time of a step, the median."""
    torch.manual_seed(0)
    model = make()
    data = TensorDataset(torch.rand(LOT, 1, 28, 28), torch.randint(0, 10, (LOT,)))
    private = Private(model, loss_fn, query, backend=backend, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    times = []
    for lot in private.draws(data, Full(), steps + 1):
        begun = time.process_time()
        private.backward(lot)
        optimizer.step()
        times.append(time.process_time() - begun)
    return 1e3 * statistics.median(times[1:])


def run(bench: Workbench) -> Outcome:
    """Time of a step, and bytes that a record takes."""
    steps = bench.pick(1, 6, 30, 100)
    make = mnist_net if bench.size.value == "tiny" else mnist_cnn
    some = dict(list(WAYS.items())[:2]) if bench.size.value == "tiny" else WAYS
    times = {name: milliseconds(make, query(), backend(), steps) for name, (_, query, backend) in some.items()}
    model = make()
    memory = {name: backend().sample_bytes(model) / 1e6 for name, (_, _, backend) in some.items()}
    ticks = tuple(some)
    ours = times["book-keeping\n(ours)"]
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
                "memory that a record needs, as planned with",
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
                bench.judged(jl < ours),
                f"{jl:.1f} ms by JL with 50 projections, {ours:.1f} ms by exact norms from book-keeping, "
                f"{times.get('torch.func', 0):.1f} ms with gradients written out",
            ),
            Finding(
                "and a smaller memory footprint",
                "004:359",
                bench.judged(memory.get("JL, r = 50", 0) < memory["torch.func"]),
                f"{memory.get('JL, r = 50', 0):.3f} MB a record by JL, "
                f"{memory['book-keeping' + chr(10) + '(ours)']:.3f} MB by book-keeping, {memory['torch.func']:.3f} MB "
                "written out",
            ),
        ],
        notes=[
            "JL was compared with gradients written out, which it beats in memory. Its norms are estimates: the price "
            "of those that "
            "come out too small is in the claim, and fewer than 20 projections are refused."
        ],
        numbers={"milliseconds": {name.replace(chr(10), " "): value for name, value in times.items()}},
    )


EXPERIMENT = Experiment(
    id="speed-jl",
    source="004",
    figure="Speed of DP-SGD vs. DP-SGD-JL (a)",
    lines="349–365",
    title="Step time and memory",
    shows="estimating norms by JL projections is no faster than exact norms by book-keeping",
    setting="MNIST CNN, step time and memory: DP-SGD, DP-SGD-JL, microbatches, the book-keeping engine",
    reduced="a lot of 64, few steps",
    nouns=("JL", "Captured", "Vmap", "Microbatches"),
    terms="",
    seconds=25,
    run=run,
)
