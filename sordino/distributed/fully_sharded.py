"""Fully sharded models: their parameters are divided among the ranks (FSDP2).

FSDP2 is `torch.distributed.fsdp.fully_shard` (Zhao et al. 2023, arXiv:2304.11277).

At rest a rank holds its rows of every parameter, of the released gradient and of the optimizer's state. For the passes over
a lot the model is made whole: parameters are gathered one after the other, and torch's own hooks, which would gather
them layer by layer, are taken off. Then the engine sees the plain model that it sees on one process, empty ranks need no
passes of their own, and an error in one rank's records leaves no other rank inside a collective. The price is memory: all
parameters on every rank during the passes. Where that is too much they come and go layer by layer (`layer_by_layer.py`).

Privacy: norms are those of whole gradients, because a rank holds the whole activations of its own records.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sordino.distributed import row_shard
from sordino.distributed.collectives_on_demand import gather_rows
from sordino.distributed.layer_by_layer import LayerByLayer
from sordino.distributed.process_group import Ranks
from sordino.distributed.shared_lot import check_in_step
from sordino.refusal import Refusal

_TORCH_STATE = "__composable_api_state_key"
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_HOME = "torch.distributed.fsdp"


class FullySharded:
    """Gathers and divides the parameters of one model that `fully_shard` was applied to."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._gathered_by_shard: dict[
            int, tuple[Tensor, nn.Parameter]
        ] = {}  # by the shard's identity, which is held here
        self._depth, self._times = 0, 0
        self.layers: LayerByLayer | None = None  # inside `gathered_layer_by_layer`
        self._ranks = Ranks()
        self.release_full_parameters()
        # What this library cannot gather exactly is refused before training.
        for name, p in model.named_parameters():
            _refuse_other_division(name, p)
        for name, module in model.named_modules():
            if _is_fsdp(module):
                _refuse_policies(name, module)

    @property
    def mesh(self) -> Any:
        """The ranks that the first parameter is divided among; the others are too."""
        first: Any = next(p for p in self._model.parameters() if row_shard.is_shard(p))
        return first.device_mesh

    def check_ranks(self, ranks: Ranks) -> None:
        """Sets the ranks of the run and refuses a fully sharded model whose parameters are divided among other ranks."""
        # Records and parameters must be divided among the same ranks.
        self._ranks = ranks
        given = None if ranks.group is None else torch.distributed.get_process_group_ranks(ranks.group)
        for name, p in self._model.named_parameters():
            if row_shard.is_shard(p) and p.device_mesh.mesh.flatten().tolist() != given:  # type: ignore[attr-defined]
                raise Refusal(
                    f"parameter {name!r} is divided among other ranks than the records are.\n"
                    "One group of ranks adds up the gradients and holds the parameters.\n"
                    "Use one mesh for all of the model, and no other in Private(mesh=…)."
                )

    @property
    def is_gathered(self) -> bool:
        """Is the model whole now?"""
        return self._depth > 0

    def release_full_parameters(self) -> None:
        """Makes every parameter of a fully sharded model its shard again; torch may have left some of them gathered
        after a forward pass.
        """
        for module in self._model.modules() if not self.is_gathered else ():
            if _is_fsdp(module):
                module.reshard()  # type: ignore[operator]

    @contextmanager
    def gathered_parameters(self) -> Iterator[None]:
        """Makes a fully sharded model a plain one with all of its parameters on every rank; the shards are put back at
        the end.
        """
        self._depth += 1
        try:
            if self._depth > 1:
                yield
                return
            self._times += 1
            # All ranks must come here together, because gathering is a collective.
            check_in_step(self._ranks, "the parameters", self._times)
            with ExitStack() as put_back, torch.no_grad():
                # Every change is registered with the stack that undoes it, in whatever way this ends.
                for module in self._model.modules():
                    self._remove_fsdp_hooks(module, put_back)
                    self._gather_module(module, put_back)
                with torch.enable_grad():
                    yield
        finally:
            self._depth -= 1
            for _, held in self._gathered_by_shard.values() if not self._depth else ():
                held.data = held.data.new_empty(0)  # what still refers to the numbers keeps them

    @contextmanager
    def gathered_layer_by_layer(self) -> Iterator[None]:
        """Makes a fully sharded model a plain one whose parameters are there only while the module in charge of them
        runs.
        """
        if self.is_gathered:  # whole already
            yield
            return
        # From here on passes see plain parameters that are empty until their module runs.
        self._depth += 1
        try:
            self._times += 1
            # All ranks must be at the same point, or their collectives would wait for each other.
            check_in_step(self._ranks, "the parameters, layer by layer", self._times)
            with ExitStack() as put_back, torch.no_grad():
                charges, numbers = self._find_charges(put_back)
                shards, held = zip(*[self._gathered_by_shard[key] for key in numbers], strict=True)
                self.layers = LayerByLayer(self._ranks, shards, held)
                with self.layers.gather_on_forward(charges), torch.enable_grad():
                    yield
        # The memory of gathered parameters is given back in any case.
        finally:
            self._depth, self.layers = 0, None
            for _, each in self._gathered_by_shard.values():
                each.data = each.data.new_empty(0)

    def _find_charges(self, put_back: ExitStack) -> tuple[list[tuple[nn.Module, list[int]]], dict[int, int]]:
        """Returns the modules that `fully_shard` was applied to, with the parameters in their charge.

        Returns the shards' numbers by identity as well.
        """
        charges: list[tuple[nn.Module, list[int]]] = []
        numbers: dict[int, int] = {}

        def visit(module: nn.Module, charge: list[int], seen: set[int]) -> None:
            """Assigns a module's parameters to the nearest module above it that `fully_shard` was applied to."""
            if id(module) in seen:
                return
            seen.add(id(module))
            # A module that was divided by itself begins a charge of its own.
            if _is_fsdp(module):
                charge = []
                charges.append((module, charge))
            for p in [p for p in module._parameters.values() if p is not None and row_shard.is_shard(p)]:
                number = numbers.setdefault(id(p), len(numbers))
                if number not in charge:
                    charge.append(number)
            # From here on the module is plain, and its parameters are those of the passes.
            self._remove_fsdp_hooks(module, put_back)
            self._replace_shards(module, put_back)
            for child in module._modules.values():
                if child is not None:
                    visit(child, charge, seen)

        visit(self._model, [], set())
        return charges, numbers

    def _replace_shards(self, module: nn.Module, put_back: ExitStack) -> list[tuple[Tensor, nn.Parameter]]:
        """Replaces the shards of one module of a fully sharded model by the parameters that the passes see.

        These are the same objects every time, because the engine knows a model by them.
        """
        replaced: list[tuple[Tensor, nn.Parameter]] = []
        # The stand-in of a shard is made once and reused, because the engine recognises parameters by their identity.
        for name, p in module._parameters.items():
            if p is None or not row_shard.is_shard(p):
                continue
            _, held = self._gathered_by_shard.get(id(p), (None, None))
            if held is None:
                held = nn.Parameter(torch.empty(0, dtype=p.dtype, device=p.device), requires_grad=False)
                self._gathered_by_shard[id(p)] = p, held
            held.requires_grad_(p.requires_grad)
            put_back.callback(module._parameters.__setitem__, name, p)
            module._parameters[name] = held
            replaced.append((p, held))
        return replaced

    def _gather_module(self, module: nn.Module, put_back: ExitStack) -> None:
        """Gathers the parameters of one module of a fully sharded model on every rank."""
        for p, held in self._replace_shards(module, put_back):
            if held.numel() != p.numel():
                held.data = gather_rows(self._ranks, p)

    @staticmethod
    def _remove_fsdp_hooks(module: nn.Module, put_back: ExitStack) -> None:
        """Makes a module what it was before `fully_shard`: of its own class, without FSDP's hooks and state."""
        if not _is_fsdp(module):
            return
        # Everything that is taken away is put back in the opposite order when the pass ends.
        attributes: dict[str, Any] = module.__dict__
        for key in [key for key in attributes if key.startswith(_TORCH_STATE)]:
            put_back.callback(attributes.__setitem__, key, attributes.pop(key))
        for key in _HOOKS:
            hooks = attributes[key]
            put_back.callback(attributes.__setitem__, key, hooks)
            attributes[key] = type(hooks)((k, hook) for k, hook in hooks.items() if not _is_hook_of_torch(hook))
        kind = type(module)
        put_back.callback(setattr, module, "__class__", kind)
        module.__class__ = _original_class(kind)


