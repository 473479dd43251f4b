"""Compiled passes beside the eager engine's: GPT-2 and ResNet-18, inductor, CPU.

Timed are norms and a weighted sum of one batch, from the forward pass on, interleaved in one process, CPU time on one
thread, median over rounds; beside it, how far the compiled norms and sum are from the eager ones. With --whole-steps
also private steps on padded lots beside plain training. There both private runs have one seed and the same records, the
compiled one was given `torch.compile(model)`, and the parameters, events and ε of the two are compared.

    python -m bench.compile [--models GPT-2,ResNet-18] [--rounds 7] [--whole-steps] [--out FILE]

Writes bench/results/compile.json; a model that was measured before and is not named keeps its row. Set
TORCHINDUCTOR_CACHE_DIR to keep what was compiled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import sordino as sd
from bench.step import processor
from sordino.nn import resnet18
from sordino.per_sample import Captured
from sordino.per_sample.compiled_models import find_compiler

RESULTS = Path(__file__).parent / "results"
RECORDS, WARM_UP = 256, 4
"""Records of the dataset; steps before the first that counts, in which most tests and comparisons are made."""


@dataclass(frozen=True)
class Case:
    """A model with its loss, records and the largest lot."""

    model: Callable[[], nn.Module]
    loss: Callable[..., Tensor]
    data: Callable[[int], tuple[Tensor, ...]]
    rows: int
    about: str
    whole_steps: bool = True
    """Whether whole private steps are timed too; three copies of a large model would not fit in 3 GB."""


def gpt2(layers: int, width: int, heads: int, words: int, tokens: int) -> nn.Module:
    """Returns transformers' GPT-2 of a size, without dropout, untrained."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=words,
        n_positions=tokens,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def next_word_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Returns each text's mean loss of the next word."""
    positions = torch.arange(ids.shape[1]).expand(len(ids), -1)
    logits = model(input_ids=ids, position_ids=positions).logits[:, :-1]
    return nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def class_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns each image's cross-entropy."""
    return nn.functional.cross_entropy(model(x), y, reduction="none")


CASES = {
    "GPT-2 of 2 layers": Case(
        lambda: gpt2(2, 256, 4, 5000, 64),
        next_word_loss,
        lambda n: (torch.randint(5000, (n, 64)),),
        16,
        "width 256, 5,000 words, 64 tokens",
    ),
    "GPT-2": Case(
        lambda: gpt2(12, 768, 12, 50257, 64),
        next_word_loss,
        lambda n: (torch.randint(50257, (n, 64)),),
        4,
        "124 million parameters, 64 tokens",
        whole_steps=False,
    ),
    "ResNet-18": Case(
        resnet18,
        class_loss,
        lambda n: (torch.randn(n, 3, 32, 32), torch.randint(10, (n,))),
        16,
        "group norm, 32 × 32 images",
    ),
}


