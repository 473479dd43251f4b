"""How often the runtime checks err: honest runs that lose their claim, attacks that keep one.

    python -m bench.honesty alarms [--runs 2000]             honest scripts of many kinds, most of 100 lots, some of 1,000
    python -m bench.honesty attacks [--seeds 20] [--lots 30,100]   the attacks beyond those that were reported
    python -m bench.honesty show

Runs are made one after the other on one thread and written to bench/results/honesty_alarms.json and
honesty_attacks.json as they end, so that the command can be stopped and started again at any time: it goes on where it
was. A result is kept with the digest of the checks' source; after a change of the source the runs are made anew.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from bench.step import processor
from tests.honesty.attacks import OWN
from tests.honesty.breach import breach
from tests.honesty.honest import HONEST
from tests.honesty.script import Case, outcome

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
LOTS, LONG, EVERY = 100, 1000, 25
"""Lots of an honest run, of a long one, and how many runs of a kind come to one long run."""
FIRST_SEED = 10_000
"""Seeds of these runs; the tests use smaller ones."""

KINDS = (
    "linear layers in chunks",
    "convolutions and group norm",
    "embedding and lstm",
    "a transformer with a padding mask and dropout",
    "masked mean over padding",
    "token losses over each records own tokens",
    "activation checkpointing with dropout",
    "diffusion",
    "a variational autoencoder with binary cross entropy",
    "a binary classifier with a sigmoid",
    "a poisson likelihood",
    "ids stored as floats",
    "a loss with asserts",
    "a masked language model with a random collator",
    "a masked language model with a random collator and dropout",
    "a masked language model with words shuffled by python",
    "left padding with a mask and dropout",
    "bfloat16 with a padding mask",
    "autocast in the loss with a padding mask",
    "texts as strings with a mask",
    "a dataset that augments by numpy",
    "a dataset with a generator of its own",
    "a weight that the loop sets",
    "query microbatches",
    "sampler shuffle",
)
"""Honest scripts: every usual kind of layer, loss, randomness, precision and data."""


def source_digest() -> str:
    """Returns a digest of the code that decides about runs. Comments and docstrings do not count."""
    package = ROOT / "sordino"
    files = [
        *sorted((package / "runtime_checks").glob("*.py")),
        package / "per_sample" / "loss_probe.py",
        package / "per_sample" / "user_state.py",
        package / "rng" / "shape_independent.py",
    ]
    found = hashlib.sha256()
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                node.body = [line for line in body if not _is_docstring(line)]
        found.update(ast.dump(tree).encode())
    return found.hexdigest()[:16]


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def read_results(command: str) -> dict[str, Any]:
    """Returns what the last runs found, of whatever source."""
    path = RESULTS / f"honesty_{command}.json"
    return json.loads(path.read_text()) if path.exists() else {"source": None, "cases": {}}  # type: ignore[no-any-return]


def load(command: str) -> dict[str, Any]:
    """Returns what earlier runs of the same source found."""
    kept = read_results(command)
    if kept["source"] != source_digest():
        kept = {"source": source_digest(), "processor": processor(), "cases": {}}
    return kept


def save(command: str, kept: dict[str, Any]) -> None:
    """Writes the results in one step, so that a stop leaves a whole file."""
    if command == "alarms":
        kept["honest runs"] = sum(kind["runs"] for kind in kept["cases"].values())
        kept["without a claim"] = sum(len(kind["lost"]) for kind in kept["cases"].values())
    path = RESULTS / f"honesty_{command}.json"
    path.with_suffix(".part").write_text(json.dumps(kept, indent=1) + "\n")
    os.replace(path.with_suffix(".part"), path)


def end_of(case: Case, seed: int, lots: int) -> str:
    """Returns how a run ends: claimed, refused, void, or the kind of error it raised."""
    try:
        return outcome(case, seed, lots)[0]
    except Exception as error:  # the table goes on; its words may quote a record
        return type(error).__name__


def count_alarms(runs: int) -> None:
    """Makes honest runs, one of each kind in turn, until there are `runs` of them."""
    kept = load("alarms")
    cases = [case for case in HONEST if case.name in KINDS]
    assert len(cases) == len(KINDS), "every kind has a script"
    for number in range(-(-runs // len(cases))):
        for case in cases:
            row = kept["cases"].setdefault(case.name, {"runs": 0, "long": 0, "lost": []})
            if row["runs"] > number:
                continue
            long = number % EVERY == EVERY - 1
            seed = FIRST_SEED + number
            end = end_of(case, seed, LONG if long else LOTS)
            row["runs"], row["long"] = number + 1, row["long"] + int(long)
            row["lost"] += [] if end == "claimed" else [[seed, end]]
            save("alarms", kept)


def count_misses(seeds: int, lots: tuple[int, ...]) -> None:
    """Runs every attack with each number of lots, and notes the seeds that ended in a claim."""
    kept = load("attacks")
    for case in OWN:
        row = kept["cases"].setdefault(case.name, {"times the bound": None, "lots": {}})
        if case.moves and row["times the bound"] is None:
            row["times the bound"] = round(breach(case), 2)
        for many in lots:
            done = row["lots"].setdefault(str(many), {"seeds": 0, "claimed": []})
            for seed in range(done["seeds"], seeds):
                done["claimed"] += [seed] if end_of(case, FIRST_SEED + seed, many) == "claimed" else []
                done["seeds"] = seed + 1
            save("attacks", kept)


def show() -> None:
    """Prints the rates, and says when the source has changed since they were measured."""
    alarms, attacks = read_results("alarms"), read_results("attacks")
    for command, kept in (("alarms", alarms), ("attacks", attacks)):
        if kept["source"] not in (None, source_digest()):
            sys.stdout.write(f"The checks' source has changed since `{command}` was measured.\n")
    sys.stdout.write(
        f"honest runs: {alarms.get('honest runs', 0)}, without a claim: {alarms.get('without a claim', 0)}\n"
    )
    for name, row in alarms["cases"].items():
        sys.stdout.write(f"  {name:62} {row['runs']:4} runs, {row['long']:2} long, lost {row['lost']}\n")
    for name, row in attacks["cases"].items():
        missed = ", ".join(f"{lots}: {len(each['claimed'])}/{each['seeds']}" for lots, each in row["lots"].items())
        sys.stdout.write(f"  {name:62} {row['times the bound'] or '':>5} times the bound, claimed at lots {missed}\n")


def main() -> None:
    """Runs one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("alarms", "attacks", "show"))
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--lots", default="30,100")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the users' own code
    if args.command == "alarms":
        count_alarms(args.runs)
    elif args.command == "attacks":
        count_misses(args.seeds, tuple(int(many) for many in args.lots.split(",")))
    else:
        show()


if __name__ == "__main__":
    main()
