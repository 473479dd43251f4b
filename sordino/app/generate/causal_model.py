"""Any causal language model of transformers as a generator: rows and texts are written out, learnt, and read back.

    income is >50K, age is 39, sex is Male            a row of a table, its columns in a fixed order
    earn: shares rose on ...                          a text after its label

The model comes with its own tokenizer, from a folder or by name, and is trained whole or by adapters (LoRA). What it writes
is read by the declared columns; a row that cannot be read is thrown away and another one is drawn.

Privacy: every record is written out by itself and cut to a public length. What was thrown away was made of the released
model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.app.data.minilm import import_transformers

_BETWEEN = ", "
_IS = " is "
MOST_ATTEMPTS = 20
"""Rounds of writing after which a generator whose rows cannot be read is given up."""


class UnreadableRows(ValueError):
    """Raised when a model writes too few rows that can be read."""


@dataclass(frozen=True, eq=False)
class CausalModel:
    """A causal language model with its tokenizer, and the public length of what it reads and writes."""

    model: nn.Module
    tokenizer: Any
    length: int

    def encode(self, written: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Returns tokens and mask of written records, (N, length) each, between the tokenizer's beginning and end."""
        end = self.tokenizer.eos_token
        begin = self.tokenizer.bos_token or end
        read = self.tokenizer(
            [begin + text + end for text in written],
            truncation=True,
            padding="max_length",
            max_length=self.length,
            return_tensors="pt",
        )
        return read["input_ids"], read["attention_mask"]

    @torch.no_grad()
    def write(self, count: int, seed: int, beginnings: Sequence[str] | None = None) -> list[str]:
        """Returns `count` newly written records, after their beginnings if these are given."""
        torch.manual_seed(seed)
        self.model.eval()
        # Training puts the same token in front of every record, so a new one begins after it.
        begin = self.tokenizer.bos_token or self.tokenizer.eos_token
        starts = [begin + text for text in ([""] * count if beginnings is None else beginnings)]
        # Beginnings of different lengths are padded on the left, so that each one ends where the writing goes on.
        self.tokenizer.padding_side = "left"
        read = self.tokenizer(list(starts), return_tensors="pt", padding=True)
        generate: Any = self.model.generate
        tokens = generate(
            **{name: read[name] for name in ("input_ids", "attention_mask")},
            do_sample=True,
            max_length=self.length,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        # Training pads on the right; the tokenizer is shared, so it is put back.
        self.tokenizer.padding_side = "right"
        return [str(text) for text in self.tokenizer.batch_decode(tokens, skip_special_tokens=True)]


def load_causal_model(name: str, length: int, lora: int | None) -> CausalModel:
    """Loads a causal language model from a folder or by its name; with `lora`, adapters of this rank are trained."""
    transformers = import_transformers()
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    model = transformers.AutoModelForCausalLM.from_pretrained(name)
    # Without an end the model could not learn where a record stops.
    if tokenizer.eos_token is None:
        raise ValueError(f"model {name!r}: its tokenizer has no token that ends a text; need one")
    # The attention mask tells padding from text, so the token that ends a text can serve for both.
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    if lora is not None:
        try:
            import peft
        except ImportError as error:
            raise ImportError("peft is not installed, which LoRA needs: pip install 'sordino[huggingface]'") from error
        # Without dropout a record's gradient is a function of the record and the parameters alone.
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=lora, lora_dropout=0.0))
    return CausalModel(model, tokenizer, length)


def causal_losses(model: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
    """Returns the loss of a causal language model for each record: the negative log-likelihood of its tokens, divided
    by the public length.
    """
    scores = model(input_ids=tokens, attention_mask=mask).logits[:, :-1]
    losses = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return (losses.view(tokens.shape[0], -1) * mask[:, 1:]).sum(1) / tokens.shape[1]


def write_row(names: Sequence[str], cells: Sequence[str]) -> str:
    """Returns a row written out as text, for a causal language model to learn.

    >>> write_row(["age", "sex"], ["39", "Male"])
    'age is 39, sex is Male'
    """
    return _BETWEEN.join(f"{name}{_IS}{cell}" for name, cell in zip(names, cells, strict=True))


def read_row(names: Sequence[str], text: str) -> list[str] | None:
    """Returns the cells of a row that a causal language model wrote as text, or None if it cannot be read.

    >>> read_row(["age", "sex"], "age is 39, sex is Male"), read_row(["age", "sex"], "age is 39, age is 4")
    (['39', 'Male'], None)
    """
    # Some tokenizers put a space in front of a comma.
    pattern = r"\s*,\s*".join(f"{re.escape(name + _IS)}(.*?)" for name in names)
    found = re.fullmatch(pattern, text.strip())
    return None if found is None else [cell.strip() for cell in found.groups()]
