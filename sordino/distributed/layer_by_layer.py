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

from sordino.distributed.collectives_on_demand import Rounds
from sordino.distributed.process_group import Ranks
from sordino.refusal import Refusal


@dataclass(frozen=True)
class _Number:
    """In place of a view of a parameter, in what autograd keeps."""

    parameter: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class _Kept:
    """Any other tensor, as it was: autograd compares versions only of what it keeps by itself."""

    tensor: Tensor
    version: int


class LayerByLayer:
    """One model during its passes; `held` are its parameters as the passes see them, in the order of the shards."""

    def __init__(self, ranks: Ranks, shards: Sequence[Tensor], held: Sequence[nn.Parameter]) -> None:
        self._ranks, self._held = ranks, held
        self.rounds = Rounds(ranks, shards)
        self._absent = [_absent(p) for p in shards]
        self._numbers = {id(p): number for number, p in enumerate(held)}
        self._users = [0] * len(held)
        self._where: dict[int, int] = {}  # of those that are whole now: the place of their memory, and their number
        self._running = 0

    @contextmanager
    def entered(self, charges: Iterable[tuple[nn.Module, Sequence[int]]]) -> Iterator[None]:
        """Lets modules gather what is in their charge before they run, while it lasts."""
        global _now
        outer, _now = _now, self
        with ExitStack() as put_back:
            # Outside of its layer a parameter has a shape and no numbers.
            for p, absent in zip(self._held, self._absent, strict=True):
                p.data = absent
            for module, numbers in charges:
                self._hook(module, numbers, put_back)
            # A rank that is about to meet the others first takes part in the rounds they still need.
            self._ranks.waits = self.rounds.wait
            try:
                yield
                self.rounds.wait()
            except BaseException:
                self.rounds.stop()
                raise
            finally:
                _now, self._ranks.waits = outer, None

    def _hook(self, module: nn.Module, numbers: Sequence[int], put_back: ExitStack) -> None:
        """Registers hooks that gather a module's parameters before its forward and drop them after it."""
        stack: list[ExitStack] = []

        def before(module: nn.Module, args: Any) -> None:
            with torch._C.DisableTorchFunction():  # nothing of this is the model's own computation
                stack.append(self._within(numbers))

        def after(module: nn.Module, args: Any, output: Any) -> None:
            with torch._C.DisableTorchFunction():
                if stack:  # else gathering ended in an error
                    stack.pop().close()

        put_back.callback(module.register_forward_pre_hook(before).remove)
        put_back.callback(module.register_forward_hook(after, always_call=True).remove)

    def _within(self, numbers: Sequence[int]) -> ExitStack:
        """Begins a module's forward: gathers its parameters and makes autograd keep numbers in their place."""
        running = ExitStack()
        running.enter_context(self._whole(numbers))
        if not self._running:
            running.enter_context(torch.autograd.graph.saved_tensors_hooks(self._packed, self._unpacked))
        self._running += 1
        running.callback(self._ran)
        return running

    def _ran(self) -> None:
        self._running -= 1

    @contextmanager
    def _whole(self, numbers: Sequence[int]) -> Iterator[None]:
        """Gathers these parameters for as long as it lasts; one that is in use already is counted once more."""
        taken = []
        try:
            for number in numbers:
                p = self._held[number]
                if not self._users[number]:
                    p.data = self.rounds.rows(number)
                    self._where[_place(p)] = number
                self._users[number] += 1
                taken.append(number)
            yield
        finally:
            for number in taken:
                self._users[number] -= 1
                if not self._users[number]:
                    p = self._held[number]
                    self._where.pop(_place(p), None)
                    p.data = self._absent[number]

    def _packed(self, tensor: Tensor) -> _Number | _Kept:
        with torch._C.DisableTorchFunction():
            return self._number_or_kept(tensor)

    def _unpacked(self, kept: _Number | _Kept) -> Tensor:
        with torch._C.DisableTorchFunction():
            return self._tensor(kept)

    def _number_or_kept(self, tensor: Tensor) -> _Number | _Kept:
        number = self._where.get(_place(tensor)) if tensor.numel() else None
        if number is None:
            return _Kept(tensor.detach(), tensor._version)
        return _Number(number, tensor.shape, tensor.stride(), int(tensor.storage_offset()))

    def _tensor(self, kept: _Number | _Kept) -> Tensor:
        """Returns what autograd kept: the tensor itself, or a view of the parameter, which is gathered again."""
        if isinstance(kept, _Kept):
            if kept.tensor._version != kept.version:
                raise Refusal(
                    "a tensor was changed in place after a layer had used it: need the value it computed with; use the "
                    "out-of-place operation (x = x + y, not x += y)"
                )
            return kept.tensor
        held = self._held[kept.parameter]
        whole = held.detach() if self._users[kept.parameter] else self.rounds.rows(kept.parameter)
        return whole.as_strided(kept.size, kept.stride, kept.offset)

    def shard_of(self, p: Tensor) -> Tensor:
        """Returns what a parameter is gathered from; itself, if it is not divided."""
        number = self._numbers.get(id(p))
        return p if number is None else self.rounds.shards[number]

    def at_hand(self, parameters: Iterable[Tensor]) -> Any:
        """Returns a context in which these parameters are gathered, and stay so."""
        return self._whole([self._numbers[id(p)] for p in parameters if id(p) in self._numbers])


_now: LayerByLayer | None = None


@contextmanager
def at_hand(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Makes these parameters readable while it lasts, whichever layer runs.

    There is nothing to do unless parameters come and go layer by layer.
    """
    if _now is None:
        yield
        return
    with _now.at_hand(parameters):
        yield


def rows_behind(p: Tensor) -> Tensor:
    """Returns where the numbers of a parameter are now: itself, or the rows that ranks have of it."""
    return p if _now is None else _now.shard_of(p)


def passed_by_all() -> None:
    """Waits until every rank has come here; returns at once unless parameters come and go layer by layer."""
    if _now is not None:
        _now.rounds.wait()


def coming_and_going() -> bool:
    """Returns whether parameters are gathered only while their layer runs, now."""
    return _now is not None


def reroutes(hooks: Any) -> bool:
    """Returns whether these hooks on what autograd keeps are those of this file."""
    return hooks is not None and isinstance(getattr(hooks[0], "__self__", None), LayerByLayer)


def is_absent(tensor: Tensor) -> bool:
    """Returns whether a parameter has no numbers now."""
    return tensor.numel() > 1 and not any(tensor.stride())


def _absent(p: Tensor) -> Tensor:
    """Returns a tensor with the shape and the type of a parameter, and one number for all of it."""
    none = torch.zeros((), dtype=p.dtype, device=p.device)
    return (none.fill_(math.nan) if p.is_floating_point() else none).expand(p.shape)


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
