"""How often the runtime checks catch each attack of the test suite, by the length of the run.

Every attack of `tests/honesty` is run with several seeds. A run is caught if it is refused, or ends without a claim.
Attacks that were caught in every one of the first runs of the shortest length are not run longer: more lots can only help.
The script adds to its file after every attack and skips what is in it, so it can be stopped and started again.

    nice python -m bench.power [--lots 30,100] [--first 2] [--more 10] [--only PART] [--out FILE]

Writes bench/results/power.json.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import torch

from tests.honesty.attacks import ATTACKS
from tests.honesty.script import Case, verdict

RESULT = Path(__file__).parent / "results" / "power.json"


def count_caught(case: Case, lots: int, seeds: range) -> int:
    """Returns in how many of these runs the attack ended without a claim."""
    return sum(verdict(case, seed, lots) != "claimed" for seed in seeds)


def measure(case: Case, lengths: list[int], first: int, more: int) -> dict[str, str]:
    """Returns, for each length of run, how many of how many runs caught the attack."""
    caught = count_caught(case, lengths[0], range(first))
    if caught == first:
        return {str(lengths[0]): f"{caught} of {first}"}
    found = {}
    for lots in lengths:
        found[str(lots)] = f"{count_caught(case, lots, range(more))} of {more}"
    return found


def main() -> None:
    """Measures what is missing in the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lots", default="30,100", help="lengths of runs, separated by commas, the shortest first")
    parser.add_argument("--first", type=int, default=2, help="runs of the shortest length that every attack gets")
    parser.add_argument("--more", type=int, default=10, help="runs of every length for attacks that one of them missed")
    parser.add_argument("--only", default="", help="attacks whose name has this in it")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the attackers' own code
    result: dict[str, dict[str, str]] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for case in ATTACKS:
        if case.name in result or options.only not in case.name:
            continue
        result[case.name] = measure(case, [int(k) for k in options.lots.split(",")], options.first, options.more)
        options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
