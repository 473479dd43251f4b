"""Correlated noise by the compiled kernel: the bits of `noise_combinations.py`, in a fraction of the time.

To read b − 1 vectors of a million values takes longer than to make one, so the coordinates are divided into groups, and at
every step one of the groups is advanced by many steps while it is in the cache:

    step          0   1   2   3   4   5   …        T = 4 rows, four groups
    group 0       ■ → 1   ■ → → → 5
    group 1       ■ → → 2     ■ → → → 6
    …

The noise that is made ahead lies in T rows, step t in row t mod T. Each group is read and written once in T steps, and at
every step one row is added to the gradients. T is b − 1, or for `InverseBanded` twice that, which makes 1.5 vectors for
each that is used. `kept_vectors` says otherwise. Where that is too few to hold what a strategy needs, the kernel makes the
noise again from the first step on, in a cache-sized part of the coordinates at a time; `InverseBanded` needs only the
b − 1 steps before.

Rows hold noise of steps that are not released yet. They are as secret as the key, and are in no checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sordino.kernels import build
from sordino.kernels.abi import declare_types
from sordino.kernels.library import KernelUnavailable, open_library
from sordino.kernels.noise_kernel import BEST
from sordino.kernels.phase_noise_kernel import (
    BUFFERED,
    FUNCTIONS,
    MOVING,
    RECURSIVE,
    CombinationRecipe,
    PhaseNoiseKernel,
    StepRange,
)
from sordino.matrix_factorization.strategies import Banded, Buffered, InverseBanded, Strategy
from sordino.release.noise_combinations import Combination, create_plain_combination
from sordino.rng.phase_noise import PhaseNoise
from sordino.rng.streams import Rng

_AHEAD = 4
"""Rows that `Buffered` keeps besides its buffers by default."""


class CompiledCombination(Combination):
    """Makes the noise of one step after another at some coordinates, by the compiled kernel.

    Args:
        kernel: the compiled kernel.
        strategy: how independent vectors are combined.
        phase: whose noise it is.
        total: coordinates of a release.
        stretches: the coordinates that are asked for.
        kept_vectors: how many vectors may be kept between steps, or None for the strategy's default.

    """

    def __init__(
        self,
        kernel: PhaseNoiseKernel,
        strategy: Strategy,
        phase: PhaseNoise,
        total: int,
        stretches: Sequence[tuple[int, int]],
        kept_vectors: int | None = None,
    ) -> None:
        super().__init__(strategy, phase, total, stretches, torch.float32)
        self._kernel = kernel
        self._recipe = describe_combination(strategy, phase.steps)
        # How many steps' noise is held, and whether what later steps need is held too.
        needed = len(self._recipe.coefficients)
        by_default = {RECURSIVE: needed, MOVING: 2 * needed, BUFFERED: needed + _AHEAD}[self._recipe.kind]
        kept = by_default if kept_vectors is None else kept_vectors
        self._continues = self._recipe.kind != MOVING and kept >= needed + (self._recipe.kind == BUFFERED)
        buffers = needed if self._continues and self._recipe.kind == BUFFERED else 0
        self._row_count = max(1, min(kept - buffers, phase.steps))
        self._keeps_nothing = kept == 0
        # Memory; rows are written before they are read.
        self._rows = self._allocate_rows(0 if self._keeps_nothing else self._row_count)
        self._buffers = self._allocate_rows(buffers) if buffers else None
        # Tiles of coordinates that stay in the cache, in as many groups as there are rows, or fewer.
        self._pairs = kernel.pairs_of_tile(needed, self._row_count)
        tiles = kernel.cut_tiles(total, stretches, self._pairs)
        self._groups = np.array_split(tiles, max(1, min(self._row_count, len(tiles))))
        self._made = [0] * len(self._groups)
        """Steps that were made of each group."""

    def _allocate_rows(self, count: int) -> NDArray[np.float32]:
        return np.empty((count, self._size), dtype=np.float32)

    def noise_of(self, step: int) -> Tensor:
        """Returns the correlated noise w_t of a step, combined by the compiled kernel. It is valid until the next step
        is asked for.
        """
        rows = self._allocate_rows(self._row_count) if self._keeps_nothing else self._rows
        key = self._phase.key_of_vectors()
        for number, made in enumerate(self._made):
            if made <= step:
                self._advance_group(number, step, key, rows)
        return torch.from_numpy(rows[step % self._row_count])

    def add_noise_(self, tensors: Sequence[Tensor], step: int, scale: float, factor: float) -> None:
        """Adds scale × w_t, combined by the compiled kernel, to tensors laid end to end, and multiplies the sums by a
        factor, in one pass on the CPU.
        """
        if all(t.dtype is torch.float32 and t.is_cpu and t.is_contiguous() for t in tensors):
            noise, sizes = self.noise_of(step).numpy(), [tensor.numel() for tensor in tensors]
            addresses = [tensor.data_ptr() for tensor in tensors]
            self._kernel.add_scaled(noise, scale, addresses, sizes, torch.get_num_threads(), factor)
        else:
            super().add_noise_(tensors, step, scale, factor)

    def _advance_group(self, number: int, step: int, key: bytes, rows: NDArray[np.float32]) -> None:
        """Combines the noise of one group of coordinates by the compiled kernel, up to the end of the stretch of steps
        that holds `step`.

        The groups' stretches begin at different steps, so that every step takes equally long.
        """
        made, held = self._made[number], self._row_count
        # The first stretch of group g is shorter than the others; those after it have one step for each row.
        first_end = 1 + number * held // len(self._groups)
        end = first_end + max(0, -(-(step + 1 - first_end) // held)) * held
        end = min(end, self._phase.steps)
        # Only the last steps of it are written: what lies before was left out, or was asked for already.
        start, count = max(made, end - held), len(self._recipe.coefficients)
        # A moving average makes its past again; others go on from what is kept, or begin at the first step.
        past = start - count if self._recipe.kind == MOVING else made if self._continues else 0
        first = max(0, past)
        steps = StepRange(first, start, end, resumes=self._continues and made > 0)
        self._kernel.advance(
            key, self._recipe, steps, self._groups[number], self._pairs, rows, self._buffers, torch.get_num_threads()
        )
        self._made[number] = end


def describe_combination(strategy: Strategy, steps: int) -> CombinationRecipe:
    """Returns how the compiled kernel combines vectors for a strategy, with coefficients rounded to float32 as torch
    rounds them.
    """
    if isinstance(strategy, Buffered):
        return CombinationRecipe(BUFFERED, _to_float32(strategy.weights), _to_float32(strategy.decays))
    if isinstance(strategy, InverseBanded):
        return CombinationRecipe(MOVING, _to_float32(-strategy.decoder(steps)[1:]), _to_float32(()))
    if isinstance(strategy, Banded):
        return CombinationRecipe(RECURSIVE, _to_float32(strategy.encoder(steps)[1:]), _to_float32(()))
    raise TypeError(f"strategy={strategy!r}: must be Banded, InverseBanded or Buffered")


def _to_float32(values: ArrayLike) -> NDArray[np.float32]:
    return np.ascontiguousarray(values, dtype=np.float32)


def create_compiled_combination(
    strategy: Strategy,
    phase: PhaseNoise,
    total: int,
    stretches: Sequence[tuple[int, int]],
    dtype: torch.dtype,
    kept_vectors: int | None = None,
) -> CompiledCombination | None:
    """Returns what combines the noise of a phase by the compiled kernel; None where torch must do it."""
    kernel = load_phase_noise_kernel()
    if kernel is None or dtype is not torch.float32 or not sum(count for _, count in stretches):
        return None
    return CompiledCombination(kernel, strategy, phase, total, stretches, kept_vectors)


@cache
def load_phase_noise_kernel() -> PhaseNoiseKernel | None:
    """Returns the compiled kernel that combines correlated noise, or None: not built, slow here, or wrong on a small
    case.
    """
    try:
        library = declare_types(open_library(build.PHASE_NOISE), FUNCTIONS)
    except KernelUnavailable:
        return None
    made = PhaseNoiseKernel(library, int(library.sordino_level(BEST)))
    return made if made.makes_key_stream and gives_same_noise(made) else None


def gives_same_noise(kernel: PhaseNoiseKernel) -> bool:
    """Returns whether noise combined by the compiled kernel has the bits of the slow path, for each kind of strategy."""
    total, stretches, steps = 2999, [(3, 1700), (2400, 500)], 7
    for strategy in (Banded(4), InverseBanded(3), Buffered((0.9, 0.5), (0.2, 0.3))):
        plain, fast = (PhaseNoise(Rng(bytes(range(32))), steps) for _ in range(2))
        wanted = create_plain_combination(strategy, plain, total, stretches, torch.float32)
        got = CompiledCombination(kernel, strategy, fast, total, stretches)
        for step in (0, 1, 4, 5, 6):
            sums = [torch.ones(700), torch.ones(1500)]
            slow_sums = [tensor.clone() for tensor in sums]
            got.add_noise_(sums, step, 1.5, 0.25)
            wanted.add_noise_(slow_sums, step, 1.5, 0.25)
            if not all(map(torch.equal, sums, slow_sums)):
                return False
    return True
