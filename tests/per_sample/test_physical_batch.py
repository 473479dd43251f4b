"""How many records are processed at once."""

import torch

from sordino.per_sample.physical_batch import MOST, choose_physical_batch


def test_memory_decides_the_physical_batch():
    cpu = torch.device("cpu")
    assert choose_physical_batch(1, cpu) == MOST
    assert choose_physical_batch(1 << 60, cpu) == 1
    assert 1 <= choose_physical_batch(100 << 20, cpu) < MOST