def private_run(case: Case, *, compiled: bool) -> tuple[nn.Module, sd.Private, Callable[[], None]]:
    """Returns a model, its private run on padded lots, and one step of it: draw, clip, add noise, step."""
    torch.manual_seed(0)
    model = case.model()
    data = TensorDataset(*case.data(RECORDS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
    private = sd.Private(torch.compile(model) if compiled else model, case.loss, query, seed=0)
    expected = 0.8 * case.rows
    sampler = sd.TruncatedPoisson(expected / RECORDS, max_batch=case.rows)
    lots = private.draws(data, sampler, steps=10_000, expected_batch=expected, pad_lots=True, physical_batch=case.rows)

    def step() -> None:
        private.backward(next(lots))
        optimizer.step()

    return model, private, step


def plain_step(case: Case) -> Callable[[], None]:
    """Returns one step of plain training on as many records."""
    torch.manual_seed(0)
    model, data = case.model(), case.data(RECORDS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        chosen = torch.randint(RECORDS, (case.rows,))
        optimizer.zero_grad()
        case.loss(model, *[column[chosen] for column in data]).mean().backward()
        optimizer.step()

    return step


def measure_passes(case: Case, rounds: int) -> dict[str, Any]:
    """Returns the milliseconds of norms and a weighted sum of one full batch, without noise and optimizer, and how far
    compiled ones are from eager ones.
    """
    torch.manual_seed(0)
    model = case.model()
    batch, weights = case.data(case.rows), torch.rand(case.rows, 1)
    compiler = find_compiler(torch.compile(model))
    assert compiler is not None
    engines = {"eager": Captured(), "compiled": Captured()}
    engines["compiled"].compile_passes(model, case.rows, compiler)

    def run(engine: Captured) -> tuple[Tensor, dict[str, Tensor]]:
        found = engine.per_sample(model, case.loss, batch)
        return found.norms().total(), dict(found.weighted_sum(weights))

    begun = time.process_time()
    ours, our_sum = run(engines["compiled"])
    first = time.process_time() - begun
    theirs, their_sum = run(engines["eager"])
    off = sum(float((our_sum[name] - value).double().square().sum()) for name, value in their_sum.items())
    length = sum(float(value.double().square().sum()) for value in their_sum.values())
    for _ in range(4):  # most comparisons with an eager pass are over then
        run(engines["compiled"])
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            begun = time.process_time()
            run(engine)
            times[name].append(1000 * (time.process_time() - begun))
    return {
        "first_compiled_pass_s": round(first, 1),
        "ms": {name: round(statistics.median(t), 1) for name, t in times.items()},
        "norms_relative_difference": float(((ours - theirs).abs() / theirs).max()),
        "sum_relative_difference": (off / length) ** 0.5,
    }


def measure_steps(case: Case, rounds: int) -> dict[str, Any]:
    """Returns the times of one model's private and plain steps, and how the compiled run differs from the eager one."""
    eager_model, eager, eager_step = private_run(case, compiled=False)
    compiled_model, compiled, compiled_step = private_run(case, compiled=True)
    steps = {"plain": plain_step(case), "eager": eager_step, "compiled": compiled_step}
    # Learning, compiling and the tests of the first lots come before what is timed.
    for _ in range(WARM_UP):
        eager_step()
        compiled_step()
    steps["plain"]()
    times: dict[str, list[float]] = {each: [] for each in steps}
    for _ in range(rounds):
        for each, step in steps.items():
            begun = time.process_time()
            step()
            times[each].append(1000 * (time.process_time() - begun))
    apart = sum(
        float((ours - theirs).detach().double().square().sum())
        for ours, theirs in zip(compiled_model.parameters(), eager_model.parameters(), strict=True)
    )
    length = sum(float(p.detach().double().square().sum()) for p in eager_model.parameters())
    ratio = statistics.median(c / e for c, e in zip(times["compiled"], times["eager"], strict=True))
    return {
        "ms": {each: round(statistics.median(t), 1) for each, t in times.items()},
        "compiled / eager": round(ratio, 2),
        "parameters_relative_difference": (apart / length) ** 0.5,
        "same_event": eager.event == compiled.event,
        "same_epsilon": eager.spent_epsilon(1e-5) == compiled.spent_epsilon(1e-5),
    }


def main() -> None:
    """Measures the models and writes the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--whole-steps", action="store_true", help="time whole private and plain steps too")
    parser.add_argument("--out", type=Path, default=RESULTS / "compile.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = {row["model"]: row for row in json.loads(args.out.read_text())["rows"]} if args.out.exists() else {}
    found = {"processor": processor(), "torch": torch.__version__, "rounds": args.rounds}
    for name in args.models.split(","):
        case = CASES[name]
        known[name] = {"model": name, "about": case.about, "rows": case.rows}
        # Written after every part: whole steps of a large model take minutes.
        for key, part in (("norms_and_sum", measure_passes), ("steps", measure_steps)):
            if part is measure_passes or (args.whole_steps and case.whole_steps):
                known[name][key] = part(case, args.rounds)
                args.out.write_text(json.dumps({**found, "rows": list(known.values())}, indent=2) + "\n")


if __name__ == "__main__":
    main()
