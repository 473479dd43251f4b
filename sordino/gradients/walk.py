"""Walks over a model's modules, without torch's generators: they are made before every lot, and time is all they cost."""

from __future__ import annotations

from torch import nn


class Walked:
    """The modules, looked at once: inside, the model promises to keep them, as it does within a lot."""

    latest: tuple[nn.Module, list[nn.Module]] | None = None

    def __init__(self, model: nn.Module) -> None:
        self.modules = modules_of(model)
        self._model = model

    def __enter__(self) -> None:
        Walked.latest = self._model, self.modules

    def __exit__(self, *error: object) -> None:
        Walked.latest = None


def modules_of(model: nn.Module) -> list[nn.Module]:
    """As `list(model.modules())`, in the same order."""
    latest = Walked.latest
    if latest is not None and latest[0] is model:
        return latest[1]
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


def parameters_in(modules: list[nn.Module]) -> dict[int, nn.Parameter]:
    """Every parameter of the modules once, in order, by its identity."""
    return {id(p): p for m in modules if m._parameters for p in m._parameters.values() if p is not None}


class Names:
    """A model's parameters by name, as `dict(model.named_parameters())`; named anew when they are not the same objects."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._known: list[int] = []
        self._named: dict[str, nn.Parameter] = {}  # holds the parameters, so that an identity is not given out again
        # A wrapper may have names of its own.
        self._plain = type(model).named_parameters is nn.Module.named_parameters

    def __call__(self, modules: list[nn.Module]) -> dict[str, nn.Parameter]:
        """The parameters of the model, whose modules these are."""
        now = list(parameters_in(modules))
        if now != self._known or not self._plain:
            self._known, self._named = now, dict(self._model.named_parameters())
        return self._named
