"""Layer rules: how per-sample gradients follow from a layer's input and the gradient at its output."""

from sordino.gradients.rules import attention, convolutional, embedding, linear, normalisation, recurrent
from sordino.gradients.rules.compound import Block
from sordino.gradients.rules.part import Part, Rows
from sordino.gradients.rules.registry import rule, rule_for

__all__ = [
    "Block",
    "Part",
    "Rows",
    "attention",
    "convolutional",
    "embedding",
    "linear",
    "normalisation",
    "recurrent",
    "rule",
    "rule_for",
]
