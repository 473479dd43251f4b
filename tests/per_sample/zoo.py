"""Layers and models of the grid: every layer with a rule, every option that changes its gradient, and odd compositions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Case:
    """A model and the shapes of its inputs; an int shape is a number of token ids below it."""

    name: str
    model: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    ids: int = 0

    def batch(self, b: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Random inputs."""
        if self.ids:
            return tuple(torch.randint(0, self.ids, (b, *shape)) for shape in self.shapes)
        return tuple(torch.randn(b, *shape, dtype=dtype) for shape in self.shapes)

    def __str__(self) -> str:
        return self.name


class Recurrent(nn.Module):
    """The outputs and the last states of a recurrent layer, batch second if asked."""

    def __init__(self, kind: Any, second: bool = False, **options: Any) -> None:
        super().__init__()
        self.layer, self.second = kind(4, 6, batch_first=not second, **options), second

    def forward(self, x: Tensor) -> Tensor:
        out, last = self.layer(x.transpose(0, 1) if self.second else x)
        out = out.transpose(0, 1) if self.second else out
        states = last if isinstance(last, tuple) else (last,)
        return torch.cat([out.flatten(1), *[s.transpose(0, 1).flatten(1) for s in states]], 1)


class Cell(nn.Module):
    """A cell called once per step."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell = kind(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return state[0] if isinstance(state, tuple) else state


class Attend(nn.Module):
    """Self- or cross-attention."""

    def __init__(self, cross: int | None = None, weights: bool = False, **options: Any) -> None:
        super().__init__()
        self.attention, self.cross, self.weights = nn.MultiheadAttention(8, 2, **options), cross, weights

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        y = x if y is None else y
        if not self.attention.batch_first:
            x, y = (x.transpose(0, 1), x.transpose(0, 1)) if y is x else (x.transpose(0, 1), y.transpose(0, 1))
        if self.cross is None:
            y = x
        out, weights = self.attention(x, y, y, need_weights=self.weights)
        out = out if self.attention.batch_first else out.transpose(0, 1)
        return out if weights is None else torch.cat([out.flatten(1), weights.flatten(1)], 1)


class Masked(nn.Module):
    """Causal and padded attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True)

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        causal = torch.ones(t, t).triu(1).bool()
        padded = torch.arange(t)[None].expand(x.shape[0], -1) >= t - 1
        return self.attention(x, x, x, key_padding_mask=padded, attn_mask=causal, need_weights=False)[0]


class Tied(nn.Module):
    """An embedding tied to the output head, by module or by a functional call; positions shared by all samples."""

    def __init__(self, functional: bool = False) -> None:
        super().__init__()
        self.embedding, self.position, self.inner = nn.Embedding(10, 4), nn.Embedding(16, 4), nn.Linear(4, 4)
        self.functional = functional
        if not functional:
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embedding(ids) + self.position(torch.arange(ids.shape[1]))
        h = self.inner(torch.tanh(self.inner(h)))
        return F.linear(h, self.embedding.weight) if self.functional else self.head(h)


class Vit(nn.Module):
    """Raw parameters in the common ways: a class token, positions, a scale, a temperature, a product."""

    def __init__(self) -> None:
        super().__init__()
        self.cls, self.pos = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(1, 9, 4))
        self.scale, self.temperature = nn.Parameter(torch.randn(4)), nn.Parameter(torch.tensor(0.7))
        self.mix, self.inner = nn.Parameter(torch.randn(4, 4)), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), self.inner(x)], 1)
        x = x + self.pos[:, : x.shape[1]]
        x = x + self.scale.exp() * torch.tanh(self.inner(x))
        return (x @ self.mix) * self.temperature


