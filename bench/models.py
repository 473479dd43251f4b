"""The eight models of the speed and memory tables, with inputs and a loss per sample each.

No torchvision: the residual networks are written out, with GroupNorm in place of BatchNorm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_GROUPS = 16


def mlp() -> nn.Module:
    """784-256-32-10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10))


def wide_mlp() -> nn.Module:
    """1024-4096-4096-10."""
    return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))


def mnist_cnn() -> nn.Module:
    """The MNIST example of Opacus, 26,010 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def cifar_net() -> nn.Module:
    """The CIFAR-10 example of Opacus, 131,466 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 1, 1),
        nn.ReLU(),
        nn.AvgPool2d(2, 2),
        nn.Conv2d(32, 64, 3, 1, 1),
        nn.ReLU(),
        nn.AvgPool2d(2, 2),
        nn.Conv2d(64, 64, 3, 1, 1),
        nn.ReLU(),
        nn.AvgPool2d(2, 2),
        nn.Conv2d(64, 128, 3, 1, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


class Basic(nn.Module):
    """ResNet's basic block."""

    def __init__(self, c: int, p: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c, p, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(32, p)
        self.conv2 = nn.Conv2d(p, p, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(32, p)
        self.short: nn.Module | None = None
        if stride != 1 or c != p:
            self.short = nn.Sequential(nn.Conv2d(c, p, 1, stride, bias=False), nn.GroupNorm(32, p))

    def forward(self, x: Tensor) -> Tensor:
        """Two convolutions and a shortcut."""
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + (x if self.short is None else self.short(x)))


def resnet18() -> nn.Module:
    """ResNet-18 with the ImageNet stem, as on 32 x 32 images in the papers' tables; 11.2M parameters."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.GroupNorm(32, 64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    c = 64
    for p, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Basic(c, p, stride), Basic(p, p, 1)]
        c = p
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Wide(nn.Module):
    """Wide ResNet's pre-activation block."""

    def __init__(self, c: int, p: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(_GROUPS, c)
        self.conv1 = nn.Conv2d(c, p, 3, stride, 1, bias=False)
        self.norm2 = nn.GroupNorm(_GROUPS, p)
        self.conv2 = nn.Conv2d(p, p, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(c, p, 1, stride, bias=False) if stride != 1 or c != p else None

    def forward(self, x: Tensor) -> Tensor:
        """Norm, ReLU, convolution, twice."""
        y = F.relu(self.norm1(x))
        short = x if self.short is None else self.short(y)
        return self.conv2(F.relu(self.norm2(self.conv1(y)))) + short


def wrn16_4() -> nn.Module:
    """WRN-16-4, 2.7M parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
    c = 16
    for p, stride in ((64, 1), (128, 2), (256, 2)):
        layers += [Wide(c, p, stride), Wide(p, p, 1)]
        c = p
    return nn.Sequential(
        *layers, nn.GroupNorm(_GROUPS, 256), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)
    )


class Attention(nn.Module):
    """Causal self-attention out of Linear layers, which every engine here knows."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(d, 3 * d), nn.Linear(d, d), heads

    def forward(self, x: Tensor) -> Tensor:
        """Softmax(QKᵀ) V."""
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(d), Attention(d, 4), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x: Tensor) -> Tensor:
        """Attention and MLP, each on a residual path."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Four blocks of width 256, 1,000 tokens, 128 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(1000, 256), nn.Embedding(128, 256)
        self.blocks = nn.Sequential(*[Block(256) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(256), nn.Linear(256, 1000, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return self.head(self.norm(self.blocks(self.token(ids) + self.position(places))))


class Lstm(nn.Module):
    """Embedding 64, LSTM 128, classification from the last state."""

    def __init__(self, recurrent: type[nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, 64), nn.Linear(128, 10)
        self.recurrent = recurrent(64, 128, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, 10)."""
        return self.head(self.recurrent(self.embedding(ids))[0][:, -1])


def classification(out: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy per sample."""
    return F.cross_entropy(out, y, reduction="none")


def language(out: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy over a sample's own tokens."""
    return F.cross_entropy(out.transpose(1, 2), y, reduction="none").mean(1)


@dataclass(frozen=True)
class Problem:
    """A model, its data and its batch sizes; the first is the quick one, the last the one the targets are about."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    batches: tuple[int, ...]
    targets: Callable[[int], Tensor] = lambda b: torch.randint(0, 10, (b,))
    loss: Callable[[Tensor, Tensor], Tensor] = classification
    images: bool = False
    small: bool = False  # small enough to run every peer in both memory formats
    target: float = 1.25  # of the best non-private layout


PROBLEMS = (
    Problem("MLP", mlp, lambda b: torch.randn(b, 784), (64, 256), target=1.15),
    Problem(
        "MNIST CNN", mnist_cnn, lambda b: torch.randn(b, 1, 28, 28), (64, 256), images=True, small=True, target=1.2
    ),
    Problem(
        "CIFAR net", cifar_net, lambda b: torch.randn(b, 3, 32, 32), (64, 256), images=True, small=True, target=1.15
    ),
    Problem("ResNet-18", resnet18, lambda b: torch.randn(b, 3, 32, 32), (64,), images=True, target=1.25),
    Problem("WRN-16-4", wrn16_4, lambda b: torch.randn(b, 3, 32, 32), (64,), images=True, target=1.2),
    Problem(
        "GPT-like",
        Gpt,
        lambda b: torch.randint(0, 1000, (b, 128)),
        (16,),
        lambda b: torch.randint(0, 1000, (b, 128)),
        language,
        target=1.25,
    ),
    Problem("LSTM", Lstm, lambda b: torch.randint(0, 100, (b, 50)), (64, 256), target=1.4),
    Problem("wide MLP", wide_mlp, lambda b: torch.randn(b, 1024), (64, 256), target=1.1),
)
