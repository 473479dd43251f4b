"""How every case ends, and its breach, as a table: `python -m tests.honesty.survey attacks honest --seeds 100`."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter

from tests.honesty.attacks import ATTACKS
from tests.honesty.breach import breach
from tests.honesty.honest import HONEST
from tests.honesty.script import Case, outcome

KINDS = {"attacks": ATTACKS, "honest": HONEST}


def row(case: Case, seeds: int, *, measure: bool) -> str:
    """The ends of one case over the seeds, seconds of the processor for each, its breach, and the last reason."""
    ends: Counter[str] = Counter()
    reason, begun = "", time.process_time()
    for seed in range(seeds):
        try:
            end, words = outcome(case, seed)
        except Exception as error:  # the table goes on
            end, words = "error", repr(error)
        ends[end] += 1
        reason = reason if end == "claimed" else words
    took = (time.process_time() - begun) / seeds
    worst = f"{breach(case):5.1f}" if measure and case.moves else "     "
    counted = ", ".join(f"{n} {end}" for end, n in ends.items())
    return f"{case!s:62} {counted:22} {worst} {took:6.2f} s  {reason[:80]!r}\n"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # of the strangers' own code
    for kind in args.kinds:
        for case in KINDS[kind]:
            if args.only in case.name:
                sys.stdout.write(row(case, args.seeds, measure=kind == "attacks"))
                sys.stdout.flush()


if __name__ == "__main__":
    main()
