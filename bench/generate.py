"""How good synthetic records are: a classifier trained on them and tested on real ones, beside one trained on real records.

    python -m bench.generate [--only adult,r8] [--epsilon 3]

Makes synthetic records of Adult by the small model with privacy, by the same model with little noise (ε = 20), and by
Private Evolution; and of R8 by the table of words and by the small language model, each also with little noise. Writes
bench/results/generate.json after each.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bench.step import processor
from sordino.app.generate import generation
from sordino.ledger.claims import Guarantee

RESULTS = Path(__file__).parent / "results" / "generate.json"
HARDLY_ANY_NOISE = 1000.0
LITTLE_NOISE = 20.0
"""Where more would end too early: noise must reach far enough for δ."""
R8_TEXTS = 5485


def measure(data: str, name: str, wishes: generation.Wishes) -> dict[str, Any]:
    """Makes synthetic records and returns a row of the table."""
    start = time.process_time()
    if data in generation.KNOWN_TABLES:
        made = generation.generate_table(generation.read_known_table(data), wishes)
    else:
        made = generation.generate_texts(generation.read_known_texts(data), wishes)
    assert made.likeness is not None
    assert isinstance(made.claim, Guarantee), made.claim
    return {
        "data": data,
        "made by": name,
        "epsilon": round(made.claim.epsilon, 3),
        "processor seconds": round(time.process_time() - start),
        **made.likeness.table(),
    }


def main() -> None:
    """Makes the rows that were asked for and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="adult,r8")
    parser.add_argument("--epsilon", type=float, default=3.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    runs = {
        ("adult", "small model"): generation.Wishes(options.epsilon, beside_real=True, canaries=20),
        ("adult", "small model, little noise"): generation.Wishes(LITTLE_NOISE, canaries=20),
        ("adult", "Private Evolution"): generation.Wishes(options.epsilon, method="evolution"),
        ("r8", "words by label"): generation.Wishes(options.epsilon, beside_real=True),
        ("r8", "words by label, little noise"): generation.Wishes(LITTLE_NOISE),
        ("r8", "small language model"): generation.Wishes(options.epsilon, method="model", rows=R8_TEXTS),
        ("r8", "small language model, hardly any noise"): generation.Wishes(
            HARDLY_ANY_NOISE, method="model", rows=R8_TEXTS
        ),
    }
    for (data, name), wishes in runs.items():
        if data not in options.only.split(","):
            continue
        row = measure(data, name, wishes)
        kept["processor"] = processor()
        kept["rows"] = [one for one in kept["rows"] if (one["data"], one["made by"]) != (data, name)] + [row]
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
        sys.stdout.write(f"{data}, {name}: {row['synthetic']}\n")


if __name__ == "__main__":
    main()
