"""Layers nobody here wrote, followed operation by operation: derived filters, spelled-out norms, windows, experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from sordino.per_sample import Captured, PerformanceOptions
from sordino.refusal import Refusal
from tests.per_sample.oracle import same, square


class Standardised(nn.Conv2d):
    """Weight standardisation (Qiao et al. 2019), spelled out."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        centred = w - w.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, centred / (w.var((1, 2, 3), keepdim=True) + 1e-5).sqrt(), self.bias)


class ScaledStandardised(nn.Conv2d):
    """The same by a batch norm of the filters, with a gain, as networks without normalisation have it."""

    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.gain = nn.Parameter(torch.rand(self.out_channels) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        w = F.batch_norm(flat, None, None, self.gain, training=True, momentum=0.0).reshape_as(self.weight)
        return F.conv2d(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)


class OwnGroupNorm(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class LayerNorm2d(nn.LayerNorm):
    """Over the channels of an image."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps).permute(0, 3, 1, 2)


class Spelled(nn.Module):
    """The same in elementary operations."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(d)), nn.Parameter(torch.rand(d))

    def forward(self, x: Tensor) -> Tensor:
        unit = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-6).sqrt()
        return self.weight[:, None, None] * unit + self.bias[:, None, None]


class Transposed(nn.Module):
    """A linear map whose weight is (d, p), as GPT-2 has it."""

    def __init__(self, d: int, p: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(d, p)), nn.Parameter(torch.randn(p))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class Windows(nn.Module):
    """Attention within windows folded into the batch, with a table of relative positions and a bias of queries only."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12, bias=False)
        self.q_bias, self.table = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(7))
        places = torch.arange(4)
        self.register_buffer("index", places[:, None] - places[None] + 3)

    def forward(self, x: Tensor) -> Tensor:  # (B, 4 n, 4)
        windows = x.reshape(-1, 4, 4)
        bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.q_bias])
        q, k, v = F.linear(windows, self.qkv.weight, bias).chunk(3, 2)
        scores = q @ k.transpose(1, 2) + self.table[self.index.view(-1)].view(4, 4)
        return (scores.softmax(2) @ v).reshape(x.shape)


class Experts(nn.Module):
    """A gate on tokens folded into rows, and experts that see the tokens sent to them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(4, 3), _Stacked()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, 4)
        scores, chosen = self.gate(rows).softmax(1).topk(2, 1)
        return self.up(rows, chosen, scores).view(x.shape)


class _Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 4))

    def forward(self, rows: Tensor, chosen: Tensor, scores: Tensor) -> Tensor:
        out = torch.zeros_like(rows)
        for expert in range(3):
            at, which = (chosen == expert).nonzero(as_tuple=True)
            if len(at):
                out.index_add_(0, at, F.linear(rows[at], self.weight[expert]) * scores[at, which, None])
        return out


class Decay(nn.Module):
    """A state that every token moves on by a learned rate, one convolution for each channel, and a token of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.rate = nn.Conv1d(4, 4, 3, groups=4, padding=2), nn.Parameter(torch.randn(4, 2))
        self.first = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        y = F.conv1d(x.transpose(1, 2), self.conv.weight, self.conv.bias, padding=2, groups=4)[..., : x.shape[1]]
        y = F.silu(y.clone())
        y[:, :, 0] = self.first
        state, out = torch.zeros(len(x), 4, 2, dtype=x.dtype), []
        for t in range(x.shape[1]):
            state = torch.exp(-self.rate.exp()) * state + y[:, :, t, None]
            out.append(state.sum(2))
        return torch.stack(out, 1)


class Bags(nn.Module):
    """Bags as one long list of ids with offsets."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(10, 4, mode=mode, include_last_offset=mode == "sum")

    def forward(self, ids: Tensor) -> Tensor:
        there = ids > 2
        ends = there.sum(1).cumsum(0)
        offsets = torch.cat([ends.new_zeros(1), ends])
        return self.table(ids[there], offsets if self.table.include_last_offset else offsets[:-1])


