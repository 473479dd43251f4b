"""A small language: sentences of words by number, of two kinds, and small transformers made from a config."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

WORDS = 40


class Sentences(Dataset):
    """Records as tokenizers give them: lists of different lengths; the class is the first word's."""

    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.records: list[dict[str, Any]] = []
        for i in range(n):
            length = int(torch.randint(4, 10, (1,), generator=generator))
            tokens = torch.randint(6, WORDS, (length,), generator=generator)
            tokens[0] = 1 + i % 2
            self.records.append({"input_ids": tokens.tolist(), "attention_mask": [1] * length, "labels": i % 2})

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self.records[i]


def padded(records: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Padded to the longest, with a mask; labels of one number or one per token."""
    longest = max(len(record["input_ids"]) for record in records)

    def rows(name: str, fill: int) -> torch.Tensor:
        return torch.tensor([record[name] + [fill] * (longest - len(record[name])) for record in records])

    per_token = isinstance(records[0]["labels"], list)
    labels = rows("labels", -100) if per_token else torch.tensor([record["labels"] for record in records])
    return {"input_ids": rows("input_ids", 0), "attention_mask": rows("attention_mask", 0), "labels": labels}


def bert(kind: str = "BertForSequenceClassification", **more: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=2,
        **more,
    )
    return getattr(transformers, kind)(config)
