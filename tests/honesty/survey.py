"""How every case ends, with its breach: a table. `python -m tests.honesty.survey [kind] [--seeds 100]`."""

from __future__ import annotations

import argparse
import importlib
import time
from collections import Counter

from tests.honesty.breach import breach
from tests.honesty.script import Cases, outcome


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="+")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    for module in args.modules:
        found = importlib.import_module(f"tests.honesty.{module}")
        for cases in {id(v): v for v in vars(found).values() if isinstance(v, Cases)}.values():
            for case in cases:
                if args.only not in case.name:
                    continue
                begun = time.perf_counter()
                try:
                    worst = [round(breach(case, s), 1) for s in range(min(3, args.seeds))] if case.moves else "-"
                except Exception as error:
                    worst = repr(error)[:60]
                middle = time.perf_counter()
                ends: Counter[str] = Counter()
                words = ""
                for seed in range(args.seeds):
                    try:
                        end, said = outcome(case, seed)
                    except Exception as error:
                        end, said = "ERROR", repr(error)
                    ends[end] += 1
                    words = said if end != "claimed" else words
                took = (time.perf_counter() - middle) / args.seeds
                print(f"{case!s:62} {dict(ends)!s:26} breach {worst!s:22} {took:.2f}s {middle - begun:.1f}s {words[:90]!r}", flush=True)


if __name__ == "__main__":
    main()
