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


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """As `dict(model.named_parameters())`: every parameter once, by the first of its names."""
    if type(model).named_parameters is not nn.Module.named_parameters:  # a wrapper with names of its own
        return dict(model.named_parameters())
    modules: set[nn.Module] = set()
    seen: set[nn.Parameter] = set()
    found: dict[str, nn.Parameter] = {}
    stack = [("", model)]
    while stack:
        prefix, module = stack.pop()
        if module in modules:
            continue
        modules.add(module)
        for name, p in module._parameters.items():
            if p is not None and p not in seen:
                seen.add(p)
                found[prefix + name] = p
        if module._modules:
            below = [(f"{prefix}{name}.", m) for name, m in module._modules.items() if m is not None]
            below.reverse()
            stack += below
    return found
