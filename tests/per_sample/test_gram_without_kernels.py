"""Gram norms on a CPU without the compiled kernels: PyTorch's libraries add up the products, and no norm reads low."""

import os
import subprocess
import sys

_CODE = """
import torch
from sordino.kernels.gram import load_grams
from sordino.per_sample import PerformanceOptions
from sordino.per_sample.formulas.matrix_product import Matmul, gram_rounding_factor
from sordino.per_sample.formulas.output_gradient import compute_gram_sums

assert load_grams() is None
lowest, raised_by = 2.0, float("inf")
for width in (64, 4096):
    # Products of equal or growing sizes lose the most where they are added up one after the other.
    for row in (torch.full((width,), 1.0001), torch.linspace(1e-3, 1.0, width)):
        a = row.expand(6, 9, width) * torch.linspace(0.5, 1.5, 6)[:, None, None]
        g = torch.rand(6, 9, 5, generator=torch.Generator().manual_seed(0)) + 0.5
        true = torch.bmm(g.double().transpose(1, 2), a.double()).flatten(1).norm(dim=1)
        part = Matmul(a.contiguous(), g)
        sums, diagonal = compute_gram_sums(part.a, part.g)
        terms = (a.double().norm(dim=2) * g.double().norm(dim=2)).sum(1).square()
        # By how much of their terms norms are raised: more than for one rounding, as libraries make many.
        raised = part._guard_cancellation(sums, diagonal, PerformanceOptions()).double()
        raised_by = min(raised_by, float(((raised - sums.double()) / terms).min()) / gram_rounding_factor(torch.float32))
        lowest = min(lowest, float((raised.sqrt() / true).min()))
assert lowest >= 1 - 1e-7, lowest
assert raised_by > 2, raised_by
print("never low", lowest, raised_by)
"""


def test_gram_norms_without_the_compiled_kernels_do_not_read_low():
    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        env={**os.environ, "SORDINO_KERNELS": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "never low" in done.stdout, done.stderr
