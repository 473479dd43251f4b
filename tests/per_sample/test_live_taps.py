"""Convolutions whose kernels reach beyond the picture: taps that read only padding are left out, and nothing else is."""

import copy

import pytest
import torch
from torch import nn

from sordino.per_sample import Captured, PerformanceOptions
from sordino.per_sample.formulas.convolution_geometry import Geometry, find_live_taps
from tests.per_sample.oracle import same

CASES = {
    "one pixel": (nn.Conv2d(3, 4, 3, padding=1), (3, 1, 1), (1, 1)),
    "one pixel of two, by stride": (nn.Conv2d(3, 4, 3, stride=2, padding=1), (3, 2, 2), (2, 2)),
    "two rows": (nn.Conv2d(4, 4, (5, 3), padding=(2, 1), groups=2), (4, 2, 6), (3, 3)),
    "dilated": (nn.Conv2d(3, 4, 3, padding=4, dilation=4), (3, 3, 3), (1, 1)),
    "one dimension": (nn.Conv1d(3, 4, 7, padding=3), (3, 2), (3,)),
    "three dimensions": (nn.Conv3d(2, 3, 3, padding=1), (2, 1, 3, 1), (1, 3, 1)),
}
WHOLE = {
    "every tap reads": (nn.Conv2d(3, 4, 3, padding=1), (3, 2, 2)),
    "no padding": (nn.Conv2d(3, 4, 3), (3, 5, 5)),
}


def geometry(conv: nn.Module) -> Geometry:
    return Geometry(conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups)


@pytest.mark.parametrize("case", CASES)
def test_taps_left_out_change_no_output_and_those_left_in_do(case: str) -> None:
    conv, shape, kernel = CASES[case]
    found = find_live_taps(geometry(conv), shape[1:])
    assert found is not None
    taps, fewer = found
    assert fewer.kernel == kernel
    x, weight = torch.ones(1, *shape), torch.zeros_like(conv.weight)
    convolve = copy.deepcopy(conv)
    for tap in torch.ones(conv.kernel_size).nonzero().tolist():
        weight.zero_()
        weight[(slice(None), slice(None), *tap)] = 1.0
        convolve.weight.data, convolve.bias.data = weight, torch.zeros_like(conv.bias)
        inside = all(each.start <= i < each.stop for i, each in zip(tap, taps[2:], strict=True))
        assert bool(convolve(x).any()) == inside, tap


@pytest.mark.parametrize("case", WHOLE)
def test_where_every_tap_reads_nothing_is_left_out(case: str) -> None:
    conv, shape = WHOLE[case]
    assert find_live_taps(geometry(conv), shape[1:]) is None


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_the_loops(case: str, last: bool) -> None:
    torch.manual_seed(0)
    conv, shape = copy.deepcopy(CASES[case][0]), CASES[case][1]
    conv.reset_parameters()
    before = type(conv)(shape[0], shape[0], 1)  # so that there is a gradient at the input
    options = PerformanceOptions(channels_last=last)
    same(nn.Sequential(before, nn.Tanh(), conv).double(), (torch.randn(5, *shape).double(),), backend=Captured(options))


def test_a_layer_used_twice_is_exact_too() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(self.conv(x).tanh()[:, :, :1, :1])

    torch.manual_seed(0)
    same(Twice().double(), (torch.randn(4, 3, 4, 4).double(),))
