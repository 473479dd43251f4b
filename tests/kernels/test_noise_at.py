"""Value j of a draw by itself: the bits it has in the whole draw, by the kernel and by numpy."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from sordino.rng import keystream as of_random
from sordino.rng import normals
from sordino.rng.keystream import KeyStream
from sordino.rng.streams import Rng

BLOCK = normals.BLOCK
TOTALS = (1, 2, 7, 4999, BLOCK, BLOCK + 1, 2 * BLOCK + 4001)


def stream() -> KeyStream:
    return KeyStream(bytes(range(32)), 77)


def whole(total: int) -> np.ndarray:
    return np.concatenate([block.copy() for block in normals.normal_blocks(stream(), total, 1.5)])


def stretches(total: int) -> list[tuple[int, int]]:
    """The whole, its ends, cuts at and around the edges of blocks and of their halves, shares of 2, 3 and 7 ranks."""
    half = (min(total, BLOCK) + 1) // 2
    edges = {0, 1, half - 1, half, half + 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, total - 1, total}
    edges |= {-(-total // ranks) * k for ranks in (2, 3, 7) for k in range(1, ranks)}
    inside = sorted(edge for edge in edges if 0 <= edge <= total)
    return [(a, b - a) for a in inside for b in inside if a <= b]


@pytest.mark.parametrize("total", TOTALS)
def test_the_slow_path_gives_slices_of_the_whole_draw(total):
    wanted = whole(total)
    for start, count in stretches(total)[:: 1 + total // BLOCK * 3]:
        found = normals.normals_at(stream(), total, start, count, 1.5)
        assert np.array_equal(found.view(np.uint32), wanted[start : start + count].view(np.uint32))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("total", TOTALS)
def test_the_kernel_gives_slices_of_the_whole_draw(total, threads):
    kernel = of_random.noise_kernel()
    if kernel is None or not kernel.makes_key_stream:
        pytest.skip("no compiled key stream here")
    wanted = whole(total)
    for start, count in stretches(total):
        found = kernel.normals_at(stream(), 1.5, total, start, count, threads)
        assert np.array_equal(found, wanted[start : start + count])


def test_the_last_block_of_a_longer_draw_has_other_values():
    """The number of values is part of the definition: a share cannot be drawn as if it were a draw of its own."""
    assert not np.array_equal(
        normals.normals_at(stream(), 100, 0, 10, 1.0), normals.normals_at(stream(), 10, 0, 10, 1.0)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shares_put_together_are_the_draw_and_each_is_one_draw(dtype):
    total = BLOCK + 1001
    together = Rng.from_seed(3).normal(total, dtype)
    cuts = [0, total // 3, total // 3, BLOCK + 5, total]
    shares = []
    for a, b in pairwise(cuts):
        rng = Rng.from_seed(3)
        shares.append(rng.normals_at(total, [(a, b - a)], dtype=dtype))
        assert rng.counter == 1  # an empty share too: all ranks stay at the same draw
    assert torch.equal(torch.cat(shares), together)


def test_values_outside_the_draw_are_refused():
    with pytest.raises(ValueError, match="values 5 to 11 of 10"):
        Rng.from_seed(3).normals_at(10, [(5, 6)])
