"""Per-sample gradients of every backend against one backward pass per sample, over a grid of layers."""

import pytest
import torch
from torch import nn

from sordino.per_sample import Chunked, Loop, Vmap
from sordino.per_sample.materialised import make_empty
from sordino.per_sample.protocol import trainable_parameters
from sordino.per_sample.row_arithmetic import row_squared_norms
from sordino.refusal import Refusal

B = 4


class Tied(nn.Module):
    """An embedding tied to the output head, and a layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 9, bias=False)  # registered before it runs
        self.embed = nn.Embedding(9, 5)
        self.twice = nn.Linear(5, 5)
        self.embed.weight = self.head.weight

    def forward(self, x):
        return self.head(torch.tanh(self.twice(self.twice(self.embed(x)))))


class Raw(nn.Module):
    """Parameters of its own, one of them not used."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3))
        self.unused = nn.Parameter(torch.randn(2, 2))
        self.scalar = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return self.scalar * torch.sin(x * self.scale)


def normal(*shape):
    return lambda: torch.randn(B, *shape)


def ids(high, *shape):
    return lambda: torch.randint(high, (B, *shape))


LAYERS = {
    "linear": (lambda: nn.Linear(6, 3), normal(6)),
    "linear-4d": (lambda: nn.Linear(6, 3, bias=False), normal(2, 3, 6)),
    "conv1d-reflect": (lambda: nn.Conv1d(2, 4, 3, padding=1, padding_mode="reflect"), normal(2, 7)),
    "conv2d-circular": (lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular", stride=2), normal(2, 6, 6)),
    "conv2d-grouped-dilated": (lambda: nn.Conv2d(4, 4, 3, groups=2, dilation=2, padding="same"), normal(4, 6, 6)),
    "conv2d-depthwise": (lambda: nn.Conv2d(3, 6, 3, groups=3, padding_mode="replicate", padding=1), normal(3, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2), normal(1, 3, 3, 3)),
    "conv-transpose": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1), normal(2, 4, 4)),
    "embedding-padding": (lambda: nn.Embedding(7, 3, padding_idx=0), ids(7, 5)),
    "embedding-bag": (lambda: nn.EmbeddingBag(3, 4, mode="sum"), ids(3, 6)),
    "layernorm": (lambda: nn.LayerNorm(6), normal(3, 6)),
    "rmsnorm": (lambda: nn.RMSNorm(6), normal(3, 6)),
    "groupnorm": (lambda: nn.GroupNorm(2, 4), normal(4, 3, 3)),
    "instancenorm": (lambda: nn.InstanceNorm2d(3, affine=True), normal(3, 4, 4)),
    "prelu": (lambda: nn.PReLU(3), normal(3, 4)),
    "tied-and-reused": (Tied, ids(9, 5)),
    "raw": (Raw, normal(3)),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), normal(5, 8)),
}
RECURRENT = {
    "lstm": (lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True), normal(5, 3)),
    "gru": (lambda: nn.GRU(3, 4, batch_first=True), normal(5, 3)),
}


def loss(model, x):
    out = model(x)
    out = out[0] if isinstance(out, tuple) else out
    return out.flatten(1).sin().sum(dim=1)


def case(make, data, dtype=torch.float64):
    torch.manual_seed(0)
    model = make().to(dtype)
    x = data()
    return model, (x.to(dtype) if x.is_floating_point() else x,)


BACKENDS = {"vmap": Vmap(), "vmap-chunk": Vmap(chunk=3)}


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize(("make", "data"), LAYERS.values(), ids=LAYERS)
def test_norms_dots_and_sums_are_the_loops(make, data, backend):
    model, batch = case(make, data)
    oracle, other = Loop().per_sample(model, loss, batch), backend.per_sample(model, loss, batch)
    close = {"rtol": 1e-10, "atol": 1e-12}
    assert other.norms().names == oracle.norms().names
    torch.testing.assert_close(other.norms().squared, oracle.norms().squared, **close)
    torch.testing.assert_close(other.losses, oracle.losses, **close)
    theta = {name: p.detach() for name, p in trainable_parameters(model).items()}
    torch.testing.assert_close(other.dot(theta), oracle.dot(theta), **close)
    for weights in (torch.rand(B, 1).double(), torch.rand(B, len(theta)).double()):
        one, two = other.weighted_sum(weights), oracle.weighted_sum(weights)
        for name in two:
            torch.testing.assert_close(one[name], two[name], **close)


