"""Lists a model's modules, parameters and spectral vectors quickly, as is done before every lot.

It does without torch's generators, which are slow.

The vectors of a spectral normalisation are kept functions of the weights and the number of lots. Every forward pass moves
them on by one power iteration (Miyato et al. 2018, arXiv:1802.05957). Left to itself, a lot of three batches would move
them three times, and one of two twice: how many records were drawn would leave with the model, and a pass that is run
again would not be the same. So every pass of the library leaves the vectors as they were, and they are moved on once for
each lot.

Privacy: spectral vectors are functions of released weights and of the number of lots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import is_parametrized

Mark = tuple[tuple[int, ...], tuple[tuple[int, bool], ...]]
"""The identity of every module; of every parameter, and whether it is trained; in order."""


class Inventory:
    """Lists a model's modules, in the order of `model.modules()`, and its parameters, shared ones each time."""

    __slots__ = ("mark", "model", "modules", "parameters")

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules = list_modules(model)
        self.parameters = [p for m in self.modules if m._parameters for p in m._parameters.values() if p is not None]
        self.mark: Mark = tuple(map(id, self.modules)), tuple([(id(p), p.requires_grad) for p in self.parameters])


def list_modules(model: nn.Module) -> list[nn.Module]:
    """Returns `list(model.modules())`, in the same order, for a model's inventory."""
    # The same walk as torch's, without its generators, because it runs before every lot.
    seen: set[nn.Module] = set()
    found: list[nn.Module] = []
    stack = [model]
    while stack:
        module = stack.pop()
        if module not in seen:
            seen.add(module)
            found.append(module)
            if module._modules:
                stack += [m for m in reversed(module._modules.values()) if m is not None]
    return found


def list_model_tensors(modules: list[nn.Module]) -> list[Tensor]:
    """Returns every tensor in a model's inventory, parameters and buffers.

    The vectors of a spectral normalisation are left out; they follow from the weights alone.
    """
    found: list[Tensor] = []
    for m in modules:
        if m._parameters:
            found += [p for p in m._parameters.values() if p is not None]
        if m._buffers and not isinstance(m, _SpectralNorm):
            found += [b for b in m._buffers.values() if b is not None]
    return found


def list_tensor_names(modules: list[nn.Module]) -> list[str]:
    """Returns the names that the tensors of a model's inventory (`list_model_tensors`) have in their modules, in the
    same order.
    """
    found: list[str] = []
    for m in modules:
        if m._parameters:
            found += [f"parameter {name!r}" for name, p in m._parameters.items() if p is not None]
        if m._buffers and not isinstance(m, _SpectralNorm):
            found += [f"buffer {name!r}" for name, b in m._buffers.items() if b is not None]
    return found


class ParameterNames:
    """Keeps a model's parameters by name, as `dict(model.named_parameters())`, and those of them that are trained.

    They are named anew when they are not the same objects, or are frozen or thawed: until then the dicts are the same.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._mark: Mark | None = None
        self.named: dict[str, nn.Parameter] = {}  # holds the parameters, so that an identity is not given out again
        self.trained: dict[str, nn.Parameter] = {}
        # A wrapper may have names of its own.
        self._plain = type(model).named_parameters is nn.Module.named_parameters

    def refresh(self, now: Inventory) -> None:
        """Names the parameters anew if the model's inventory has changed since they were last named."""
        if now.mark != self._mark or not self._plain:
            self._mark, self.named = now.mark, dict(self._model.named_parameters())
            self.trained = {name: p for name, p in self.named.items() if p.requires_grad}


def find_spectral_vectors(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Returns the vectors of every spectral normalisation among the modules."""
    return [b for m in modules if isinstance(m, _SpectralNorm) for b in m._buffers.values() if b is not None]


@contextmanager
def keep_vectors(vectors: Sequence[Tensor]) -> Iterator[None]:
    """Puts the vectors of spectral normalisations, which the inventory of a model lists, back as they were before."""
    before = [vector.clone() for vector in vectors]
    try:
        yield
    finally:
        with torch.no_grad():
            for vector, old in zip(vectors, before, strict=True):
                vector.copy_(old)


def advance_vectors(modules: Sequence[nn.Module]) -> None:
    """Advances the vectors of every spectral normalisation in a model's inventory that is in training mode by one power
    iteration.
    """
    if not any(isinstance(m, _SpectralNorm) for m in modules):
        return
    with torch.no_grad():
        # Computing a weight is what moves its vectors on.
        for module in modules:
            if is_parametrized(module):
                for name, chain in module.parametrizations.items():  # type: ignore[union-attr,operator]
                    if any(isinstance(m, _SpectralNorm) and m.training for m in chain.modules()):
                        getattr(module, name)  # computes the weight