class Gain(nn.Module):
    """A custom leaf: no rule, so vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x * self.gain, self.shift)


class Lora(nn.Module):
    """A frozen layer with a low-rank adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 6).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Folded(nn.Module):
    """Samples folded into rows, frames of a clip: k rows per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv, self.norm = nn.Linear(4, 5), nn.Conv1d(5, 4, 2), nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        b, k, t, _ = x.shape
        h = torch.tanh(self.linear(x.reshape(-1, 4))).view(b * k, t, 5)
        return self.norm(self.conv(h.transpose(1, 2))).view(b, -1)


class Backwards(nn.Module):
    """Registered in one order, run in another; one layer unused; one called twice; in-place everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.unused, self.first, self.twice = (
            nn.Linear(4, 2),
            nn.Linear(4, 4),
            nn.Linear(4, 4),
            nn.Linear(4, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu_(self.first(x))
        h = F.relu_(self.twice(h)) + 1
        self.unused(h)
        return self.last(torch.tanh_(self.twice(h)))


def _sequence(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*[layer() for layer in layers])


def _frozen(make: Callable[[], nn.Module], *names: str) -> Callable[[], nn.Module]:
    def model() -> nn.Module:
        built = make()
        for name, p in built.named_parameters():
            p.requires_grad_(name not in names)
        return built

    return model


def _conv(rank: int, *args: Any, **options: Any) -> Callable[[], nn.Module]:
    return lambda: (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1](*args, **options)


_MLP = _sequence(lambda: nn.Linear(4, 6), nn.ReLU, lambda: nn.Linear(6, 3))
_IMAGE = ((4, 7, 6),)

GRID = [
    Case("linear", lambda: nn.Linear(4, 3), ((4,),)),
    Case("linear-3d", lambda: nn.Linear(4, 3), ((5, 4),)),
    Case("linear-4d", lambda: nn.Linear(4, 3), ((2, 5, 4),)),
    Case(
        "linear-inplace", _sequence(lambda: nn.Linear(4, 6), lambda: nn.ReLU(True), lambda: nn.Linear(6, 3)), ((5, 4),)
    ),
    Case("bilinear-by-vmap", lambda: nn.Bilinear(4, 3, 2), ((4,), (3,))),
    *[
        Case(f"conv2d-{mode}", _conv(2, 4, 6, 3, (2, 1), (1, 2), (1, 2), 2, padding_mode=mode), _IMAGE)
        for mode in ("zeros", "reflect", "replicate", "circular")
    ],
    Case("conv1d-same-even", _conv(1, 4, 6, 4, padding="same", dilation=2), ((4, 11),)),
    Case("conv2d-valid", _conv(2, 4, 6, 3, padding="valid"), _IMAGE),
    Case("conv2d-1x1", _conv(2, 4, 6, 1), _IMAGE),
    Case("conv2d-depthwise", _conv(2, 4, 4, 3, groups=4, padding=1), _IMAGE),
    Case("conv2d-depthwise-multiplier", _conv(2, 4, 8, 3, groups=4, stride=2), _IMAGE),
    Case("conv3d", _conv(3, 2, 4, 3, 2, 1), ((2, 5, 4, 5),)),
    Case("conv-pair", _sequence(_conv(2, 4, 5, 3), lambda: nn.ReLU(True), _conv(2, 5, 3, 2)), _IMAGE),
    Case("transposed1d-output-padding", lambda: nn.ConvTranspose1d(4, 6, 3, 1, 0, 2, dilation=3), ((4, 5),)),
    Case("transposed2d-groups", lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), _IMAGE),
    Case("transposed3d", lambda: nn.ConvTranspose3d(2, 3, 2, 2), ((2, 2, 3, 2),)),
    Case("embedding", _sequence(lambda: nn.Embedding(7, 4), lambda: nn.Linear(4, 2)), ((9,),), 7),
    Case("embedding-padding", _sequence(lambda: nn.Embedding(5, 4, 2), lambda: nn.Linear(4, 2)), ((9,),), 5),
    *[
        Case(
            f"bag-{mode}-{padding}",
            lambda mode=mode, padding=padding: nn.EmbeddingBag(5, 4, mode=mode, padding_idx=padding),
            ((9,),),
            5,
        )
        for mode in ("sum", "mean", "max")
        for padding in (None, 2)
    ],
    Case("layernorm", lambda: nn.LayerNorm(4), ((3, 4),)),
    Case("layernorm-2d", _sequence(lambda: nn.Linear(4, 4), lambda: nn.LayerNorm((3, 4))), ((2, 3, 4),)),
    Case("layernorm-no-bias", lambda: nn.LayerNorm(4, bias=False), ((3, 4),)),
    Case("rmsnorm", _sequence(lambda: nn.Linear(4, 4), lambda: nn.RMSNorm(4)), ((3, 4),)),
    Case("rmsnorm-first", lambda: nn.RMSNorm(4), ((3, 4),)),
    Case("groupnorm", _sequence(_conv(2, 4, 4, 3), lambda: nn.GroupNorm(2, 4), lambda: nn.ReLU(True)), _IMAGE),
    Case("groupnorm-1d", lambda: nn.GroupNorm(2, 4), ((4, 5),)),
    Case("groupnorm-flat", lambda: nn.GroupNorm(2, 4), ((4,),)),
    Case("instancenorm", lambda: nn.InstanceNorm2d(4, affine=True), _IMAGE),
    Case("instancenorm-1d", lambda: nn.InstanceNorm1d(4, affine=True), ((4, 5),)),
    Case("instancenorm-eval", lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True).eval(), _IMAGE),
    Case("batchnorm-eval", lambda: nn.BatchNorm2d(4).eval(), _IMAGE),
    Case("prelu", lambda: nn.PReLU(), ((4, 5),)),
    Case("prelu-channels", lambda: nn.PReLU(4), ((4, 5),)),
    Case("attention", lambda: Attend(batch_first=True), ((5, 8),)),
    Case("attention-weights", lambda: Attend(batch_first=True, weights=True), ((5, 8),)),
    Case("attention-batch-second", lambda: Attend(bias=False), ((5, 8),)),
    Case("attention-cross", lambda: Attend(8, batch_first=True), ((5, 8), (3, 8))),
    Case("attention-kdim", lambda: Attend(6, batch_first=True, kdim=6, vdim=6), ((5, 8), (3, 6))),
    Case("attention-masked-bias-kv", Masked, ((5, 8),)),
    Case("encoder-layer", lambda: nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True), ((5, 8),)),
    *[Case(f"{k.__name__.lower()}", lambda k=k: Recurrent(k), ((5, 4),)) for k in (nn.LSTM, nn.GRU, nn.RNN)],
    *[
        Case(
            f"{k.__name__.lower()}-deep-both-ways",
            lambda k=k: Recurrent(k, num_layers=2, bidirectional=True),
            ((4, 4),),
        )
        for k in (nn.LSTM, nn.GRU, nn.RNN)
    ],
    *[
        Case(f"{k.__name__.lower()}-batch-second-no-bias", lambda k=k: Recurrent(k, True, bias=False), ((4, 4),))
        for k in (nn.LSTM, nn.GRU, nn.RNN)
    ],
    Case("rnn-relu", lambda: Recurrent(nn.RNN, nonlinearity="relu"), ((4, 4),)),
    Case("lstm-projection", lambda: Recurrent(nn.LSTM, proj_size=3, num_layers=2), ((4, 4),)),
    *[Case(f"{k.__name__.lower()}", lambda k=k: Cell(k), ((3, 4),)) for k in (nn.LSTMCell, nn.GRUCell, nn.RNNCell)],
    Case("tied-by-module", Tied, ((6,),), 10),
    Case("tied-by-function", lambda: Tied(True), ((6,),), 10),
    Case("raw-parameters", Vit, ((6, 4),)),
    Case("custom-leaf-by-vmap", _sequence(lambda: nn.Linear(4, 4), Gain, lambda: nn.Linear(4, 2)), ((3, 4),)),
    Case("weight-norm-by-vmap", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), ((4,),)),
    Case("lora", _sequence(Lora, nn.Tanh, Lora), ((4, 6),)),
    Case("folded-batch", Folded, ((3, 4, 4),)),
    Case("backwards", Backwards, ((5, 4),)),
    Case("bias-only", _frozen(_MLP, "0.weight", "2.weight"), ((4,),)),
    Case("weight-only", _frozen(_MLP, "0.bias", "2.bias"), ((3, 4),)),
    Case("last-layer-only", _frozen(_MLP, "0.weight", "0.bias"), ((3, 4),)),
    Case("first-layer-only", _frozen(_MLP, "2.weight", "2.bias"), ((3, 4),)),
    Case(
        "out-projection-only",
        _frozen(lambda: Attend(batch_first=True), "attention.in_proj_weight", "attention.in_proj_bias"),
        ((5, 8),),
    ),
]
