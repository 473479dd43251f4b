"""Registers which rule runs which layer.

A rule runs a layer's forward pass and says how per-sample gradients follow from what it saw:

    @rule(MyScale)
    def my_scale(tape, module, x):
        tape.batch_dim(x, only=0)
        y = x * tape.leaf(module.gain, x)
        return tape.record(y, (x,), lambda saved, g: {module.gain: (saved[0] * g).flatten(1, -2).sum(1)})

`tape.batch_dim` says which dimension counts samples, and refuses any that the rule cannot do with. `tape.leaf` is the
parameter as the engine wants it in the graph, `tape.record` takes the output, the tensors to keep
and a function from those and the gradient at the output to one entry per parameter: a tensor (B, *shape), or a `Part`
whose squared norm, dot and weighted sum need no such tensor. A rule stands for a class and for the subclasses that
leave its `forward` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from sordino.per_sample.recording.tape import Rule

R = TypeVar("R", bound=Rule)

_RULES: dict[type[nn.Module], Rule] = {}
_FAMILIES: list[tuple[Callable[[nn.Module], bool], Rule]] = []


def rule(*layers: type[nn.Module]) -> Callable[[R], R]:
    """Registers a function as the rule of layer types in the layer registry.

    Examples:
        >>> class Gain(nn.Module): ...
        >>> @rule(Gain)
        ... def gain(tape, module, x): ...
        >>> rule_for(Gain()) is gain
        True

    """

    def register(function: R) -> R:
        for layer in layers:
            _RULES[layer] = function
        return function

    return register


def rule_for_family(belongs: Callable[[nn.Module], bool]) -> Callable[[R], R]:
    """Registers a function in the layer registry as the rule of a family of layers that have no class in common, and
    are known by what they are made of.
    """

    def register(function: R) -> R:
        _FAMILIES.append((belongs, function))
        return function

    return register


def rule_for(module: nn.Module) -> Rule | None:
    """Returns the rule that the layer registry has for the nearest ancestor whose forward this module still has, or for
    its family.
    """
    if "forward" in module.__dict__:  # replaced on the instance: we do not know what it does
        return None
    for layer in type(module).__mro__:
        found = _RULES.get(layer)
        if found is not None:
            return found if getattr(type(module), "forward", None) is getattr(layer, "forward", None) else None
    return next((function for belongs, function in _FAMILIES if belongs(module)), None)
