"""How many records are processed at once."""

import torch

from sordino.per_sample.physical_batch import MOST, physical_batch


def test_memory_decides_the_physical_batch():
    cpu = torch.device("cpu")
    assert physical_batch(1, cpu) == MOST
    assert physical_batch(1 << 60, cpu) == 1
    assert 1 <= physical_batch(100 << 20, cpu) < MOST
