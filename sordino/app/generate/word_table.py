"""A noisy table of which words belong to which label, and texts that are drawn from it.

Every text is one vector of length one, and the sum of these vectors is released once, with noise:

    words      1 for each word of the text, in the row of its label, scaled to a common length
    label      1 at its label                       times LABEL_SHARE
    length     1 at the class of its length         times LENGTH_SHARE

A text is then drawn word by word, some of them from the words of its label and the others from the words of all labels.
Labels are drawn by the root of their noisy counts, so that rare ones have texts enough to be learnt. How many words are a
label's own differs from text to text, as it does in real ones: a classifier that only ever saw clear cases
would not know what to make of the others. Such texts have no order of words. They train classifiers; they are not for
reading.

One release of a whole table is worth more here than training: rare labels have few texts, and each of many noisy steps
would drown them.

Privacy: vocabulary and lengths are public, and one text more or less moves the sum by at most 1. What is drawn is
post-processing of the noisy table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

import sordino as sd
from sordino.accounting import PLD, calibrate
from sordino.app.generate.text_model import zipf_scores
from sordino.events import Gaussian
from sordino.release.noise import Noise
from sordino.statistics.clipped_sum import ClippedSum

LABEL_SHARE = 0.25
LENGTH_SHARE = 0.15
_LENGTHS = 8
"""Classes of lengths."""
_THRESHOLD = 2.5
"""In standard deviations of the noise: words with less are taken for words that the label has not."""
_PUBLIC_SHARE = 0.05
"""Of words that are drawn by their public frequency, so that every word is possible."""
_LEAST_OWN = 0.2
"""The smallest share of a text's words that come from its label's own row."""
_RECORDS_AT_ONCE = 256
_FOR_THE_TAIL = 0.01


@dataclass(frozen=True, eq=False)
class WordTable:
    """The statistic: one sum of a vector for each text, of its words by label, its label and its length."""

    labels: int
    words: int
    """How many words there are; the token of this number ends a text."""
    length: int
    """To which texts are cut."""
    noise: Noise

    @property
    def sums(self) -> Sequence[ClippedSum]:
        """One sum of vectors of length one."""
        return (ClippedSum(1.0, self.noise, self.describe),)

    def describe(self, records: Tensor) -> Tensor:
        """Returns the vector by which each text counts in the table of words, (B, labels · words + labels + lengths); a
        record is its label and its tokens.
        """
        labels, tokens = records[:, 0].long(), records[:, 1:].long()
        # A word counts once, however often it is in the text; the token that ends the text is none.
        present = torch.zeros(len(records), self.words + 1, dtype=records.dtype)
        present.scatter_(1, tokens, 1.0)
        present = functional.normalize(present[:, : self.words], dim=1)
        # The words stand in the row of the text's label, and all other rows are zero.
        by_label = torch.zeros(len(records), self.labels, self.words, dtype=records.dtype)
        by_label[torch.arange(len(records)), labels] = present
        length_class = (tokens != self.words).sum(1) * (_LENGTHS - 1) // self.length
        # The three parts have the lengths of the sides of a box whose diagonal is one.
        word_share = (1 - LABEL_SHARE**2 - LENGTH_SHARE**2) ** 0.5
        return torch.cat(
            [
                word_share * by_label.flatten(1),
                LABEL_SHARE * functional.one_hot(labels, self.labels),
                LENGTH_SHARE * functional.one_hot(length_class, _LENGTHS),
            ],
            dim=1,
        )

    def value(self, noisy: Sequence[Tensor], records: Callable[[], float]) -> Tensor:
        """Returns the noisy sum."""
        return noisy[0]


@dataclass(frozen=True, eq=False)
class WordShares:
    """What is drawn from: shares of labels, of lengths, and of words by label and in all."""

    labels: Tensor
    """In proportion to the root of their noisy counts."""
    lengths: Tensor
    """Of each class of lengths."""
    by_label: Tensor
    shared: Tensor
    length: int

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns the labels and the tokens of new texts drawn from the noisy table of words, (N,) and (N, length)."""
        end = len(self.shared)
        labels = torch.multinomial(self.labels, count, replacement=True, generator=generator)
        # Each text has its own share of words that come from its label.
        own_share = _LEAST_OWN + (1 - _LEAST_OWN) * torch.rand(count, 1, generator=generator)
        shared = torch.multinomial(self.shared, count * self.length, replacement=True, generator=generator)
        tokens = shared.view(count, self.length)
        for label, shares in enumerate(self.by_label):
            places = (labels == label).nonzero()[:, 0]
            if not len(places):
                continue
            own = torch.multinomial(shares, len(places) * self.length, replacement=True, generator=generator)
            is_own = torch.rand(len(places), self.length, generator=generator) < own_share[places]
            tokens[places] = torch.where(is_own, own.view(len(places), self.length), tokens[places])
        # A length is drawn evenly from its class, and the text is cut there.
        classes = torch.multinomial(self.lengths, count, replacement=True, generator=generator)
        lengths = (classes + torch.rand(count, generator=generator)) * self.length / (_LENGTHS - 1)
        tokens[torch.arange(self.length)[None] >= lengths[:, None].clamp(min=1)] = end
        return labels, tokens


def release_word_table(
    tokens: Tensor,
    labels: Tensor,
    words: int,
    label_count: int,
    ledger: sd.Ledger,
    *,
    epsilon: float,
    delta: float,
    seed: int | None = None,
) -> WordShares:
    """Releases the table of words by label with noise that meets ε, and returns the shares that it gives."""
    # A little of δ is left for the end of the noise, whose values do not go on for ever; the claim subtracts it.
    multiplier = calibrate(Gaussian, PLD(), epsilon, (1 - _FOR_THE_TAIL) * delta)
    table = WordTable(label_count, words, tokens.shape[1], sd.Gaussian(multiplier))
    records = torch.cat([labels[:, None], tokens], dim=1)
    noisy = sd.ask(table, records, ledger=ledger, seed=seed, physical_batch=_RECORDS_AT_ONCE)
    return read_shares(noisy.float(), table, multiplier)


def read_shares(noisy: Tensor, table: WordTable, multiplier: float) -> WordShares:
    """Returns the shares of words that a noisy sum of the table's vectors gives; entries that are mostly noise count as
    none.
    """
    by_label, labels, lengths = noisy.split([table.labels * table.words, table.labels, _LENGTHS])
    by_label = by_label.view(table.labels, table.words)
    public = zipf_scores(table.words + 1)[:-1].softmax(-1)
    # The sum over labels has the noise of all of them.
    least = _THRESHOLD * multiplier
    shared = torch.where(by_label.sum(0) > least * table.labels**0.5, by_label.sum(0), 0.0)
    own = torch.where(by_label > least, by_label, 0.0)
    return WordShares(
        # No label is left out, even if its count is lost in the noise. Rare ones are written more often than they are in
        # the data, by the root of their counts, because a classifier learns little from a few texts.
        labels.clamp(min=least).sqrt(),
        lengths.clamp(min=0.0) if bool((lengths > 0).any()) else torch.ones(_LENGTHS),
        torch.stack([_mix(row, public) for row in own]),
        _mix(shared, public),
        table.length,
    )


def _mix(weights: Tensor, public: Tensor) -> Tensor:
    """Returns weights as shares with some of the public ones among them; the public ones alone if there are no others."""
    total = weights.sum()
    return public if not bool(total > 0) else (1 - _PUBLIC_SHARE) * weights / total + _PUBLIC_SHARE * public
