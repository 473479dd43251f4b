"""Models of token sequences: a causal transformer, a transformer classifier, an LSTM classifier."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Size:
    """The sizes of a transformer.

    Args:
        vocabulary: words.
        positions: the longest text.
        width: numbers per place.
        heads: of attention.
        blocks: layers.

    Examples:
        >>> Size(vocabulary=20, positions=8, width=8, heads=2, blocks=1).width
        8

    """

    vocabulary: int = 1000
    positions: int = 128
    width: int = 256
    heads: int = 4
    blocks: int = 4


class Attention(nn.Module):
    """Self-attention made of Linear layers, which every engine knows."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        # Every head gets an equal share of the width.
        if width % heads:
            raise ValueError(f"heads={heads}: must divide the width {width}")
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        """Returns softmax(QKᵀ) V, projected: the attention of the transformers that model token sequences."""
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(b, t, d))  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Applies attention and MLP, each on a residual path."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class _Trunk(nn.Module):
    """Maps tokens (B, T) to states (B, T, width)."""

    def __init__(self, size: Size, *, causal: bool) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(size.vocabulary, size.width), nn.Embedding(size.positions, size.width)
        self.blocks = nn.Sequential(
            *[TransformerBlock(size.width, size.heads, causal=causal) for _ in range(size.blocks)]
        )
        self.norm = nn.LayerNorm(size.width)

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the states, from the embeddings of tokens and places."""
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return self.norm(self.blocks(self.token(ids) + self.position(places)))  # type: ignore[no-any-return]


class LanguageModel(nn.Module):
    """A GPT-like model: logits of the next token at every place, (B, T) to (B, T, V). 3.7M parameters as it is.

    Args:
        size: its numbers.

    Examples:
        >>> import torch
        >>> small = Size(vocabulary=20, positions=8, width=8, heads=2, blocks=1)
        >>> LanguageModel(small)(torch.zeros(2, 5, dtype=torch.long)).shape
        torch.Size([2, 5, 20])

    """

    def __init__(self, size: Size = Size()) -> None:  # noqa: B008  (a frozen constant)
        super().__init__()
        self.trunk = _Trunk(size, causal=True)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the logits."""
        return self.head(self.trunk(ids))  # type: ignore[no-any-return]


class TransformerClassifier(nn.Module):
    """A small transformer: logits of a class from the mean over places, (B, T) to (B, classes).

    Args:
        classes: outputs.
        size: its numbers.

    Examples:
        >>> import torch
        >>> small = Size(vocabulary=20, positions=8, width=8, heads=2, blocks=1)
        >>> TransformerClassifier(3, small)(torch.zeros(2, 5, dtype=torch.long)).shape
        torch.Size([2, 3])

    """

    def __init__(self, classes: int, size: Size = Size(width=64, blocks=2)) -> None:  # noqa: B008
        super().__init__()
        self.trunk = _Trunk(size, causal=False)
        self.head = nn.Linear(size.width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the logits."""
        return self.head(self.trunk(ids).mean(1))  # type: ignore[no-any-return]


class LSTMClassifier(nn.Module):
    """Embedding, LSTM, logits of a class from the last state: (B, T) to (B, classes).

    Args:
        vocabulary: words.
        classes: outputs.
        embedding: numbers per word.
        hidden: numbers in a state.
        recurrent: the class of the recurrent layer.

    Examples:
        >>> import torch
        >>> LSTMClassifier(vocabulary=20, classes=3, embedding=4, hidden=8)(torch.zeros(2, 5, dtype=torch.long)).shape
        torch.Size([2, 3])

    """

    def __init__(
        self,
        vocabulary: int = 100,
        classes: int = 10,
        *,
        embedding: int = 64,
        hidden: int = 128,
        recurrent: type[nn.Module] = nn.LSTM,
    ) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, embedding), nn.Linear(hidden, classes)
        self.recurrent = recurrent(embedding, hidden, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the logits."""
        return self.head(self.recurrent(self.embedding(ids))[0][:, -1])  # type: ignore[no-any-return]
