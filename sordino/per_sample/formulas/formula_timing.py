"""Chooses between formulas of equal result by timing them once per shape.

This is what cudnn.benchmark does. An operation count picks wrongly for several layers, so the candidates run on a few
samples of the first batch. The key is the shape of one sample: a Poisson batch has a new size every step, and must not
be measured again.

Candidates agree up to rounding only, and a stopwatch may decide otherwise in another process. So the choices are part
of a checkpoint, and a run that may be replayed stops measuring before its first checkpoint (`stopped`): shapes first
met after it get the formula that follows from the shape, in the run and in the replay. Choices belong to one backend:
what another run in the same process measured, or loaded, changes nothing here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping

import torch

_REPEATS = 3
_HOPELESS = 3.0
"""Candidates that take so many times as long as the fastest in the first round are not run again."""
_SAMPLES = 8
_COLD = 1 << 22


def samples_to_time(written: int) -> int:
    """Returns on how many samples the timing of formulas runs, when a candidate writes so many elements for each.

    They are few, but enough to leave the cache: rows look cheap on eight samples and cost their page faults on a real
    batch.
    """
    return max(_SAMPLES, min(64, _COLD // max(1, written)))


def read_clock(device: torch.device) -> float:
    """Returns the clock for the timing of formulas: the CPU time of this thread, which other processes do not disturb;
    a wall clock on other devices.
    """
    if device.type == "cpu":
        return time.thread_time()
    torch.accelerator.synchronize(device)
    return time.perf_counter()


class Stopwatch:
    """Keeps the choices made so far, and times candidates to make another.

    Where nothing is measured (`measures=False`) there are no choices: the first candidate is taken, the same in every
    process, so callers name first the one that shapes speak for.
    """

    def __init__(self, measures: bool = True) -> None:
        self.measures = measures
        self.stopped = False
        """Whether measuring has ended: choices that were made are kept, and no others are measured."""
        self._choices: dict[Hashable, str] = {}
        self._restored: dict[str, str] = {}  # by repr of the key, as a checkpoint has them

    def known_choice(self, key: Hashable) -> str | None:
        """Returns the formula that timing chose for this shape before, here or in the run a checkpoint came from."""
        if not self.measures:
            return None
        choice = self._choices.get(key)
        if choice is None and self._restored:
            choice = self._restored.get(repr(key))
            if choice is not None:
                self._choices[key] = choice
        return choice

    def remember_choice(self, key: Hashable, choice: str) -> str:
        """Remembers the formula that timing chose for a shape, here or elsewhere, and returns it."""
        if self.measures:
            self._choices[key] = choice
        return choice

    def choose_fastest(
        self,
        key: Hashable,
        device: torch.device,
        candidates: Mapping[str, Callable[[], object]],
        margin: float = 0.0,
    ) -> str:
        """Chooses between formulas by timing the candidates; returns the name of the fastest, and remembers it.

        The first candidate is preferred unless another saves more than the share `margin`.
        """
        # Without measuring, the first candidate is taken: callers name first the one that shapes speak for.
        if not self.measures or self.stopped:
            return next(iter(candidates))
        best = dict.fromkeys(candidates, float("inf"))
        running = dict(candidates)
        for _ in range(_REPEATS):  # interleaved, so that a slow moment hits all of them
            if len(running) < 2:
                break
            for name, run in running.items():
                start = read_clock(device)
                run()
                best[name] = min(best[name], read_clock(device) - start)
            # Candidates that are far behind are not run again.
            slowest_allowed = _HOPELESS * min(best.values())
            running = {name: run for name, run in running.items() if best[name] <= slowest_allowed}
        best[next(iter(best))] *= 1 - margin
        return self.remember_choice(key, min(best, key=best.__getitem__))

    def export_choices(self) -> dict[str, str]:
        """Returns every choice so far, for a checkpoint: shapes of layers and samples, nothing of the data."""
        return {**self._restored, **{repr(key): choice for key, choice in self._choices.items()}}

    def restore_choices(self, saved: Mapping[str, str]) -> None:
        """Restores from a checkpoint the formulas that timing chose; what was measured before is dropped."""
        if self.measures:
            self._choices.clear()
            self._restored = dict(saved)
