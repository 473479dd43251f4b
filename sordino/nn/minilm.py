"""MiniLM-L6 (Wang et al. 2020), a sentence encoder of 22.7 million parameters, from its own files.

Needs transformers: pip install 'sordino[huggingface]'. The files are fetched once (`sordino data fetch minilm`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from sordino.data.files import folder
from sordino.nn.sentences import SentenceClassifier, features_of

WIDTH = 384
LENGTH = 64
"""Tokens of a text that are read, the first ones."""
VERSION = 1


def classifier(classes: int, say: Callable[[str], None] = lambda _: None) -> SentenceClassifier:
    """MiniLM with a linear layer on the mean of its token vectors."""
    transformers = _transformers()
    encoder = transformers.AutoModel.from_pretrained(folder("minilm", say), add_pooling_layer=False)
    return SentenceClassifier(encoder, WIDTH, classes)


def tokens(
    texts: list[str], length: int = LENGTH, say: Callable[[str], None] = lambda _: None
) -> tuple[Tensor, Tensor]:
    """Token numbers and mask, (N, length) each: every text cut or padded to one public length."""
    tokenizer = _transformers().AutoTokenizer.from_pretrained(folder("minilm", say))
    made = tokenizer(texts, truncation=True, padding="max_length", max_length=length, return_tensors="pt")
    return made["input_ids"], made["attention_mask"]


def features(texts: list[str], length: int = LENGTH, say: Callable[[str], None] = lambda _: None) -> Tensor:
    """The frozen encoder's vectors of texts, (N, 384); each from its own text alone."""
    return features_of(classifier(1, say), *tokens(texts, length, say))


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "transformers is not installed, which MiniLM needs: pip install 'sordino[huggingface]'", name="transformers"
        ) from error
    return transformers
