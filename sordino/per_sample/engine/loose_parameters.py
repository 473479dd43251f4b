"""Parameters that no layer with a rule owns, and uses outside their layer: `self.pos` added to every sample,
`self.cls.expand(…)`, `F.linear(x, self.emb.weight)`, a table of relative positions, a penalty in the loss; and layers
without a rule, whose own code is followed operation by operation.

While a forward pass runs, a tensor computed from parameters alone is *shared* by all samples, and autograd would add up
their gradients where it meets them. There, and only there, the use is recorded (`meetings.py`). Whether the result of an
operation is still shared or has samples is not guessed: it is what the comparison of two runs on the first batch said of
this operation (`Meeting`). In those runs every result of a meeting may turn out to be either, so all that follows from it
is written down (`Event`), and `first_batch/meetings.py` reads the two lists against each other.

What cannot be recorded is left to autograd, which leaves the parameter in the graph, where `graph.recorded_only` finds
it: nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sordino.per_sample.engine.sample_layout import ODD
from sordino.per_sample.engine.shared_tensor_uses import GivenArgument, Shared, meet
from sordino.per_sample.engine.tape import Tape

_ASKING = frozenset(
    (torch.autograd.grad, Tensor.backward, Tensor.register_hook, Tensor.size, Tensor.dim, Tensor.requires_grad_)
)
_REORDERING = frozenset(
    (
        *("sort", "argsort", "nonzero", "unique", "randperm", "roll", "flip", "bincount", "histc"),
        *("index_select", "masked_select", "index_add", "index_add_", "index_copy_", "index_put_"),
        *("scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "_grouped_mm", "grouped_mm"),
    )
)
"""After these a row may be another sample's than its place says."""


PARAMETER = 0


@dataclass(frozen=True)
class ParameterUseEvent:
    """One operation on what is, or may be, shared, in a pass for shapes."""

    name: str
    leaf: int  # position of the layer whose own code this is; -1: none
    entry: int  # which call of it
    takes: tuple[
        tuple[int | None, torch.Size], ...
    ]  # tensors: their numbers if they are or may be shared; their shapes
    makes: tuple[tuple[int, torch.Size], ...]
    reorders: bool  # rows of the first tensor may come in another order


class LooseParameters(TorchFunctionMode):
    """Watches the operations of one forward pass."""

    def __init__(self, tape: Tape) -> None:
        """For one tape."""
        super().__init__()
        self.tape = tape
        self.events: list[ParameterUseEvent] = []  # SHAPES
        self.reordered: set[int] = set()  # SHAPES: layers whose own code may put rows in another order
        self._shared: dict[int, Shared] = {}  # by identity; they are held, so that it is not given out again
        self._numbers: dict[int, int] = {}  # SHAPES: of shared tensors
        self._made = 0
        self._leaf = -1
        self._entry = self._entries = 0
        self._met = 0  # operations on shared tensors so far, within the layer
        self._active = False
        self._last = _count(tape)

    @contextmanager
    def following(self, leaf: int) -> Iterator[None]:
        """Inside, the code that runs is that of one layer without a rule."""
        outer = self._leaf, self._entry, self._met
        self._entries += 1
        self._leaf, self._entry, self._met = leaf, self._entries, 0
        active, self._active = self._active, True
        try:
            if active:
                yield
            else:
                with self:
                    yield
        finally:
            self._leaf, self._entry, self._met = outer
            self._active = active

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """Inside, all that runs is followed."""
        self._active = True
        try:
            with self:
                yield
        finally:
            self._active = False

    def find(self, leaf: Any) -> Shared | None:
        """The shared tensor that this is."""
        known = self._shared.get(id(leaf))
        if known is None and id(leaf) in self.tape.trainable and isinstance(leaf, nn.Parameter):
            known = self._shared[id(leaf)] = Shared(leaf, (leaf,))
        return known

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let operations on no shared tensor pass."""
        kwargs = kwargs or {}
        tape = self.tape
        if func in _ASKING:  # a backward pass may run layers again, and torch lays the mode aside while it does
            return self._aside(func, args, kwargs)
        if self._leaf < 0 and self._met >= self._last:  # all that the first batch met is behind
            return func(*args, **kwargs)
        if tape.index != -1 or not torch.is_grad_enabled():  # inside a rule, or nothing to record
            return func(*args, **kwargs)
        tensors = _tensors((args, kwargs))
        found = [s for s in map(self.find, tensors) if s is not None]
        if not found:
            if tape.shapes_only and self._leaf >= 0 and _reorders(func, args):
                self.reordered.add(self._leaf)
            return func(*args, **kwargs)
        if tape.shapes_only:
            out = func(*args, **kwargs)
            self._write_down(func, args, tensors, found, out)
            return out
        others = [t for t in tensors if self.find(t) is None]
        self._met += 1
        meeting = tape.meeting((self._leaf, "met", self._met - 1), _name(func))
        if not any(layout is not None for layout in meeting.made):
            return self._derive(func(*args, **kwargs), found, args)
        layouts = {id(t): layout for t, layout in zip(others, meeting.given, strict=True)}
        for t in others:
            where = layouts[id(t)]
            if where is not None and where is not ODD:
                tape.check_length(t, where)
        return meet(tape, GivenArgument(func, args, kwargs, self.find, layouts), meeting.made)

    def _aside(self, func: Any, args: Any, kwargs: Any) -> Any:
        active, self._active = self._active, False
        try:
            return func(*args, **kwargs)
        finally:
            self._active = active

    def _derive(self, out: Any, found: list[Shared], args: Any) -> Any:
        of = tuple(dict.fromkeys(p for s in found for p in s.of))
        for leaf in _tensors(args[0] if out is None else out):  # an assignment changes what it assigns to
            if leaf.requires_grad and id(leaf) not in self.tape.trainable:
                self._shared[id(leaf)] = Shared(leaf, of)
        return out

    def _write_down(self, func: Any, args: Any, tensors: list[Tensor], found: list[Shared], out: Any) -> None:
        takes = tuple((None if self.find(t) is None else self._number(t), t.shape) for t in tensors)
        self._derive(out, found, args)
        makes = tuple((self._number(t), t.shape) for t in _tensors(out))
        if func is Tensor.__setitem__:
            makes = ((self._number(args[0]), args[0][args[1]].shape),)
        self.events.append(ParameterUseEvent(_name(func), self._leaf, self._entry, takes, makes, _reorders(func, args)))

    def _number(self, tensor: Tensor) -> int:
        """Of a shared tensor: all parameters have the same."""
        if id(tensor) in self.tape.trainable:
            return PARAMETER
        self._made += 1
        return self._numbers.setdefault(id(tensor), self._made) if id(tensor) in self._shared else self._made


def _count(tape: Tape) -> float:
    """Operations on shared tensors outside layers that the first batch had; endless while they are looked for."""
    if tape.shapes_only:
        return float("inf")
    return sum(isinstance(key, tuple) and key[:2] == (-1, "met") for key in tape.layouts)


def _tensors(tree: Any) -> list[Tensor]:
    """Every tensor of arguments, in order."""
    found: list[Tensor] = []
    stack = [tree]
    while stack:
        leaf = stack.pop()
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif isinstance(leaf, list | tuple):
            stack.extend(reversed(leaf))
        elif isinstance(leaf, dict):
            stack.extend(reversed(list(leaf.values())))
    return found


def _name(func: Any) -> str:
    return getattr(func, "__name__", type(func).__name__)


def _reorders(func: Any, args: Any) -> bool:
    name = _name(func)
    if name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(i, Tensor) for i in index)
    return name in _REORDERING or (name == "where" and len(args) == 1)
