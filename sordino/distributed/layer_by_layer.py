"""Layer by layer: the parameters of a sharded model are gathered only while their layer runs.

This is done for each module that `fully_shard` was applied to by itself.

    before a module's forward     the parameters in its charge are gathered, as torch's own hooks would do
    after it                      they are gone; what autograd keeps of them for the way back is their number
    on the way back               a node of the graph that needs one gathers it again, and lets it go

A module has in its charge what is below it and in no other such module's. Outside, a parameter has its shape and its type,
and no numbers: what reads it there reads nan, which the first records of `draws` are tried for.

Privacy: the gradients are those of the whole model, layer by layer: a rank has the whole activations of its records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sordino.distributed.collectives_on_demand import CollectiveRounds
from sordino.distributed.process_group import Ranks
from sordino.refusal import Refusal


@dataclass(frozen=True)
class _ParameterView:
    """In place of a view of a parameter, in what autograd keeps."""

    parameter: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class _KeptTensor:
    """Any other tensor, as it was: autograd compares versions only of what it keeps by itself."""

    tensor: Tensor
    version: int


class LayerByLayer:
    """One model during its passes; `held` are its parameters as the passes see them, in the order of the shards."""

    def __init__(self, ranks: Ranks, shards: Sequence[Tensor], held: Sequence[nn.Parameter]) -> None:
        self._ranks, self._held = ranks, held
        self.rounds = CollectiveRounds(ranks, shards)
        self._absent = [_placeholder_for(p) for p in shards]
        self._numbers = {id(p): number for number, p in enumerate(held)}
        self._users = [0] * len(held)
        self._number_at_address: dict[
            int, int
        ] = {}  # of those that are whole now: the place of their memory, and their number
        self._running = 0

    @contextmanager
    def gather_on_forward(self, charges: Iterable[tuple[nn.Module, Sequence[int]]]) -> Iterator[None]:
        """Lets modules of a sharded model gather the parameters in their charge layer by layer, each before it runs,
        within a `with` block.
        """
        global _current
        outer, _current = _current, self
        with ExitStack() as put_back:
            # Outside of its layer a parameter has a shape and no numbers.
            for p, absent in zip(self._held, self._absent, strict=True):
                p.data = absent
            for module, numbers in charges:
                self._register_hooks(module, numbers, put_back)
            # A rank that is about to meet the others first takes part in the rounds they still need.
            self._ranks.wait_before_collective = self.rounds.serve_until_idle
            try:
                yield
                self.rounds.serve_until_idle()
            except BaseException:
                self.rounds.stop()
                raise
            finally:
                _current, self._ranks.wait_before_collective = outer, None

    def _register_hooks(self, module: nn.Module, numbers: Sequence[int], put_back: ExitStack) -> None:
        """Registers hooks on a layer that gather its sharded parameters before its forward pass and drop them after it."""
        # A module may call itself again before it returns, so its contexts form a stack.
        stack: list[ExitStack] = []

        def before(module: nn.Module, args: Any) -> None:
            with torch._C.DisableTorchFunction():  # nothing of this is the model's own computation
                stack.append(self._begin_forward(numbers))

        def after(module: nn.Module, args: Any, output: Any) -> None:
            with torch._C.DisableTorchFunction():
                if stack:  # else gathering ended in an error
                    stack.pop().close()

        # The hooks go with the pass; the second one is called after errors too.
        put_back.callback(module.register_forward_pre_hook(before).remove)
        put_back.callback(module.register_forward_hook(after, always_call=True).remove)

    def _begin_forward(self, numbers: Sequence[int]) -> ExitStack:
        """Begins a layer's forward pass: gathers its sharded parameters and makes autograd keep numbers in their place."""
        # Autograd would keep gathered weights alive until the backward pass; it keeps their number instead.
        running = ExitStack()
        running.enter_context(self._gathered_parameters(numbers))
        if not self._running:
            running.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack))
        self._running += 1
        running.callback(self._end_forward)
        return running

    def _end_forward(self) -> None:
        self._running -= 1

    @contextmanager
    def _gathered_parameters(self, numbers: Sequence[int]) -> Iterator[None]:
        """Gathers the sharded parameters of a layer within a `with` block; one that is in use already is counted once
        more.
        """
        taken = []
        try:
            # Parameters that several layers share are gathered by the first and dropped by the last of them.
            for number in numbers:
                p = self._held[number]
                if not self._users[number]:
                    p.data = self.rounds.gather_rows(number)
                    self._number_at_address[_address_of(p)] = number
                self._users[number] += 1
                taken.append(number)
            yield
        # After an error only those that were gathered are given back.
        finally:
            for number in taken:
                self._users[number] -= 1
                if not self._users[number]:
                    p = self._held[number]
                    self._number_at_address.pop(_address_of(p), None)
                    p.data = self._absent[number]

    def _pack(self, tensor: Tensor) -> _ParameterView | _KeptTensor:
        with torch._C.DisableTorchFunction():
            return self._pack_tensor(tensor)

    def _unpack(self, kept: _ParameterView | _KeptTensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            return self._unpack_tensor(kept)

    def _pack_tensor(self, tensor: Tensor) -> _ParameterView | _KeptTensor:
        """Returns what autograd keeps of a tensor that a layer saved for its backward pass: for a gathered parameter
        only its number and view.
        """
        number = self._number_at_address.get(_address_of(tensor)) if tensor.numel() else None
        if number is None:
            return _KeptTensor(tensor.detach(), tensor._version)
        return _ParameterView(number, tensor.shape, tensor.stride(), int(tensor.storage_offset()))

    def _unpack_tensor(self, kept: _ParameterView | _KeptTensor) -> Tensor:
        """Returns a tensor that a layer saved for its backward pass: the tensor itself, or a view of the parameter,
        which is gathered again.
        """
        # A saved tensor must still be what the layer used.
        if isinstance(kept, _KeptTensor):
            if kept.tensor._version != kept.version:
                raise Refusal(
                    "a tensor was changed in place after a layer had used it.\n"
                    "Gradients need the value that the layer computed with.\n"
                    "Use the out-of-place operation (x = x + y, not x += y)."
                )
            return kept.tensor
        held = self._held[kept.parameter]
        gathered = held.detach() if self._users[kept.parameter] else self.rounds.gather_rows(kept.parameter)
        return gathered.as_strided(kept.size, kept.stride, kept.offset)

    def shard_of(self, p: Tensor) -> Tensor:
        """Returns what a parameter is gathered from; itself, if it is not divided."""
        number = self._numbers.get(id(p))
        return p if number is None else self.rounds.shards[number]

    def keep_gathered(self, parameters: Iterable[Tensor]) -> Any:
        """Returns a context in which these parameters are gathered, and stay so."""
        return self._gathered_parameters([self._numbers[id(p)] for p in parameters if id(p) in self._numbers])


_current: LayerByLayer | None = None


@contextmanager
def keep_gathered(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Keeps the parameters of a model that is gathered layer by layer readable within a `with` block, whichever layer
    runs.

    There is nothing to do unless parameters come and go layer by layer.
    """
    if _current is None:
        yield
        return
    with _current.keep_gathered(parameters):
        yield


def tensor_with_values(p: Tensor) -> Tensor:
    """Returns where the numbers of a parameter are now: itself, or the rows that ranks have of it."""
    return p if _current is None else _current.shard_of(p)


def wait_for_all_ranks() -> None:
    """Waits until every rank has come here; returns at once unless parameters come and go layer by layer."""
    if _current is not None:
        _current.rounds.serve_until_idle()


def is_layer_by_layer() -> bool:
    """Returns whether parameters are gathered only while their layer runs, now."""
    return _current is not None


def are_our_hooks(hooks: Any) -> bool:
    """Returns whether these hooks on what autograd keeps are those of this file."""
    return hooks is not None and isinstance(getattr(hooks[0], "__self__", None), LayerByLayer)


def is_absent(tensor: Tensor) -> bool:
    """Returns whether a parameter has no numbers now."""
    return tensor.numel() > 1 and not any(tensor.stride())


def _placeholder_for(p: Tensor) -> Tensor:
    """Returns a tensor with the shape and the type of a parameter, and one number for all of it."""
    none = torch.zeros((), dtype=p.dtype, device=p.device)
    return (none.fill_(math.nan) if p.is_floating_point() else none).expand(p.shape)


def _address_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
