"""A classifier of sentences: the mean of a pretrained encoder's token vectors, then a linear layer.

The encoder is any model of transformers that gives `last_hidden_state`; MiniLM was trained for this mean. What of it is
trained is chosen by `requires_grad`: all, adapters of peft, or the head alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class SentenceClassifier(nn.Module):
    """Maps (B, T) tokens and mask to (B, classes) scores."""

    def __init__(self, encoder: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, classes)
        nn.init.zeros_(self.head.weight)  # noise is the largest thing in the first steps; begin without an opinion
        nn.init.zeros_(self.head.bias)

    def features(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Returns the mean of the token vectors of each sentence, padding left out, (B, width), scaled to length
        √width.
        """
        found: Any = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        hidden: Tensor = found.last_hidden_state  # (B, T, width)
        # Padding tokens take no part in the mean.
        mask = attention_mask.unsqueeze(2).to(hidden.dtype)
        mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        scaled: Tensor = nn.functional.normalize(mean, dim=1) * float(mean.shape[1]) ** 0.5
        return scaled

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Returns the scores."""
        scores: Tensor = self.head(self.features(input_ids, attention_mask))
        return scores


@torch.no_grad()
def compute_features(model: SentenceClassifier, input_ids: Tensor, attention_mask: Tensor, at_once: int = 64) -> Tensor:
    """Returns the encoder's features of many sentences, in evaluation mode."""
    # Dropout off for features, and the mode put back afterwards.
    was_training = model.training
    model.eval()
    pieces = zip(input_ids.split(at_once), attention_mask.split(at_once), strict=True)
    features = torch.cat([model.features(tokens, mask) for tokens, mask in pieces])
    model.train(was_training)
    return features
