"""Layer rules: how per-sample gradients follow from a layer's input and the gradient at its output."""

from sordino.gradients.formulas.compound import Block
from sordino.gradients.formulas.part import Part, Rows
from sordino.gradients.layers import attention, conv, embedding, experts, linear, norm, recurrent
from sordino.gradients.layers.registry import rule, rule_for

__all__ = [
    "Block",
    "Part",
    "Rows",
    "attention",
    "conv",
    "embedding",
    "experts",
    "linear",
    "norm",
    "recurrent",
    "rule",
    "rule_for",
]
