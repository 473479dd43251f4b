"""Losses with one number per record for models that take a dict, such as those of transformers.

They cover classification, language models, token classification and sequence-to-sequence models.

    private = sd.Private(model, sd.losses.classification, query)      # model of Hugging Face's transformers, or any other

A model's own `loss` is a mean over the records, or over the tokens of all records: one record then scales all the
others. These are one number per record, made of that record alone. Labels of −100 are left out, as transformers does
it; a record's loss is the mean over its own labelled tokens, and 0 where it has none.

Privacy: nothing is counted over the batch. The neighbour test looks at whatever the model does inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from sordino.refusal import Refusal

IGNORED = -100
"""Labels that count for nothing, by the convention of torch and transformers."""
LABELS = ("labels", "label", "label_ids")
"""Keys under which labels come, the first that is there; the model is not given them."""
_DROPPED = (*LABELS, "num_items_in_batch")


def classification(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Returns the classification losses, one per record: of one class, several classes at once, or regression.

    The kind follows from the labels: whole numbers are classes, floating-point labels with as many columns as the
    model has outputs are a yes or no for each, one floating-point label for one output is regression by squared error.
    A `config.problem_type` that says otherwise is followed.

    >>> import torch
    >>> model = lambda x: torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    >>> classification(model, {"x": torch.zeros(2, 1), "labels": torch.tensor([0, 1])})
    tensor([0.1269, 0.6931])
    """
    # Labels are asked for first, so that a batch without them is refused by name.
    labels = _require_labels(batch)
    scores = outputs(model, batch)
    if scores.dim() != 2:
        raise Refusal(
            f"the model gives scores with {scores.dim()} dimensions.\n"
            "A loss per record needs scores of shape (records, classes).\n"
            "For a class per token use sd.losses.token_classification, for the next token sd.losses.causal_lm."
        )
    # The configuration decides; without it the type and shape of the labels do.
    kind = getattr(getattr(model, "config", None), "problem_type", None)
    if kind == "regression" or (kind is None and labels.is_floating_point() and scores.shape[1] == 1):
        return (scores - labels.reshape(len(scores), -1).to(scores.dtype)).square().mean(dim=1)
    if kind == "multi_label_classification" or (kind is None and labels.is_floating_point()):
        each = F.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none")
        return each.mean(dim=1)
    return F.cross_entropy(scores, labels.reshape(-1).long(), reduction="none", ignore_index=IGNORED)


