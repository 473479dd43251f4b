"""Max pooling by the compiled kernel: torch's maxima and gradients to the last bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sordino.kernels import build, pool
from sordino.kernels.abi import KernelWindow
from sordino.per_sample import Captured, PerformanceOptions
from sordino.per_sample.accelerations import max_pooling as pooling
from tests.kernels.libraries import library as of_these_sources
from tests.per_sample.oracle import same

LAST = torch.channels_last


@pytest.fixture(scope="module")
def library():
    return of_these_sources(build.POOL, pool.FUNCTIONS)


@st.composite
def layers(draw):
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    size = tuple(draw(st.integers(max(1, k - 2 * p), 9)) for k, p in zip(kernel, padding, strict=True))
    return draw(st.integers(1, 3)), draw(st.integers(1, 19)), size, KernelWindow(kernel, stride, padding)


@pytest.mark.parametrize("level", [0, 1])
@given(layer=layers(), few=st.booleans(), bad=st.booleans(), seed=st.integers(0, 9))
@settings(max_examples=150, deadline=None)
def test_maxima_and_gradients_are_torchs_to_the_last_bit(library, level, layer, few, bad, seed):
    n, channels, size, window = layer
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 3, (n, channels, *size), generator=rng).float() if few else None  # equal values
    x = torch.randn(n, channels, *size, generator=rng) if x is None else x
    if bad:
        x.view(-1)[:: max(1, x.numel() // 5)] = torch.nan
        x.view(-1)[1 :: max(1, x.numel() // 3)] = -torch.inf
    x = x.contiguous(memory_format=LAST)
    y, places = torch.ops.aten.max_pool2d_with_indices(x, *window[:3])
    g = torch.randn(y.shape, generator=rng)
    back = torch.ops.aten.max_pool2d_with_indices_backward(g, x, *window[:3], (1, 1), False, places)
    made = pool.Pools(library, level)
    if not pool.can_run(x, window):
        pytest.fail("it can do all of these")
    found, taps = made.forward(x, window)
    assert torch.equal(found.nan_to_num(7, 8, 9), y.nan_to_num(7, 8, 9))
    assert torch.equal(made.backward(x.shape, g, taps, window), back)
    assert torch.equal(pooling._backward_by_torch(x.shape, g, taps, window), back)


def test_threads_change_nothing(library):
    x = torch.randn(5, 32, 20, 20).contiguous(memory_format=LAST)
    window, made, before = KernelWindow((3, 3), (2, 2), (1, 1)), pool.Pools(library, 1), torch.get_num_threads()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        y, taps = made.forward(x, window)
        found.append((y, taps, made.backward(x.shape, y.cos(), taps, window)))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def model(**options):
    torch.manual_seed(0)
    first, second = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 9, 3)
    return nn.Sequential(
        first, nn.ReLU(), nn.MaxPool2d(**options), second, nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(3)
    )


def loss(net, x):
    return net(x).square().sum(1)


@pytest.mark.parametrize("options", [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}])
def test_norms_and_sums_are_those_of_the_loop_and_the_model_is_put_back(options, monkeypatch):
    net, x = model(**options), torch.randn(6, 2, 16, 16)
    net(x)
    if pool.load_pools() is None:
        pytest.skip("nothing was compiled")
    calls = []
    forward = pool.Pools.forward
    monkeypatch.setattr(pool.Pools, "forward", lambda self, *given: calls.append(1) or forward(self, *given))
    backend = Captured(PerformanceOptions(channels_last=True))
    for _ in range(2):
        same(net, (x,), loss, backend)
    assert calls, "the layers took it"
    assert all("forward" not in module.__dict__ for module in net.modules())


@pytest.mark.parametrize("options", [{"ceil_mode": True}, {"dilation": 2}, {"stride": 1}])
def test_what_is_unusual_runs_by_its_own_code(options):
    net, x = model(kernel_size=3, **options), torch.randn(4, 2, 17, 17)
    net(x)
    same(net, (x,), loss, Captured(PerformanceOptions(channels_last=True)))


def test_a_gradient_of_the_gradient_goes_through(library):
    """As torch's own does: by create_graph."""
    x = torch.randn(2, 9, 6, 6).contiguous(memory_format=LAST).requires_grad_()
    kernel, window = pool.Pools(library, 1), KernelWindow((2, 2), (2, 2))

    def penalty(pooled):
        (slope,) = torch.autograd.grad(pooled.pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x)[0]

    mine = penalty(pooling._MaxPool.apply(x, window, kernel))
    assert torch.allclose(mine, penalty(nn.functional.max_pool2d(x, 2)))


class OfAParameter(nn.Module):
    """Pools an image that all samples share, beside one of their own."""

    def __init__(self):
        super().__init__()
        self.image = nn.Parameter(torch.randn(1, 8, 6, 6).contiguous(memory_format=LAST))
        self.layer, self.pool = nn.Conv2d(2, 8, 3, padding=1), nn.MaxPool2d(2)

    def forward(self, x):
        return (self.pool(self.layer(x)) * self.pool(self.image * 2)).flatten(1)


def test_a_parameter_that_is_pooled_is_followed():
    torch.manual_seed(0)
    same(OfAParameter(), (torch.randn(5, 2, 6, 6),), loss, Captured(PerformanceOptions(channels_last=True)))
