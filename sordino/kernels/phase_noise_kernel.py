"""Binding of the compiled correlated noise: several steps of a phase at some coordinates, while they are in cache.

It takes a key, coefficients and memory, and knows nothing of what the noise is for (phase_noise.c). Whether it is used at
all is decided in release/compiled_combinations.py, which compares it bit for bit with the slow path.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from sordino.kernels.abi import FLOAT, INT, POINTER, SIZE, make_struct, pack_numbers, run_in_parts
from sordino.kernels.noise_kernel import SPLIT, KeyStreamKernel

FUNCTIONS = {
    "sordino_advance_phase": (INT, INT, ctypes.c_char_p, POINTER, SIZE, SIZE),
    "sordino_add_scaled": (None, FLOAT, FLOAT, SIZE, SIZE, POINTER, POINTER, POINTER),
}
RECURSIVE, MOVING, BUFFERED = range(3)
"""Kinds of combinations, as phase_noise.c numbers them."""

NO_COLUMN = 2**64 - 1
"""The column of values that are made and not asked for."""

_CHUNK = 16  # steps that are made at once at least
_CACHE = 64 * 1024  # floats of scratch that stay in the second-level cache
_STEP = 64  # pairs: tiles are multiples of it

Tiles = NDArray[np.uint64]
"""One row for each tile: the first value of its block, half the block's length, its first pair and number of pairs, and the
columns of its cosines and of its sines."""

_Phase = make_struct(
    "phase_t",
    kind=SIZE, coefficients=POINTER, decays=POINTER, count=SIZE, rows=POINTER, buffers=POINTER, row_count=SIZE,
    row_length=SIZE, first=SIZE, start=SIZE, end=SIZE, resumes=SIZE, chunk=SIZE, most=SIZE, tiles=POINTER,
)  # fmt: skip


@dataclass(frozen=True)
class CombinationRecipe:
    """How independent vectors are combined: a kind, its coefficients, and for `BUFFERED` the decays of the buffers."""

    kind: int
    coefficients: NDArray[np.float32]
    decays: NDArray[np.float32]


@dataclass(frozen=True)
class StepRange:
    """Which steps are made.

    Those from `first` on are made and those from `start` on are written, up to `end`. `resumes`: what earlier steps left
    is read from memory.
    """

    first: int
    start: int
    end: int
    resumes: bool


class PhaseNoiseKernel(KeyStreamKernel):
    """Calls the functions of phase_noise.c, which advance correlated noise."""

    def pairs_of_tile(self, vectors: int, rows: int) -> int:
        """Returns how many Box–Muller pairs a tile has, so that its values in so many vectors and rows stay in cache."""
        most = SIZE.in_dll(self.library, "sordino_most_pairs").value
        return max(_STEP, min(most, _CACHE // (2 * (vectors + max(rows, _CHUNK))) // _STEP * _STEP))

    def cut_tiles(self, total: int, stretches: Sequence[tuple[int, int]], pairs: int) -> Tiles:
        """Returns the tiles, of at most so many pairs, by which the kernel makes these stretches of a phase's noise of
        `total` values.

        Column k is the k-th of the values that are asked for. Values of a block come in pairs, one from its first half and
        one from its second. A pair of which only one value is asked for has no column for the other.
        """
        block, rows, column = self.block_values, [], 0
        for start, count in stretches:
            for first in range(start - start % block, start + count, block):
                half = (min(block, total - first) + 1) // 2
                begin, end = max(start - first, 0), min(start + count - first, min(block, total - first))
                # Pairs whose cosine is asked for, and pairs whose sine is; both, one, or neither of the two.
                cosines, sines = (begin, min(end, half)), (max(begin, half) - half, end - half)
                cuts = sorted({max(0, cut) for side in (cosines, sines) if side[0] < side[1] for cut in side})
                for low, high in pairwise(cuts):
                    starts = np.arange(low, high, pairs, dtype=np.uint64)
                    made = np.empty((len(starts), 6), dtype=np.uint64)
                    made[:, 0], made[:, 1], made[:, 2] = first, half, starts
                    made[:, 3] = np.minimum(pairs, high - starts)
                    at = column - begin  # the column of value 0 of the block, if that were asked for
                    for field, offset, (least, most) in ((4, at, cosines), (5, at + half, sines)):
                        made[:, field] = (
                            starts + np.int64(offset).astype(np.uint64) if least <= low < most else NO_COLUMN
                        )
                    rows.append(made)
                column += end - begin
        # A gap between the pairs of cosines and those of sines belongs to neither.
        tiles = np.concatenate([np.empty((0, 6), dtype=np.uint64), *rows])
        return np.ascontiguousarray(tiles[(tiles[:, 4] != NO_COLUMN) | (tiles[:, 5] != NO_COLUMN)])

    def advance(
        self,
        key: bytes,
        combination: CombinationRecipe,
        steps: StepRange,
        tiles: Tiles,
        most_pairs: int,
        rows: NDArray[np.float32],
        buffers: NDArray[np.float32] | None,
        threads: int = 1,
    ) -> None:
        """Makes the phase's noise of some steps at some tiles by the compiled kernel; step t goes to row t modulo their
        number.

        Args:
            key: the phase's key of 32 bytes, and the 8 bytes of any number.
            combination: how independent vectors are combined.
            steps: which steps.
            tiles: where.
            most_pairs: of a tile.
            rows: one row for each step whose noise is held.
            buffers: one row for each buffer, or None.
            threads: how many may share the tiles.

        """
        phase = _Phase(
            combination.kind, combination.coefficients.ctypes.data, combination.decays.ctypes.data,
            len(combination.coefficients), rows.ctypes.data, None if buffers is None else buffers.ctypes.data,
            len(rows), rows.shape[1], steps.first, steps.start, steps.end, steps.resumes,
            max(len(rows), _CHUNK), most_pairs, tiles.ctypes.data,
        )  # fmt: skip
        several = threads if int(tiles[:, 3].sum()) * (steps.end - steps.first) >= SPLIT else 1
        before = (self.level, key, ctypes.addressof(phase))
        run_in_parts(
            self.library.sordino_advance_phase, before, (), len(tiles), several, short="vectors of correlated noise"
        )

    def add_scaled(
        self,
        noise: NDArray[np.float32],
        scale: float,
        addresses: Sequence[int],
        sizes: Sequence[int],
        threads: int = 1,
        factor: float = 1.0,
    ) -> None:
        """Adds scale × the phase's noise to float32 arrays laid end to end, none of them empty, and multiplies the sums
        by a factor.
        """
        ends = list(accumulate(sizes))
        tensors, held = pack_numbers((*addresses, *ends))
        several = 1 if ends[-1] < SPLIT else threads
        after = (tensors, tensors + 8 * len(ends), noise.ctypes.data)
        run_in_parts(self.library.sordino_add_scaled, (scale, factor), after, ends[-1], several)
        del held
