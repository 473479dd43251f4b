"""Times engines by turns in one process, and takes ratios within a round.

A turn is a *burst*: as many steps one after the other as plain training makes in about `BURST` seconds, the same number for
every engine, and one step before them that is not counted. A step that takes longer is a turn by itself. Training runs its
steps back to back, so a step finds what the last one left in the caches. Where engines take turns step by step (`burst=0`),
a step of 2 ms finds what nine others left there: all of them are slower, plain training too.

Engines still take turns round by round, so that whatever else the machine does hits all of them, and a ratio is one of two
bursts of the same round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from bench.engines import Step

BURST = 0.06  # seconds
_SLOW = 4.0  # engines this many times slower than non-private are run less often
_LONG = 1.0  # seconds of plain training that are measured at least: short steps take more rounds
_MOST = 15  # times as many rounds


def time_one_step(step: Step) -> float:
    """Returns the CPU seconds of one step, for a first idea."""
    start = time.process_time()
    step()
    return time.process_time() - start


def steps_in_a_turn(plain: Step, burst: float = BURST) -> int:
    """Returns the number of steps of a turn."""
    return max(1, round(burst / min(time_one_step(plain) for _ in range(3)))) if burst else 1


def enough_rounds(plain: Step, rounds: int, steps: int) -> int:
    """Returns the number of rounds, more of them where a turn is short."""
    return max(rounds, min(_MOST * rounds, round(_LONG / (steps * time_one_step(plain)))))


def time_by_turns(
    engines: Mapping[str, Step], rounds: int, clock: Callable[[], float], steps: int = 1
) -> dict[str, list[float]]:
    """Returns seconds per step, one figure for every turn; slow engines sit out later rounds."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(rounds):
        for name, step in engines.items():
            slow = turn and times[name][0] > _SLOW * min(t[0] for t in times.values())
            if slow and turn >= 2:
                continue
            if steps > 1:
                step()
            start = clock()
            for _ in range(steps):
                step()
            times[name].append((clock() - start) / steps)
    return times


def ratios(times: Mapping[str, list[float]], best: str) -> dict[str, float]:
    """Returns medians over rounds of the ratio within a round."""
    return {
        name: statistics.median(a / b for a, b in zip(each, times[best], strict=False)) for name, each in times.items()
    }
