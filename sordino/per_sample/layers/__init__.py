"""Layer rules: how per-sample gradients follow from a layer's input and output gradient."""

from sordino.per_sample.formulas.compound_parts import Block
from sordino.per_sample.formulas.gradient_part import GradientRows, Part
from sordino.per_sample.layers import attention, conv, embedding, experts, linear, norm, recurrent
from sordino.per_sample.layers.layer_registry import rule, rule_for

__all__ = [
    "Block",
    "GradientRows",
    "Part",
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
