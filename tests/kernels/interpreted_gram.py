"""Compares the Gram kernel with torch's products in Triton's interpreter; imported by a process with TRITON_INTERPRET=1."""

import os

import torch

from sordino.kernels import device_gram
from sordino.per_sample.formulas import matrix_product
from sordino.per_sample.formulas.output_gradient import compute_gram_sums

cpu = torch.device("cpu")
plain = compute_gram_sums.plain

# The library raises norms by what the self-test allows for.
assert device_gram.gram_rounding(300) == matrix_product.device_rounding_factor(torch.float32, 300)

# Parts of tiles, whole tiles, one position; and a tensor whose positions come first in memory.
for b, t, d, p in ((3, 40, 17, 50), (2, 32, 32, 64), (4, 1, 3, 2), (1, 65, 33, 8)):
    a, g = torch.randn(t, b, d).transpose(0, 1), torch.randn(b, t, 2 * p)[..., ::2]
    for found, expected in zip(device_gram.launch(a, g), plain(a.double(), g.double()), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-3)

# A row of the table of accelerations uses it, if it is switched on and passes its test.
assert device_gram.find_device_gram_fault(cpu) == "SORDINO_DEVICE_GRAM=1 is not set"
device_gram.find_device_gram_fault.cache_clear()
os.environ[device_gram.SWITCH], device_gram.KINDS = "1", ("cuda", "cpu")
assert device_gram.find_device_gram_fault(cpu) is None, device_gram.find_device_gram_fault(cpu)
print("equal")  # noqa: T201
