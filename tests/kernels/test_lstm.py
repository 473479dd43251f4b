"""The compiled LSTM layer: torch's own in float64, for any shape, stride and number of threads; the loop's gradients."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino.kernels import build
from sordino.kernels.lstm import FUNCTIONS, Recurrence, Weights, agrees_with_torch
from sordino.per_sample import Captured, Loop, PerformanceOptions
from sordino.per_sample.layers import recurrent
from tests.kernels.libraries import levels
from tests.per_sample.oracle import same, square

quick = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


kernel = levels(build.LSTM, FUNCTIONS, Recurrence)


class Counted:
    """A kernel that counts its calls."""

    def __init__(self, kernel):
        self.kernel, self.calls = kernel, []

    def forward(self, *args):
        self.calls.append("forward")
        return self.kernel.forward(*args)

    def backward(self, *args, **options):
        self.calls.append("backward")
        return self.kernel.backward(*args, **options)


@pytest.fixture
def used(kernel, monkeypatch):
    counted = Counted(kernel)
    monkeypatch.setattr(recurrent, "load_recurrence", lambda: counted)
    return counted


def near(found: Tensor, wanted: Tensor, room: float) -> bool:
    """Up to rounding of values of size `room`: what is left after they cancel may be much smaller."""
    return bool((found.double() - wanted).norm() <= 1e-6 * room)


@quick
@given(
    st.integers(1, 6), st.integers(1, 60), st.integers(1, 20), st.integers(1, 40),
    st.sampled_from(("plain", "samples first", "columns of more")), st.integers(1, 3), st.booleans(),
)  # fmt: skip
def test_values_and_gradients_are_those_of_torch_in_float64(kernel, steps, b, d, n, layout, threads, inner):
    def made(k: int) -> Tensor:
        if layout == "samples first":
            return torch.randn(b, steps, k).transpose(0, 1)
        return (
            torch.randn(steps, b, k + 3)[:, :, 2 : k + 2] if layout == "columns of more" else torch.randn(steps, b, k)
        )

    x, dout, h0, c0, dlast = made(d), made(n), torch.randn(b, n), torch.randn(b, n), torch.randn(b, n)
    layer = nn.LSTM(d, n)
    w_ih, w_hh, b_ih, b_hh = (p.detach() for p in layer.parameters())
    weights = Weights(w_ih, w_hh, b_ih + b_hh)
    out, trace = kernel.forward(x, h0, c0, weights, threads)
    back = kernel.backward(trace, weights, dout, dlast, threads, inner=inner)

    layer.double()
    leaves = [t.double().requires_grad_() for t in (x, h0[None], c0[None])]
    wanted, (_, last) = layer(leaves[0], tuple(leaves[1:]))
    slopes = torch.autograd.grad([wanted, last], [*leaves, *layer.parameters()], [dout.double(), dlast[None].double()])
    states, read = float(h0.norm() + c0.norm()) + (steps * b * n) ** 0.5, float(trace.read.norm())
    given = float(dout.norm() + dlast.norm())  # the backward pass is linear in these
    assert near(out, wanted, states)
    assert near(trace.cells[-1], last[0], states)
    assert (back.dx is None) is not inner
    if inner:
        assert near(back.dx, slopes[0], given)
    assert near(back.dh0, slopes[1][0], given)
    assert near(back.dc0, slopes[2][0], given)
    product = trace.gates.flatten(0, 1).double().t() @ trace.read.flatten(0, 1).double()
    assert near(product[:, :d], slopes[3], given * read)
    assert near(product[:, d:], slopes[4], given * read)
    assert near(back.sums.sum(0), slopes[5], given * b**0.5)
    assert near(back.sums, trace.gates.double().sum(0), given)


def test_sigmoid_and_tanh_keep_their_digits(kernel):
    """Relative to float64, also where they are small; a unit per value, by its bias."""
    values = torch.cat([torch.linspace(-80, 80, 4001), torch.logspace(-30, 1, 500), -torch.logspace(-30, 1, 500)])
    n = len(values)
    weights = Weights(torch.zeros(4 * n, 1), torch.zeros(4 * n, n), values.repeat(4))
    state = torch.zeros(1, n)
    _, trace = kernel.forward(torch.zeros(1, 1, 1), state, state, weights)
    i, f, z, o = trace.gates[0, 0].double().chunk(4)
    exact = values.double()
    for gate in (i, f, o):
        assert ((gate - exact.sigmoid()) / exact.sigmoid()).abs().max() < 2e-7
    assert ((z - exact.tanh()) / exact.tanh())[exact != 0].abs().max() < 2.5e-7
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e30, -1e30, 0.0])
    weights = Weights(torch.zeros(24, 1), torch.zeros(24, 6), ends.repeat(4))
    _, trace = kernel.forward(torch.zeros(1, 1, 1), state[:, :6], state[:, :6], weights)
    i, _, z, _ = trace.gates[0, 0].chunk(4)
    assert torch.allclose(i, ends.sigmoid(), atol=1e-37, equal_nan=True)
    assert torch.equal(z.nan_to_num(7), ends.tanh().nan_to_num(7))


def test_threads_and_neighbours_do_not_change_a_sample(kernel):
    steps, b, d, n = 5, 101, 7, 19
    weights = Weights(torch.randn(4 * n, d), torch.randn(4 * n, n), torch.randn(4 * n))
    x, state, dout = torch.randn(steps, b, d), torch.randn(b, n), torch.randn(steps, b, n)

    def both(where: slice, threads: int) -> list[Tensor]:
        out, trace = kernel.forward(x[:, where], state[where], state[where], weights, threads)
        back = kernel.backward(trace, weights, dout[:, where], state[where], threads)
        return [out, back.dx, trace.gates.clone()]

    whole = both(slice(None), 1)
    assert all(torch.equal(a, c) for a, c in zip(whole, both(slice(None), 3), strict=True))
    for where in (slice(0, 1), slice(40, 53), slice(97, 101)):
        assert all(torch.equal(a[:, where], c) for a, c in zip(whole, both(where, 1), strict=True))


def test_a_wrong_kernel_is_not_trusted(kernel):
    class Wrong(Recurrence):
        def backward(self, *args, **options):
            back = super().backward(*args, **options)
            back.dh0.mul_(1 + 1e-4)
            return back

    assert agrees_with_torch(kernel)
    assert not agrees_with_torch(Wrong(kernel.library, kernel.level))


class Net(nn.Module):
    """Outputs and last states; `before` is a layer below, `learned` an initial state that is a parameter."""

    def __init__(self, *, before: bool = True, learned: bool = False, second: bool = False, **options):
        super().__init__()
        self.before = nn.Linear(5, 5) if before else nn.Identity()
        self.layer = nn.LSTM(5, 9, batch_first=not second, **options)
        self.start = nn.Linear(5, 9) if learned else None
        self.second = second

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        state = None if self.start is None else (self.start(x[:, 0])[None], self.start(x[:, 1])[None])
        out, last = self.layer(x.transpose(0, 1) if self.second else x, state)
        out = out.transpose(0, 1) if self.second else out
        return torch.cat([out.flatten(1), *[s.transpose(0, 1).flatten(1) for s in last]], 1)


NETS = {
    "plain": lambda: Net(),
    "first layer": lambda: Net(before=False),
    "batch second": lambda: Net(second=True),
    "no bias": lambda: Net(bias=False),
    "deep, both ways": lambda: Net(num_layers=2, bidirectional=True),
    "given states": lambda: Net(learned=True),
}


@pytest.mark.parametrize("two_pass", [False, True], ids=("one pass", "two passes"))
@pytest.mark.parametrize("net", NETS.values(), ids=NETS.keys())
def test_per_sample_gradients_are_the_loops(used, net, two_pass):
    torch.manual_seed(3)
    same(net(), (torch.randn(6, 7, 5),), backend=Captured(PerformanceOptions(two_pass=two_pass)))
    assert {"forward", "backward"} <= set(used.calls)


@pytest.mark.parametrize("name", ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0"])
def test_one_parameter_alone(used, name):
    net = Net()
    for key, p in net.named_parameters():
        p.requires_grad_(key.endswith(name))
    same(net, (torch.randn(6, 7, 5),))


def test_a_layer_used_twice(used):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(6, 6, batch_first=True)

        def forward(self, x):
            return self.layer(2 * self.layer(x)[0] + 1)[0]

    same(Twice(), (torch.randn(5, 4, 6),))


def test_a_graph_that_was_walked_before(used):
    """The gates are overwritten by the first walk; the second finds them again."""

    def loss(model, x):
        losses = square(model, x)
        torch.autograd.grad(losses.sum(), [losses], retain_graph=True)
        inputs = model.before(x)
        out = model.layer(inputs)[0].flatten(1).sin().sum(1)
        force = torch.autograd.grad(out.sum(), inputs, retain_graph=True)[0]
        return losses + out + force.detach().flatten(1).sum(1)

    same(Net(), (torch.randn(5, 4, 5),), loss)


def test_checkpointed_layers(used):
    class Kept(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Net()

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    same(Kept(), (torch.randn(5, 4, 5),))


def test_a_sample_that_is_not_finite_adds_nothing(used):
    x = torch.randn(5, 4, 5)
    model, backend = Net(), Captured()
    backend.per_sample(model, square, (x,))  # a model is trusted on finite samples
    weights = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]).unsqueeze(1)
    wanted = Loop().per_sample(model, square, (x,)).weighted_sum(weights)
    x[2, 3, 1] = torch.nan
    grads = backend.per_sample(model, square, (x,))
    assert not grads.norms().total()[2].isfinite()
    found = grads.weighted_sum(weights)
    assert all(torch.allclose(found[name], wanted[name], rtol=1e-4, atol=1e-5) for name in wanted)


def test_other_precisions_go_by_torch(used):
    same(Net().double(), (torch.randn(5, 4, 5).double(),))
    with torch.autocast("cpu", torch.bfloat16):
        Captured().per_sample(Net(), square, (torch.randn(5, 4, 5),)).norms()
    assert not used.calls


def test_lots_of_different_sizes_use_the_same_memory_and_stay_right(used):
    """Buffers are handed out again only when nobody holds them."""
    model, backend = Net(), Captured()
    held = []
    for b in (300, 200, 300):
        x = torch.randn(b, 150, 5)
        grads = backend.per_sample(model, square, (x,))
        held.append((x, grads, grads.norms().squared.clone()))
    for x, grads, squared in held:
        weights = torch.ones(len(x), 1)
        again = backend.per_sample(model, square, (x,))
        assert torch.allclose(again.norms().squared, squared, rtol=1e-5)
        for name, t in again.weighted_sum(weights).items():
            assert torch.allclose(t, grads.weighted_sum(weights)[name], rtol=1e-4, atol=1e-4 * float(t.norm()))
