"""Compiled models: how a model that `torch.compile` was applied to is trained.

A compiled model runs as one piece, and its layers have no place for a rule that records their inputs. So the engine
never calls what dynamo made of the model. It works on the module inside `torch.compile(model)`, and every call of a loss
runs uncompiled (`batch_structure.run_uncompiled`): layers compiled by `module.compile()`, and compiled functions inside
the loss, run by their own code.

What the user asked for is kept in another way: where all batches have one shape, the engine's own forward and backward
pass, recordings included, is compiled by the user's compiler (`engine/compiled_passes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sordino.per_sample.model_inventory import list_modules
from sordino.refusal import Refusal

_INNER_BACKEND = "_torchdynamo_orig_backend"
"""Where dynamo's wrappers of a backend keep the one inside them."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Compiler:
    """A backend of `torch.compile`: makes a fast function of a graph and inputs of one shape."""

    name: str
    compile_graph: Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]


def is_compiled_wrapper(module: nn.Module) -> bool:
    """Returns whether a module is what `torch.compile(model)` returns; its class is known by name, because importing it
    takes seconds.
    """
    return type(module).__name__ == "OptimizedModule" and isinstance(getattr(module, "_orig_mod", None), nn.Module)


def unwrap_compiled(model: nn.Module) -> nn.Module:
    """Returns the module inside `torch.compile(model)`, which has the same parameters; any other model as it is.

    Raises:
        Refusal: hooks were registered on the wrapper; they would not run.

    """
    while is_compiled_wrapper(model):
        if any(model.__dict__.get(name) for name in _HOOKS):
            raise Refusal(
                "a hook was registered on what torch.compile returned.\n"
                "The engine runs the model inside it, and the hook would not run.\n"
                "Register the hook on the model before torch.compile."
            )
        model = model.__dict__["_modules"]["_orig_mod"]
    return model


def find_compiler(model: nn.Module) -> Compiler | None:
    """Returns the compiler that a model, or the first compiled module inside it, was compiled with; None if there is
    none.
    """
    for module in list_modules(model):
        if is_compiled_wrapper(module):
            return _compiler_of_callback(getattr(module.__dict__.get("dynamo_ctx"), "callback", None))
        compiled_call = getattr(module, "_compiled_call_impl", None)  # set by module.compile()
        if compiled_call is not None:
            return _compiler_of_callback(next(_iterate_callbacks(compiled_call), None))
    return None


def _iterate_callbacks(compiled_call: Any) -> Iterator[Any]:
    """Yields what the function that `module.compile()` made holds of dynamo's wrappers of a backend."""
    for cell in getattr(compiled_call, "__closure__", None) or ():
        if hasattr(cell.cell_contents, _INNER_BACKEND):
            yield cell.cell_contents


def _compiler_of_callback(callback: Any) -> Compiler | None:
    """Returns the backend inside dynamo's wrappers, with its options; inductor, which is torch's default, where torch
    keeps it elsewhere than is known here.
    """
    while hasattr(callback, _INNER_BACKEND):
        callback = getattr(callback, _INNER_BACKEND)
    if callback is None or not callable(callback):
        from torch._dynamo import lookup_backend

        return Compiler("inductor", lookup_backend("inductor"))
    name = getattr(callback, "compiler_name", None) or getattr(callback, "__name__", type(callback).__name__)
    return Compiler(str(name), callback)
