"""Digests of runs, to see whether a change of the code has left every bit as it was.

    python -m tools.run_digests before.json               in the old checkout
    python -m tools.run_digests after.json                in the new one
    python -m tools.run_digests --compare before.json after.json

Every row of the table of contracts is trained for a few lots with a seed, by each of its backends, and so is a recipe
(`--recipe mnist --steps 30`; `--recipe none` leaves it out). Three digests are kept of each run: of the parameters after
every step, of the released gradients, which hold the noise (a lot without records gives the noise alone), and of the
event in the ledger. The random streams have digests of their own. `--compare` names each that differs and exits with 1.

Rows whose formulas are chosen by a stopwatch may round otherwise in another run; run the old checkout twice to see them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

import sordino as sd
from sordino import events
from sordino.rng.streams import Rng
from tests.contracts.hunter import Scripted, network, squared_error
from tests.contracts.row import BACKENDS, Variant
from tests.contracts.test_contracts import LOTS, data, unit_of
from tests.contracts.variants import VARIANTS
from tests.untested import untested

Digests = dict[str, dict[str, str]]
"""By the name of a run, what was digested and its digest."""


class Digest:
    """Adds up tensors and texts to one short digest."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=12)

    def add(self, *values: Tensor | str | bytes) -> Digest:
        """Adds values, a tensor by the bytes of its numbers, and returns itself."""
        for value in values:
            if isinstance(value, Tensor):
                value = value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b""
            self._hash.update(value.encode() if isinstance(value, str) else value)
        return self

    def __str__(self) -> str:
        return self._hash.hexdigest()


def digest_streams() -> dict[str, str]:
    """Returns digests of what the random streams give for one seed: uniforms, both kinds of noise, an order."""
    rng = Rng.from_seed(11).child("digests")
    noise = torch.zeros(100_000)
    if not rng.add_normal_([noise], 1.5):  # without a compiled kernel the same values are made in blocks
        noise = torch.cat([block.clone() for block in rng.normal_blocks(len(noise), 1.5)])
    return {
        "normals": str(Digest().add(noise)),
        "laplace": str(Digest().add(rng.laplace(1000))),
        "uniforms": str(Digest().add(torch.from_numpy(rng.uniform(1000)))),
        "order": str(Digest().add(torch.from_numpy(rng.permutation(1000)))),
    }


def digest_contract(row: Variant, backend: str) -> dict[str, str]:
    """Trains a row of the contracts for a few lots by one backend and returns its digests."""
    torch.manual_seed(0)
    model = network()
    private = sd.Private(model, squared_error, row.query(), backend=BACKENDS[backend], seed=3, **row.options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sampler = Scripted(LOTS) if row.sampler is None else row.sampler()
    parameters, gradients = Digest(), Digest()
    for lot in private.draws(data(row), sampler, steps=len(LOTS), unit=unit_of(row)):
        private.backward(lot)
        gradients.add(*(p.grad for p in model.parameters() if p.grad is not None))
        optimizer.step()
        parameters.add(*model.parameters())
    ledger = Digest().add(json.dumps(events.to_json(private.event)))
    return {"parameters": str(parameters), "gradients": str(gradients), "ledger": str(ledger)}


def digest_recipe(recipe: str, steps: int) -> dict[str, str]:
    """Trains a recipe for some steps with a seed and returns digests of its model, its releases and its ledger."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        sd.fit(recipe, steps=steps, seed=0, out=run, progress=False)
        # Each line of the ledger has a digest of the parameters at its step, and other facts, such as times.
        lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
        return {
            "parameters": str(Digest().add((run / "model.safetensors").read_bytes())),
            "steps": str(Digest().add(json.dumps([line.get("parameters") for line in lines]))),
            "ledger": str(Digest().add((run / "privacy.json").read_bytes())),
        }


def compute_digests(recipe: str, steps: int) -> Digests:
    """Returns the digests of the streams, of every row of the contracts by each of its backends, and of a recipe."""
    found: Digests = {"streams": digest_streams()}
    # The neighbour tests release nothing and have streams of their own; they would take most of the time.
    with untested():
        for row in VARIANTS:
            for backend in row.backends:
                found[f"{row.name} by {backend}"] = digest_contract(row, backend)
    if recipe != "none":
        found[f"{recipe}, {steps} steps"] = digest_recipe(recipe, steps)
    return found


def list_differences(before: Digests, after: Digests) -> list[str]:
    """Returns a line for each digest that differs, and for each run that only one of the two has."""
    lines = [f"{name}: only in one of the two" for name in before.keys() ^ after.keys()]
    for name in before.keys() & after.keys():
        lines += [f"{name}: {what}" for what in before[name] if before[name][what] != after[name].get(what)]
    return sorted(lines)


def main(argv: list[str] | None = None) -> int:
    """Writes the digests to a file, or compares two files; returns the exit code."""
    parser = argparse.ArgumentParser(description="Digests of runs, to compare two versions of the code bit by bit.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="where to write, or two files to compare")
    parser.add_argument("--compare", action="store_true", help="compare two files")
    parser.add_argument("--recipe", default="mnist", help="the recipe that is trained besides; none for none")
    parser.add_argument("--steps", type=int, default=30, help="its steps")
    options = parser.parse_args(argv)
    if not options.compare:
        torch.set_num_threads(1)
        options.files[0].write_text(json.dumps(compute_digests(options.recipe, options.steps), indent=1) + "\n")
        return 0
    # Compare, and say how much was compared, so that an empty file does not look like agreement.
    before, after = (json.loads(path.read_text()) for path in options.files)
    different = list_differences(before, after)
    print(*different, f"{len(before)} runs compared, {len(different)} digests differ", sep="\n")
    return int(bool(different) or not before)


if __name__ == "__main__":
    sys.exit(main())
