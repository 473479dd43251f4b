"""MiniLM-L6 (Wang et al. 2020, arXiv:2002.10957), a sentence encoder of 22.7 million parameters.

Needs transformers: pip install 'sordino[huggingface]'. The files are fetched once (`sordino data fetch minilm`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from sordino.app.data.files import files_folder
from sordino.nn.sentences import SentenceClassifier, compute_features

WIDTH = 384
LENGTH = 64
"""Tokens of a text that are read, the first ones."""
VERSION = 1


def build_classifier(classes: int, say: Callable[[str], None] = lambda _: None) -> SentenceClassifier:
    """Returns a classifier made of MiniLM and a linear layer on the mean of its token vectors."""
    with _quiet_transformers() as transformers:
        encoder = transformers.AutoModel.from_pretrained(files_folder("minilm", say), add_pooling_layer=False)
    return SentenceClassifier(encoder, WIDTH, classes)


def tokenize(
    texts: list[str], length: int = LENGTH, say: Callable[[str], None] = lambda _: None
) -> tuple[Tensor, Tensor]:
    """Returns MiniLM's token numbers and mask, (N, length) each; every text is cut or padded to one public length."""
    tokenizer = import_transformers().AutoTokenizer.from_pretrained(files_folder("minilm", say))
    encoding = tokenizer(texts, truncation=True, padding="max_length", max_length=length, return_tensors="pt")
    return encoding["input_ids"], encoding["attention_mask"]


def read_vocabulary(say: Callable[[str], None] = lambda _: None) -> list[str]:
    """Returns the words and parts of words of MiniLM's tokenizer, in the order of their numbers."""
    numbers: dict[str, int] = (
        import_transformers().AutoTokenizer.from_pretrained(files_folder("minilm", say)).get_vocab()
    )
    return sorted(numbers, key=numbers.__getitem__)


def sentence_vectors(texts: list[str], length: int = LENGTH, say: Callable[[str], None] = lambda _: None) -> Tensor:
    """Returns the frozen encoder's vectors of texts, (N, 384), each computed from its own text alone."""
    return compute_features(build_classifier(1, say), *tokenize(texts, length, say))


class TokenReader(nn.Module):
    """A classifier that takes token numbers and mask as one tensor, (B, 2, T)."""

    def __init__(self, classifier: SentenceClassifier) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        """Returns the scores."""
        scores: Tensor = self.classifier(x[:, 0], x[:, 1])
        return scores


def build_lora_classifier(shape: Sequence[int], classes: int, rank: int = 8) -> nn.Module:
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
    sentence_classifier = build_classifier(classes)
    for module in sentence_classifier.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # the noise is enough
    # Only the adapters and the head are trained.
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["query", "value"])
    peft.inject_adapter_in_model(config, sentence_classifier.encoder)
    for name, p in sentence_classifier.named_parameters():
        p.requires_grad_("lora_" in name or name.startswith("head"))
    return TokenReader(sentence_classifier)


@contextmanager
def _quiet_transformers() -> Iterator[Any]:
    """Yields transformers, which loads MiniLM, without its progress bar and its report of the layers that are left out
    on purpose.
    """
    transformers = import_transformers()
    logging = transformers.utils.logging
    # What the user has set is kept, and put back even if the loading fails.
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def import_transformers() -> Any:
    """Imports transformers, which MiniLM needs, or explains how to install it."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "transformers is not installed, which MiniLM needs: pip install 'sordino[huggingface]'", name="transformers"
        ) from error
    return transformers
