"""Follows uses of parameters that no layer rule covers, operation by operation.

Such are `self.pos` added to every sample, `self.cls.expand(…)`, `F.linear(x, self.emb.weight)`, a table of relative
positions, a penalty in the loss; and layers without a rule, whose own code is followed operation by operation.

While a forward pass runs, a tensor computed from parameters alone is *shared* by all samples, and autograd would add up
their gradients where it meets a batch. There, and only there, the use is recorded (`shared_tensor_uses.py`). Whether
the result of an operation is still shared or has samples is not guessed: it is what the comparison of two runs on the
first batch said of this operation (`SharedOperation`). In those runs every result may turn out to be either, so all that
follows from it is written down (`ParameterUseEvent`), and `first_batch/find_layouts.py` compares the two lists.

What cannot be recorded is left to autograd, which leaves the parameter in the graph, where
`pruned_backward.require_recorded_uses` finds it: nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sordino.per_sample.engine.shared_tensor_uses import FunctionCall, Shared, record_meeting
from sordino.per_sample.recording.sample_layout import OUTSIDE, Layout
from sordino.per_sample.recording.tape import Tape

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
"""Operations after which a row may belong to another sample than its place says."""


PARAMETER = 0


@dataclass(frozen=True)
class ParameterUseEvent:
    """One operation on what is, or may be, shared, as seen in a pass for shapes."""

    name: str
    leaf: int  # position of the layer whose own code this is; -1: none
    entry: int  # which call of it
    takes: tuple[
        tuple[int | None, torch.Size], ...
    ]  # tensors: their numbers if they are or may be shared; their shapes
    makes: tuple[tuple[int, torch.Size], ...]
    reorders: bool  # rows of the first tensor may come in another order


class LooseParameters(TorchFunctionMode):
    """Watches the operations of one forward pass and records those on shared tensors."""

    def __init__(self, tape: Tape) -> None:
        """Begins with nothing seen, for one tape."""
        super().__init__()
        self.tape = tape
        self.events: list[ParameterUseEvent] = []  # SHAPES
        self.reordered: set[int] = set()  # SHAPES: layers whose own code may put rows in another order
        self._shared: dict[int, Shared] = {}  # by identity; they are held, so that it is not given out again
        self._numbers: dict[int, int] = {}  # SHAPES: of shared tensors
        self._numbers_given = 0
        self._leaf = OUTSIDE
        self._entry = self._entries = 0
        self._operations_seen = 0  # operations on shared tensors so far, within the layer
        self._active = False
        self._operations_expected = _count_expected_operations(tape)

    @contextmanager
    def follow_layer(self, leaf: int) -> Iterator[None]:
        """Follows the loose parameters in the code that runs inside the context, as that of one layer without a rule."""
        # Remember the layer around this one, and count operations anew inside.
        outer = self._leaf, self._entry, self._operations_seen
        self._entries += 1
        self._leaf, self._entry, self._operations_seen = leaf, self._entries, 0
        active, self._active = self._active, True
        try:
            if active:
                yield
            else:
                with self:
                    yield
        finally:
            self._leaf, self._entry, self._operations_seen = outer
            self._active = active

    @contextmanager
    def follow_everything(self) -> Iterator[None]:
        """Follows the loose parameters in all code that runs inside the context."""
        self._active = True
        try:
            with self:
                yield
        finally:
            self._active = False

    def find_shared(self, leaf: Any) -> Shared | None:
        """Returns the shared tensor that an object is, or None; a loose trainable parameter becomes one on its first
        use.
        """
        known = self._shared.get(id(leaf))
        if known is None and id(leaf) in self.tape.trainable and isinstance(leaf, nn.Parameter):
            known = self._shared[id(leaf)] = Shared(leaf, (leaf,))
        return known

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one torch operation, and records it if it takes a shared tensor."""
        kwargs = kwargs or {}
        tape = self.tape
        if func in _ASKING:  # a backward pass may run layers again, and torch lays the mode aside while it does
            return self._run_unwatched(func, args, kwargs)
        # Outside layers, nothing has to be looked at once all operations of the first batch have come.
        if (
            self._leaf < 0 and self._operations_seen >= self._operations_expected
        ):  # all that the first batch met is behind
            return func(*args, **kwargs)
        if tape.index != OUTSIDE or not torch.is_grad_enabled():  # inside a rule, or nothing to record
            return func(*args, **kwargs)
        # An operation on no shared tensor passes; a layer in which rows may change their order is noted.
        tensors = _flatten_tensors((args, kwargs))
        found = [s for s in map(self.find_shared, tensors) if s is not None]
        if not found:
            if tape.shapes_only and self._leaf >= 0 and _may_reorder_rows(func, args):
                self.reordered.add(self._leaf)
            return func(*args, **kwargs)
        # In a pass for shapes the operation is written down and nothing is recorded.
        if tape.shapes_only:
            out = func(*args, **kwargs)
            self._log_event(func, args, tensors, found, out)
            return out
        # In a real pass the first batch says which tensors have samples. If no result has any, the result is shared
        # too.
        others = [t for t in tensors if self.find_shared(t) is None]
        self._operations_seen += 1
        meeting = tape.shared_operation((self._leaf, self._operations_seen - 1), _function_name(func))
        if not any(layout is not None for layout in meeting.made):
            return self._mark_results_shared(func(*args, **kwargs), found, args)
        # Otherwise this is where a shared tensor meets a batch, and the use is recorded.
        layouts = {id(t): layout for t, layout in zip(others, meeting.given, strict=True)}
        for t in others:
            where = layouts[id(t)]
            if isinstance(where, Layout):
                tape.check_length(t, where)
        return record_meeting(tape, FunctionCall(func, args, kwargs, self.find_shared, layouts), meeting.made)

    def _run_unwatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs a function without following the loose parameters in it: the mode is not active."""
        active, self._active = self._active, False
        try:
            return func(*args, **kwargs)
        finally:
            self._active = active

    def _mark_results_shared(self, out: Any, shared_inputs: list[Shared], args: Any) -> Any:
        """Notes the results of an operation on loose parameters as shared, with the parameters they were computed from."""
        parameters = tuple(dict.fromkeys(p for s in shared_inputs for p in s.parameters))
        for leaf in _flatten_tensors(args[0] if out is None else out):  # an assignment changes what it assigns to
            if leaf.requires_grad and id(leaf) not in self.tape.trainable:
                self._shared[id(leaf)] = Shared(leaf, parameters)
        return out

    def _log_event(self, func: Any, args: Any, tensors: list[Tensor], shared_inputs: list[Shared], out: Any) -> None:
        """Appends an operation on loose parameters to the events of a pass for shapes, with the numbers and shapes of
        its tensors.
        """
        takes = tuple((None if self.find_shared(t) is None else self._number_tensor(t), t.shape) for t in tensors)
        self._mark_results_shared(out, shared_inputs, args)
        # An assignment returns nothing; what it makes is the part of the tensor that it wrote to.
        makes = tuple((self._number_tensor(t), t.shape) for t in _flatten_tensors(out))
        if func is Tensor.__setitem__:
            makes = ((self._number_tensor(args[0]), args[0][args[1]].shape),)
        self.events.append(
            ParameterUseEvent(
                _function_name(func), self._leaf, self._entry, takes, makes, _may_reorder_rows(func, args)
            )
        )

    def _number_tensor(self, tensor: Tensor) -> int:
        """Returns the number of a shared tensor in this run over loose parameters; all parameters have the same one."""
        if id(tensor) in self.tape.trainable:
            return PARAMETER
        self._numbers_given += 1
        return (
            self._numbers.setdefault(id(tensor), self._numbers_given)
            if id(tensor) in self._shared
            else self._numbers_given
        )


def _count_expected_operations(tape: Tape) -> float:
    """Returns how many operations on loose parameters and other shared tensors the first batch had outside layers;
    infinity in a shapes pass.
    """
    if tape.shapes_only:
        return float("inf")
    return tape.layouts.count_operations_outside_layers()


def _flatten_tensors(tree: Any) -> list[Tensor]:
    """Returns every tensor of the nested arguments of an operation that loose parameters may be in, in order."""
    tensors: list[Tensor] = []
    stack = [tree]
    # A stack instead of recursion: arguments may be nested, and this runs for every operation.
    while stack:
        leaf = stack.pop()
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
        elif isinstance(leaf, list | tuple):
            stack.extend(reversed(leaf))
        elif isinstance(leaf, dict):
            stack.extend(reversed(list(leaf.values())))
    return tensors


def _function_name(func: Any) -> str:
    return getattr(func, "__name__", type(func).__name__)


def _may_reorder_rows(func: Any, args: Any) -> bool:
    """Returns whether an operation on loose parameters may put rows in another order."""
    name = _function_name(func)
    if name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(i, Tensor) for i in index)
    return name in _REORDERING or (name == "where" and len(args) == 1)