@pytest.mark.parametrize(("make", "data"), [*LAYERS.values(), *RECURRENT.values()], ids=[*LAYERS, *RECURRENT])
def test_the_loop_sums_to_plain_autograd(make, data):
    model, batch = case(make, data)
    total = Loop().per_sample(model, loss, batch).weighted_sum(torch.ones(B, 1))
    plain = torch.autograd.grad(
        loss(model, *batch).sum(), list(trainable_parameters(model).values()), allow_unused=True
    )
    for (name, p), grad in zip(trainable_parameters(model).items(), plain, strict=True):
        torch.testing.assert_close(total[name], torch.zeros_like(p) if grad is None else grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("make", "data"), RECURRENT.values(), ids=RECURRENT)
def test_what_torch_func_cannot_vectorise_is_sent_to_the_loop(make, data):
    model, batch = case(make, data)
    with pytest.raises(Refusal, match=r"Loop\(\)"):
        Vmap().per_sample(model, loss, batch)


def test_an_error_of_the_models_own_stays_its_own():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        Vmap().per_sample(nn.Linear(3, 2), loss, (torch.zeros(4, 5),))


def test_a_sample_whose_weight_is_zero_contributes_nothing_not_even_nan():
    model, (x,) = case(*LAYERS["linear"])
    x[1] = float("nan")
    for backend in (Loop(), Vmap()):
        grads = backend.per_sample(model, loss, (x,))
        total = grads.weighted_sum(torch.tensor([[1.0], [0.0], [1.0], [1.0]]))
        assert all(torch.isfinite(value).all() for value in total.values())


def test_a_sum_keeps_single_precision_for_half_precision_gradients():
    model, batch = case(*LAYERS["linear"], dtype=torch.bfloat16)
    grads = Loop().per_sample(model, loss, batch)
    assert grads.norms().squared.dtype == torch.float32
    assert all(value.dtype == torch.float32 for value in grads.weighted_sum(torch.ones(B, 1)).values())


def test_sparse_embeddings_are_handled():
    model, batch = case(lambda: nn.Embedding(7, 3, sparse=True), ids(7, 5))
    dense, _ = case(lambda: nn.Embedding(7, 3), ids(7, 5))
    dense.load_state_dict(model.state_dict())
    one, two = (Loop().per_sample(m, loss, batch).weighted_sum(torch.ones(B, 1)) for m in (model, dense))
    torch.testing.assert_close(one["weight"], two["weight"])


def test_gradients_and_model_are_left_as_they_were():
    model, batch = case(*LAYERS["transformer"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for backend in (Loop(), Vmap()):
        backend.per_sample(model, loss, batch)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_norm_of_millions_of_elements_is_not_read_low():
    """float32 norms over 2²² elements; a naive reduction is off by up to 1e-4 and breaks the bound."""
    rows = torch.full((2, 1 << 22), 0.1)
    exact = rows.double().square().sum(dim=1)
    torch.testing.assert_close(row_squared_norms(rows).double(), exact, rtol=1e-7, atol=0)


def test_chunks_give_what_the_whole_gives():
    model, (x,) = case(*LAYERS["conv1d-reflect"])
    whole = Loop().per_sample(model, loss, (x,))
    parts = Chunked(lambda: (Vmap().per_sample(model, loss, (x[i : i + 3],)) for i in range(0, B, 3)))
    theta = {name: p.detach() for name, p in trainable_parameters(model).items()}
    weights = torch.rand(B, 1).double()
    torch.testing.assert_close(parts.norms().squared, whole.norms().squared)
    torch.testing.assert_close(parts.dot(theta), whole.dot(theta))
    torch.testing.assert_close(parts.losses, whole.losses)
    for name, value in whole.weighted_sum(weights).items():
        torch.testing.assert_close(parts.weighted_sum(weights)[name], value)


def test_the_gradients_of_nobody():
    model, _ = case(*LAYERS["linear"])
    none = make_empty(trainable_parameters(model))
    assert none.norms().squared.shape == (0, 2)
    assert all((value == 0).all() for value in none.weighted_sum(torch.zeros(0, 1)).values())
