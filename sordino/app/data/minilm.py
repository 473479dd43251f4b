"""MiniLM-L6 (Wang et al. 2020, arXiv:2002.10957), a sentence encoder of 22.7 million parameters.

Needs transformers: pip install 'sordino[huggingface]'. The files are fetched once (`sordino data fetch minilm`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from sordino.app.data.files import folder
from sordino.nn.sentences import SentenceClassifier, features_of

WIDTH = 384
LENGTH = 64
"""Tokens of a text that are read, the first ones."""
VERSION = 1


def classifier(classes: int, say: Callable[[str], None] = lambda _: None) -> SentenceClassifier:
    """Returns MiniLM with a linear layer on the mean of its token vectors."""
    with _quiet() as transformers:
        encoder = transformers.AutoModel.from_pretrained(folder("minilm", say), add_pooling_layer=False)
    return SentenceClassifier(encoder, WIDTH, classes)


def tokens(
    texts: list[str], length: int = LENGTH, say: Callable[[str], None] = lambda _: None
) -> tuple[Tensor, Tensor]:
    """Returns token numbers and mask, (N, length) each; every text is cut or padded to one public length."""
    tokenizer = _transformers().AutoTokenizer.from_pretrained(folder("minilm", say))
    made = tokenizer(texts, truncation=True, padding="max_length", max_length=length, return_tensors="pt")
    return made["input_ids"], made["attention_mask"]


def vocabulary(say: Callable[[str], None] = lambda _: None) -> list[str]:
    """Returns the tokenizer's words and parts of words, in the order of their numbers."""
    numbers: dict[str, int] = _transformers().AutoTokenizer.from_pretrained(folder("minilm", say)).get_vocab()
    return sorted(numbers, key=numbers.__getitem__)


def features(texts: list[str], length: int = LENGTH, say: Callable[[str], None] = lambda _: None) -> Tensor:
    """Returns the frozen encoder's vectors of texts, (N, 384), each computed from its own text alone."""
    return features_of(classifier(1, say), *tokens(texts, length, say))


class TokenReader(nn.Module):
    """A classifier that takes token numbers and mask as one tensor, (B, 2, T)."""

    def __init__(self, classifier: SentenceClassifier) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        """Returns the scores."""
        scores: Tensor = self.classifier(x[:, 0], x[:, 1])
        return scores


def lora(shape: Sequence[int], classes: int, rank: int = 8) -> nn.Module:
    """Returns MiniLM with trainable adapters (Hu et al. 2021, arXiv:2106.09685) in its attention and a trainable head.

    Everything else is frozen, and there is no dropout.
    """
    if len(shape) != 2 or shape[0] != 2:
        raise ValueError(
            f"records of shape {' × '.join(map(str, shape))}: minilm-lora reads texts, as features 'tokens' are"
        )
    try:
        import peft
    except ImportError as error:
        raise ImportError(
            "peft is not installed, which LoRA needs: pip install 'sordino[huggingface]'", name="peft"
        ) from error
    # Dropout is turned off, because the noise of DP-SGD is enough.
    made = classifier(classes)
    for module in made.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # the noise is enough
    # Only the adapters and the head are trained.
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["query", "value"])
    peft.inject_adapter_in_model(config, made.encoder)
    for name, p in made.named_parameters():
        p.requires_grad_("lora_" in name or name.startswith("head"))
    return TokenReader(made)


@contextmanager
def _quiet() -> Iterator[Any]:
    """Yields transformers without its progress bar and its report of the layers that are left out on purpose."""
    transformers = _transformers()
    logging = transformers.utils.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def _transformers() -> Any:
    """Imports transformers, or explains how to install it."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "transformers is not installed, which MiniLM needs: pip install 'sordino[huggingface]'", name="transformers"
        ) from error
    return transformers
