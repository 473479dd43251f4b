"""Choose between formulas of equal result by timing them once per shape, as cudnn.benchmark does.

An operation count picks wrongly for several layers, so the candidates run on a few samples of the first batch. The key
is the shape of one sample: a Poisson batch has a new size every step, and must not be measured again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping

import torch

_CHOICES: dict[Hashable, str] = {}
_REPEATS = 3
_SAMPLES = 8
_COLD = 1 << 22


def samples(written: int) -> int:
    """How many samples to measure on, when a candidate writes so many elements for each.

    A few, but enough to leave the cache: rows look cheap on eight samples and cost their page faults on a real batch.
    """
    return max(_SAMPLES, min(64, _COLD // max(1, written)))


def _clock(device: torch.device) -> float:
    """CPU time of this thread, which other processes do not disturb; a wall clock where work is asynchronous."""
    if device.type == "cpu":
        return time.thread_time()
    torch.accelerator.synchronize(device)
    return time.perf_counter()


def known(key: Hashable) -> str | None:
    """The choice made for this shape before, if any."""
    return _CHOICES.get(key)


def fastest(key: Hashable, device: torch.device, candidates: Mapping[str, Callable[[], object]]) -> str:
    """The name of the fastest candidate, remembered under `key`."""
    best = dict.fromkeys(candidates, float("inf"))
    if len(candidates) > 1:
        for _ in range(_REPEATS):  # interleaved, so that a slow moment hits all of them
            for name, run in candidates.items():
                start = _clock(device)
                run()
                best[name] = min(best[name], _clock(device) - start)
    choice = min(best, key=best.__getitem__)
    _CHOICES[key] = choice
    return choice


def forget() -> None:
    """Drop every choice, so that the next batches are measured again."""
    _CHOICES.clear()