def wrap_if_sharded(model: nn.Module) -> FullySharded | None:
    """Returns the `FullySharded` of a model that `fully_shard` was applied to; None for another model."""
    return FullySharded(model) if any(map(_is_fsdp, model.modules())) else None


def _is_fsdp(module: nn.Module) -> bool:
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def _original_class(kind: type) -> type:
    """Returns the class that torch put its own in front of."""
    order = kind.__mro__
    return order[1 + next(k for k, each in enumerate(order) if each.__name__ == "FSDPModule")]


def _is_hook_of_torch(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(_HOME)


def _refuse_policies(name: str, module: Any) -> None:
    """Refuses a MixedPrecisionPolicy on a module of a fully sharded model: torch would change the types of its
    parameters, which the passes here do not.
    """
    # The passes here compute in the type of the parameters.
    state = module._get_fsdp_state()
    kinds = {field: getattr(state._mp_policy, field) for field in ("param_dtype", "reduce_dtype", "output_dtype")}
    given = [f"{field}={kind}" for field, kind in kinds.items() if kind is not None]
    if given:
        raise Refusal(
            f"module {name!r} was divided with a MixedPrecisionPolicy({', '.join(given)}).\n"
            "Sums and norms are made in the type of the parameters, in float32 at least.\n"
            "Divide it without a policy, and use torch.autocast inside loss_fn."
        )


def _refuse_other_division(name: str, p: Tensor) -> None:
    """Refuses a parameter of a fully sharded model that is not divided by rows along one dimension of ranks."""
    # Every trained parameter must be divided like the others, because sums and noise are divided with it.
    if not row_shard.is_shard(p):
        if p.requires_grad:
            raise Refusal(
                f"parameter {name!r} is not divided among the ranks and others are.\n"
                "Sums and noise are divided with the parameters, so all that are trained must be.\n"
                "Apply fully_shard to the model itself too, which takes in what its layers have left over."
            )
        return
    # Rows along one dimension of ranks are what sums and noise are divided by.
    mesh, placements = p.device_mesh, p.placements  # type: ignore[attr-defined]
    if mesh.ndim != 1 or not placements[0].is_shard(0):
        raise Refusal(
            f"parameter {name!r} is placed {placements} on a mesh of {mesh.ndim} dimension(s).\n"
            "Sums and noise are divided by rows along one dimension; hybrid sharding, tensor and expert parallelism "
            "are not supported.\n"
            "Divide the model as fully_shard(model) does."
        )
