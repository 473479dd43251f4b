"""A small autoregressive model of rows: each cell is drawn given the cells before it.

    h_j    = u_j + Σ_{i<j} E[x_i]                          x_i: the token of cell i, E: one vector for each token
    p(x_j) = softmax(W_j (h_j + gelu(h_j)) + b_j)          a layer for each column

It has a few ten thousand parameters, so that the noise of a private step is small beside its signal, and one step costs a
table lookup and one small product for each column.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

_SPREAD = 0.3
"""The standard deviation of the first embeddings."""


class RowModel(nn.Module):
    """Gives the probability of a row of tokens, cell by cell, and draws new rows."""

    first: Tensor

    def __init__(self, counts: Sequence[int], width: int = 32) -> None:
        super().__init__()
        self.counts = tuple(counts)
        # Tokens of all columns share one table of vectors; `first` is where each column begins.
        first = torch.tensor([0, *counts[:-1]]).cumsum(0)
        self.register_buffer("first", first, persistent=False)
        self.embedding = nn.Embedding(sum(counts), width)
        self.place = nn.Parameter(torch.zeros(len(self.counts), width))
        self.heads = nn.ModuleList([nn.Linear(width, count) for count in self.counts])
        nn.init.normal_(self.embedding.weight, std=_SPREAD)
        # The first probabilities are even: nothing is known of the columns.
        for head in self.heads:
            assert isinstance(head, nn.Linear), "made so above"
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def context(self, rows: Tensor) -> Tensor:
        """Returns what each cell of a row is drawn given, (B, columns, width), from the cells before it."""
        vectors: Tensor = self.embedding(rows[:, :-1] + self.first[:-1])
        before = torch.cat([torch.zeros_like(vectors[:, :1]), vectors.cumsum(1)], dim=1) + self.place
        return before + functional.gelu(before)

    def forward(self, rows: Tensor) -> Tensor:
        """Returns the negative log-likelihood of each row of tokens, (B,)."""
        context = self.context(rows)
        losses = [
            functional.cross_entropy(head(context[:, place]), rows[:, place], reduction="none")
            for place, head in enumerate(self.heads)
        ]
        return torch.stack(losses, dim=1).sum(1)

    @torch.no_grad()
    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Returns `count` new rows of tokens, each drawn cell by cell."""
        rows = torch.zeros(count, len(self.counts), dtype=torch.long)
        for place, head in enumerate(self.heads):
            probabilities = head(self.context(rows)[:, place]).softmax(-1)
            rows[:, place] = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
        return rows


def row_losses(model: nn.Module, rows: Tensor) -> Tensor:
    """Returns the loss of each row for private training."""
    losses: Tensor = model(rows)
    return losses
