"""Walks over a model's modules, without torch's generators: they are made before every lot, and time is all they cost."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm

Mark = tuple[tuple[int, bool], ...]
"""The identity of every parameter, and whether it is trained, in order."""


class Walked:
    """A model's modules and parameters, looked at once: inside, it promises to keep them, as it does within a lot."""

    latest: Walked | None = None

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules = modules_of(model)
        self.parameters = parameters_in(self.modules)
        self.mark: Mark = tuple([(id(p), p.requires_grad) for p in self.parameters])

    def __enter__(self) -> None:
        Walked.latest = self

    def __exit__(self, *error: object) -> None:
        Walked.latest = None


def walked(model: nn.Module) -> Walked:
    """What is known of the model within a lot; else a look at it."""
    latest = Walked.latest
    return latest if latest is not None and latest.model is model else Walked(model)


def modules_of(model: nn.Module) -> list[nn.Module]:
    """As `list(model.modules())`, in the same order."""
    latest = Walked.latest
    if latest is not None and latest.model is model:
        return latest.modules
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


def parameters_in(modules: list[nn.Module]) -> list[nn.Parameter]:
    """Every parameter of the modules, in order, shared ones as often as they occur."""
    return [p for m in modules if m._parameters for p in m._parameters.values() if p is not None]


def held_by(modules: list[nn.Module]) -> list[tuple[str, Tensor]]:
    """Every tensor a model holds, parameters and buffers, with the name it has in its module.

    Without the vectors of a spectral normalisation, which follow from the weights alone.
    """
    found: list[tuple[str, Tensor]] = []
    for m in modules:
        if m._parameters:
            found += [(f"parameter {name!r}", p) for name, p in m._parameters.items() if p is not None]
        if m._buffers and not isinstance(m, _SpectralNorm):
            found += [(f"buffer {name!r}", b) for name, b in m._buffers.items() if b is not None]
    return found


class Names:
    """A model's parameters by name, as `dict(model.named_parameters())`, and those of them that are trained.

    They are named anew when they are not the same objects, or are frozen or thawed: until then the dicts are the same.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._mark: Mark | None = None
        self.named: dict[str, nn.Parameter] = {}  # holds the parameters, so that an identity is not given out again
        self.trained: dict[str, nn.Parameter] = {}
        # A wrapper may have names of its own.
        self._plain = type(model).named_parameters is nn.Module.named_parameters

    def look(self, now: Walked) -> None:
        """The model is as seen here."""
        if now.mark != self._mark or not self._plain:
            self._mark, self.named = now.mark, dict(self._model.named_parameters())
            self.trained = {name: p for name, p in self.named.items() if p.requires_grad}