def token_classification(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Returns the losses of a class per token, one per record: the mean over the record's own labelled tokens.

    Args:
        model: takes the batch's keys by name.
        batch: a dict with labels, (B, T).

    Returns:
        One loss per record, (B,).

    Examples:
        >>> import torch
        >>> batch = {"x": torch.zeros(1, 2), "labels": torch.tensor([[1, -100]])}
        >>> token_classification(lambda x: torch.zeros(1, 2, 4), batch)
        tensor([1.3863])

    """
    labels = _require_labels(batch)
    return _token_mean(outputs(model, batch), labels)


def causal_lm(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Returns the losses of the next token, one per record: the mean over the record's own tokens.

    Without labels, the tokens that are attended to are the labels.

    Args:
        model: takes the batch's keys by name.
        batch: a dict with `input_ids`, (B, T), and labels if they differ from them.

    Returns:
        One loss per record, (B,).

    Examples:
        >>> import torch
        >>> batch = {"input_ids": torch.tensor([[1, 2, 3]]), "attention_mask": torch.ones(1, 3)}
        >>> causal_lm(lambda input_ids, attention_mask: torch.zeros(1, 3, 4), batch)
        tensor([1.3863])

    """
    labels = _find_labels(batch)
    if labels is None:
        labels = batch["input_ids"]
        mask = batch.get("attention_mask")
        if mask is not None:
            labels = labels.masked_fill(mask == 0, IGNORED)
    return _token_mean(outputs(model, batch)[:, :-1], labels[:, 1:])


def masked_lm(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Returns the losses of the masked tokens, one per record: the mean over the record's own.

    Args:
        model: takes the batch's keys by name.
        batch: a dict with labels, −100 where nothing was masked.

    Returns:
        One loss per record, (B,).

    Examples:
        >>> import torch
        >>> batch = {"x": torch.zeros(1, 2), "labels": torch.tensor([[-100, 3]])}
        >>> masked_lm(lambda x: torch.zeros(1, 2, 4), batch)
        tensor([1.3863])

    """
    return token_classification(model, batch)


def seq2seq(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Returns the losses of the target sequence given the source, one per record: the mean over the record's own
    labelled tokens.

    Models of transformers make the decoder's input of the labels, which are at the same places as the scores.

    Args:
        model: takes the batch's keys by name.
        batch: a dict with labels, and `decoder_input_ids` where the model does not make them.

    Returns:
        One loss per record, (B,).

    Examples:
        >>> import torch
        >>> tokens = torch.tensor([[1, 2]])
        >>> seq2seq(lambda decoder_input_ids: torch.zeros(1, 2, 4), {"decoder_input_ids": tokens, "labels": tokens})
        tensor([1.3863])

    """
    labels = _require_labels(batch)
    given = dict(batch)
    if "decoder_input_ids" not in given:
        shift = _decoder_input_function(model)
        given["decoder_input_ids"] = shift(labels)
    return _token_mean(outputs(model, given), labels)


def outputs(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Returns the scores that losses are computed from, of a batch without its labels: `logits`, or the model's result
    if that is a tensor.

    Args:
        model: takes the batch's keys by name.
        batch: a dict.

    Returns:
        The scores.

    Examples:
        >>> import torch
        >>> outputs(lambda x: 2 * x, {"x": torch.ones(1, 2), "labels": torch.zeros(1)})
        tensor([[2., 2.]])

    """
    # The labels are withheld, so that the model does not compute its own loss over the batch.
    given = {name: value for name, value in batch.items() if name not in _DROPPED and value is not None}
    result = model(**given)
    if isinstance(result, Tensor):
        return result
    scores = result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", None)
    if not isinstance(scores, Tensor):
        raise Refusal(
            f"the model returned a {type(result).__name__} without `logits`.\n"
            "A loss per record is made of scores.\n"
            "Write loss_fn(model, batch) yourself, with one loss per record."
        )
    return scores


def _token_mean(scores: Tensor, labels: Tensor) -> Tensor:
    """Returns the losses (B,) as means over each record's own labelled places, from (B, T, classes) and (B, T)."""
    # A record's mean is over its own labelled tokens; a mean over the batch would couple the records.
    if scores.dim() != 3 or scores.shape[:2] != labels.shape:
        raise Refusal(
            f"scores with {scores.dim()} dimensions and labels with {labels.dim()} were given.\n"
            "A loss per token needs a score per token and class and a label per token.\n"
            "For a class per record use sd.losses.classification."
        )
    token_losses = F.cross_entropy(
        scores.transpose(1, 2), labels.long(), reduction="none", ignore_index=IGNORED
    )  # (B, T)
    labelled = (labels != IGNORED).sum(dim=1)
    return token_losses.sum(dim=1) / labelled.clamp(min=1)  # a record's own count, of no other


def _find_labels(batch: Mapping[str, Any]) -> Tensor | None:
    return next((batch[name] for name in LABELS if batch.get(name) is not None), None)


def _require_labels(batch: Mapping[str, Any]) -> Tensor:
    """Returns the labels of a batch, which the losses need; raises Refusal if it has none."""
    labels = _find_labels(batch)
    if labels is None:
        raise Refusal(
            f"a batch has the keys {', '.join(batch)}, and no labels.\n"
            "A loss cannot be computed without them.\n"
            f"Put labels into the batch, under {' or '.join(LABELS)}."
        )
    return labels


def _decoder_input_function(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Returns the model's own function from labels to the decoder's input, for losses of sequence-to-sequence models;
    PEFT's adapters are looked through.
    """
    # Adapters hide the model that knows how its decoder is fed.
    base = getattr(model, "get_base_model", lambda: model)()
    prepare: Callable[..., Tensor] | None = getattr(base, "prepare_decoder_input_ids_from_labels", None)
    if prepare is not None:
        return lambda labels: prepare(labels=labels)
    raise Refusal(
        f"{type(base).__name__} does not say how its decoder's input is made of labels.\n"
        "Without it the decoder cannot be run for a loss per record.\n"
        "Put decoder_input_ids into the batch."
    )


def for_model(model: nn.Module) -> Callable[[nn.Module, Mapping[str, Any]], Tensor]:
    """Returns the loss that a model of transformers is made for, by the name of its class.

    Args:
        model: of transformers, with or without PEFT's adapters.

    Returns:
        A function of (model, batch).

    Examples:
        >>> class TinyForSequenceClassification(nn.Module): ...
        >>> for_model(TinyForSequenceClassification()).__name__
        'classification'

    """
    base = getattr(model, "get_base_model", lambda: model)()
    name = type(base).__name__
    # Encoder-decoder models share endings with others, so they are recognised by their configuration.
    if getattr(getattr(base, "config", None), "is_encoder_decoder", False) and "Conditional" in name:
        return seq2seq
    for ending, loss in _BY_ENDING.items():
        if name.endswith(ending):
            return loss
    raise Refusal(
        f"no loss per record is known for a {name}.\n"
        f"Losses are known by the endings of class names: {', '.join(_BY_ENDING)}.\n"
        "Give loss_fn=, a function of (model, batch) with one loss per record, such as sd.losses.classification."
    )


_BY_ENDING: dict[str, Callable[[nn.Module, Mapping[str, Any]], Tensor]] = {
    "ForSequenceClassification": classification,
    "ForImageClassification": classification,
    "ForAudioClassification": classification,
    "ForTokenClassification": token_classification,
    "ForMaskedLM": masked_lm,
    "ForCausalLM": causal_lm,
    "LMHeadModel": causal_lm,
    "ForConditionalGeneration": seq2seq,
}