class Packed(nn.Module):
    """Sequences of their own lengths."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.layer = kind(4, 5, **options)

    def forward(self, x: Tensor) -> Tensor:
        # Of one step a sequence has no gradient at the state's weight; a norm of 0 is raised to what rounding may hide.
        lengths = x[:, 0, 0].abs().mul(10).long() % (x.shape[1] - 1) + 2
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, last = self.layer(packed)
        padded = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0]
        states = last if isinstance(last, tuple) else (last,)
        return torch.cat([padded.flatten(1), *[s.transpose(0, 1).flatten(1) for s in states]], 1)


_DRAWN = torch.Generator().manual_seed(0)
PICTURES = torch.randn(4, 3, 8, 8, generator=_DRAWN)
TOKENS = torch.randn(5, 8, 4, generator=_DRAWN)
IDS = torch.randint(0, 10, (5, 6), generator=_DRAWN)
CASES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "weight standardisation": (
        lambda: nn.Sequential(Standardised(3, 6, 3, padding=1), nn.ReLU(), Standardised(6, 4, 3, groups=2)),
        PICTURES,
    ),
    "weight standardisation, padded to the same size": (
        lambda: nn.Sequential(Standardised(3, 4, 3, padding="same"), nn.ReLU(), nn.Conv2d(4, 2, 3)),
        PICTURES,
    ),
    "scaled weight standardisation": (
        lambda: nn.Sequential(ScaledStandardised(3, 6, 3, padding=1), nn.ReLU(), ScaledStandardised(6, 4, 3)),
        PICTURES,
    ),
    "norms with forward passes of their own": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3), OwnGroupNorm(2, 6), LayerNorm2d(6), nn.ReLU(), Spelled(6)),
        PICTURES,
    ),
    "a transposed linear map": (lambda: nn.Sequential(Transposed(4, 6), nn.Tanh(), Transposed(6, 3)), TOKENS),
    "windows and tables": (Windows, TOKENS),
    "a mixture of experts": (lambda: nn.Sequential(Experts(), nn.Tanh(), Experts()), TOKENS),
    "a state with a learned decay": (Decay, TOKENS),
    "bags with offsets, averaged": (lambda: Bags("mean"), IDS),
    "bags with offsets, added": (lambda: Bags("sum"), IDS),
    "bags with offsets, the largest": (lambda: Bags("max"), IDS),
    "packed LSTM": (lambda: Packed(nn.LSTM), TOKENS),
    "packed LSTM, both ways, two layers": (lambda: Packed(nn.LSTM, bidirectional=True, num_layers=2), TOKENS),
    "packed GRU, both ways": (lambda: Packed(nn.GRU, bidirectional=True), TOKENS),
}


def energy(model: nn.Module, x: Tensor) -> Tensor:
    """A loss whose terms do not cancel, so that float32 holds it."""
    return model(x).flatten(1).square().sum(1)


def doubled(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


@pytest.mark.parametrize("two_pass", [False, True], ids=("one pass", "two passes"))
@pytest.mark.parametrize("case", CASES)
def test_other_peoples_layers_are_exact(case: str, two_pass: bool) -> None:
    torch.manual_seed(0)
    build, x = CASES[case]
    same(build().double(), (doubled(x),), backend=Captured(PerformanceOptions(two_pass=two_pass)))


@pytest.mark.parametrize("case", ["weight standardisation", "norms with forward passes of their own"])
@pytest.mark.parametrize("last", [False, True, None])
def test_in_single_precision_and_either_memory_format_too(case: str, last: bool | None) -> None:
    torch.manual_seed(0)
    build, x = CASES[case]
    same(build(), (x,), energy, backend=Captured(PerformanceOptions(channels_last=last)))


@pytest.mark.parametrize("build", [Windows, lambda: nn.Sequential(Experts()), lambda: nn.Sequential(Transposed(4, 4))])
def test_rows_folded_into_the_batch_may_change_their_number(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, backend = build().double(), Captured()
    for b, length in ((5, 8), (3, 16), (5, 8), (4, 4), (3, 16), (16, 4)):
        same(model, (torch.randn(b, length, 4).double(),), backend=backend)


@pytest.mark.parametrize("build", [Windows, lambda: nn.Sequential(Experts()), lambda: nn.Sequential(Transposed(4, 4))])
def test_a_pass_that_is_made_again_for_another_length_draws_the_same(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, backend = nn.Sequential(nn.Dropout(0.5), build()).double(), Captured()
    backend.per_sample(model, square, (torch.randn(5, 8, 4).double(),))
    x, losses = torch.randn(3, 16, 4).double(), []
    for _ in range(2):
        torch.manual_seed(7)
        losses.append(backend.per_sample(model, square, (x,)).losses)
    assert torch.equal(*losses)


def test_rows_sorted_by_expert_are_never_taken_for_rows_by_sample() -> None:
    """All tokens to one expert keep their order on the first batch; the layer must not be trusted for that."""

    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 4, 4))

        def forward(self, rows: Tensor) -> Tensor:
            order = (rows[:, 0] > 0).long().argsort(stable=True)
            mixed = rows[order]
            half = mixed @ self.weight.sum(0)
            return torch.zeros_like(rows).index_add(0, order, half)

    torch.manual_seed(0)
    inner = Sorted()
    model, backend = nn.Sequential(nn.Flatten(0, 1), inner, nn.Unflatten(0, (-1, 8))).double(), Captured()
    same(model, (torch.randn(5, 8, 4).double().abs(),), backend=backend)  # in order
    same(model, (torch.randn(5, 8, 4).double(),), backend=backend)


def test_one_list_of_ids_without_offsets_is_refused_with_the_cure() -> None:
    class Flat(Bags):
        def forward(self, ids: Tensor) -> Tensor:
            return self.table(ids.flatten(), None).expand(len(ids), -1)

    with pytest.raises((Refusal, ValueError), match="offsets"):
        Captured().per_sample(Flat("mean"), square, (IDS,))


def test_a_memory_format_that_fails_is_not_chosen() -> None:
    class Flattens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(6))

        def forward(self, x: Tensor) -> Tensor:
            return x.view(len(x), -1).view(len(x), 6, -1) * self.scale[:, None]

    torch.manual_seed(0)
    for measure in (True, False):
        model = nn.Sequential(nn.Conv2d(3, 6, 3), Flattens())
        same(model, (PICTURES,), energy, backend=Captured(PerformanceOptions(measure=measure)))
