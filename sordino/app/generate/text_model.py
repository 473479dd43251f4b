"""A small language model of labelled texts over a public vocabulary, and its tokens.

The vocabulary is the most frequent part of MiniLM's, which was made from public books and articles, and the vector of each
piece of a word is a projection of MiniLM's, which stays as it is. What is trained is small:

    h_t    = u_label + Σ_{k=1,2} B_k A_k e(x_{t−k})         e: public vectors; A_k, B_k of low rank
    p(x_t) = softmax(h_t · e + b)                           p(label) = softmax(a)

Such a model learns which words belong to a label and which follow one another; its texts are no prose. For prose, give a
pretrained model (`--model`).

Privacy: vocabulary, vectors and the length to which texts are cut are public. A text's tokens are made of that text alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.app.data.files import files_folder
from sordino.app.data.minilm import import_transformers

_FIRST_PIECE = 999
"""The number of the first piece of MiniLM's vocabulary that is no special token; marks and letters come first."""
_FIRST_WORD = 1996
"""From here on words come by frequency in the public texts."""
PIECES = 2500
LENGTH = 40
WIDTH = 64
_RANK = 16
_CONTEXT = 2
_REACH = 10.0
"""Label vectors are multiplied by this, so that one step of an optimizer moves probabilities as much as biases do."""

_USUAL_LENGTH = 40
_PRIOR_WEIGHT = 0.2
"""Of the label's own loss beside that of a text's tokens."""


@dataclass(frozen=True, eq=False)
class TextTokens:
    """Texts as numbers of pieces of words, cut to a public length; the last number ends a text."""

    tokenizer: Any
    pieces: Tensor
    """The numbers, in MiniLM's vocabulary, of the pieces that are used."""
    length: int = LENGTH

    @property
    def end(self) -> int:
        """The token that ends a text."""
        return len(self.pieces)

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Returns texts as the tokens of the text model, (N, length); pieces outside the vocabulary are left out."""
        numbers = torch.full((int(self.pieces.max()) + 1,), -1, dtype=torch.long)
        numbers[self.pieces] = torch.arange(len(self.pieces))
        tokens = torch.full((len(texts), self.length), self.end)
        # Four times the length is read, since rare pieces are left out afterwards.
        read = self.tokenizer(list(texts), add_special_tokens=False, truncation=True, max_length=4 * self.length)
        for place, pieces in enumerate(read["input_ids"]):
            known = [one for one in pieces if one < len(numbers)]
            kept = numbers[torch.tensor(known, dtype=torch.long)]
            kept = kept[kept >= 0][: self.length]
            tokens[place, : len(kept)] = kept
        return tokens

    def decode(self, tokens: Tensor) -> list[str]:
        """Returns the texts that the text model's tokens stand for, given as (N, length)."""
        return [
            str(self.tokenizer.decode([int(self.pieces[one]) for one in row if one != self.end]))
            for row in tokens.tolist()
        ]


def build_text_tokens(pieces: int = PIECES, length: int = LENGTH) -> tuple[TextTokens, Tensor]:
    """Returns the tokens of a text model and the public vector of each, (tokens, WIDTH)."""
    from safetensors.torch import load_file

    folder = files_folder("minilm")
    tokenizer = import_transformers().AutoTokenizer.from_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    table = next(tensor for name, tensor in weights.items() if name.endswith("word_embeddings.weight")).float()
    used = torch.arange(_FIRST_PIECE, _FIRST_WORD + pieces)
    # The directions in which the vectors of these pieces differ most are kept; no record of the user's is looked at.
    vectors = table[used] - table[used].mean(0)
    _, _, directions = torch.linalg.svd(vectors, full_matrices=False)
    short = vectors @ directions[:WIDTH].T
    short = short / short.norm(dim=1).mean()
    return TextTokens(tokenizer, used, length), torch.cat([short, torch.zeros(1, WIDTH)])


def zipf_scores(count: int) -> Tensor:
    """Returns the scores of the tokens that a text model begins with: words by Zipf's law in the public order of the
    vocabulary, the end as if a text had some forty tokens.

    Marks and letters, which come before the words, are as likely as the hundredth word.
    """
    letters = min(_FIRST_WORD - _FIRST_PIECE, count - 1)
    ranks = torch.cat([torch.full((letters,), 100.0), torch.arange(1.0, count - letters)])
    shares = 1 / (ranks + 2)
    end = shares.sum() / _USUAL_LENGTH
    return torch.cat([shares, end[None]]).log()


class TextModel(nn.Module):
    """Gives the probability of a text's tokens given its label, and draws new texts."""

    vectors: Tensor

    def __init__(self, vectors: Tensor, labels: int) -> None:
        super().__init__()
        count, width = vectors.shape
        self.register_buffer("vectors", vectors, persistent=False)
        self.label = nn.Embedding(labels, width)
        self.shared = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(zipf_scores(count))
        self.prior = nn.Parameter(torch.zeros(labels))
        self.down = nn.ModuleList([nn.Linear(width, _RANK, bias=False) for _ in range(_CONTEXT)])
        self.up = nn.ModuleList([nn.Linear(_RANK, width, bias=False) for _ in range(_CONTEXT)])
        # At first nothing is known of labels and of what follows what.
        nn.init.zeros_(self.label.weight)
        for layer in self.up:
            assert isinstance(layer, nn.Linear), "made so above"
            nn.init.zeros_(layer.weight)

    @property
    def end(self) -> int:
        """The token that ends a text."""
        return len(self.vectors) - 1

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Returns the text model's scores of every token at every place, given the label and the two tokens before it."""
        given = functional.embedding(tokens, self.vectors)
        hidden = (_REACH * (self.label(labels) + self.shared))[:, None].expand(-1, tokens.shape[1], -1)
        for distance, (down, up) in enumerate(zip(self.down, self.up, strict=True), start=1):
            before = functional.pad(given[:, :-distance], (0, 0, min(distance, tokens.shape[1]), 0))
            hidden = hidden + up(down(before[:, : tokens.shape[1]]))
        scores: Tensor = hidden @ self.vectors.T + self.bias
        return scores

    @torch.no_grad()
    def draw_labels(self, count: int, generator: torch.Generator) -> Tensor:
        """Returns the labels of new texts, drawn by the learnt shares of the labels."""
        return torch.multinomial(self.prior.softmax(-1), count, replacement=True, generator=generator)

    @torch.no_grad()
    def draw(self, labels: Tensor, length: int, generator: torch.Generator) -> Tensor:
        """Draws one new text from the text model for each label, as tokens (N, length)."""
        tokens = torch.full((len(labels), length), self.end)
        for place in range(length):
            seen = tokens[:, max(0, place - _CONTEXT) : place + 1]
            probabilities = self(seen, labels)[:, -1].softmax(-1)
            tokens[:, place] = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
        # Everything after the first end is the end.
        tokens[(tokens == self.end).cumsum(1) > 0] = self.end
        return tokens


def text_losses(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    """Returns the text model's loss of each text: of its tokens, its end included, and of its label.

    That of the tokens is divided by the public length, not by the text's own: a short text is not worth more than a
    long one.
    """
    assert isinstance(model, TextModel), "built by this module"
    scores = model(tokens, labels)
    losses = functional.cross_entropy(scores.flatten(0, 1), tokens.flatten(), reduction="none").view(tokens.shape)
    is_end = (tokens == model.end).long()
    until_end = is_end.cumsum(1) - is_end == 0
    of_label = -functional.log_softmax(model.prior, dim=0)[labels]
    return (losses * until_end).sum(1) / tokens.shape[1] + _PRIOR_WEIGHT * of_label
