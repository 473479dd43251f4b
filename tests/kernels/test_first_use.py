"""A kernel is compared with torch when it is first used, whatever the user has switched on around it."""

import pytest
import torch

from sordino.kernels import (
    affine,
    convolution,
    correlation,
    depthwise,
    gram,
    matrices,
    product,
    winograd,
    winograd_rows,
)

FIRST_USES = {
    "affine": affine.load_affines,
    "convolution": convolution.load_gradients,
    "correlation": correlation.load_correlations,
    "depthwise": depthwise.load_gradients,
    "gram": gram.load_grams,
    "matrices": matrices.load_functions,
    "product": product.load_products,
    "winograd": winograd.load_passes,
    "winograd rows": winograd_rows.load_gradients,
}


@pytest.mark.parametrize("name", FIRST_USES)
def test_under_autocast_a_kernel_is_trusted_as_elsewhere(name):
    """Torch's half of the comparison was in bfloat16, and kernels wrote float32 into room of its size."""
    first_use = FIRST_USES[name].__wrapped__  # as if nobody had asked before
    plainly = first_use()
    with torch.autocast("cpu", torch.bfloat16):
        cast = first_use()
    assert (cast is None) == (plainly is None)
