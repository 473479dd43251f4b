"""Tripwire: notices parameters and gradients that were not made by a release.

Ways in which a training loop escapes its accounting, and how each is seen:
  - `loss.backward()` on the watched parameters: a post-accumulate-grad hook;
  - `.grad` written by hand: before every optimizer step the gradients must be those released, times one number;
  - parameters written by hand: looked at before every draw, step and claim (`parameter_watch`);
  - a step with a closure: the closure is wrapped, and the gradients are looked at again after it;
  - other parameters trained in the loop on what the lots or the model give away: a step of an optimizer that holds them,
    with gradients that were not released, between two draws.

A trainable head beside the model would get no gradient and never train: the first step of its optimizer is refused.

What is made of released values is no escape: inside `post_processing` parameters and gradients may be averaged, projected
or clipped. Inside `public` anything may be done with data that the user declares public.

Privacy: each escape makes the run's claim `NoGuarantee`; none is a warning.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from sordino.distributed.row_shard import is_shard, shard_like
from sordino.ledger import claims, released_gradients
from sordino.ledger.lineage import Lineage, find_unnamed_past
from sordino.ledger.parameter_watch import Buffers, ParameterWatch
from sordino.refusal import Refusal
from sordino.release.vectors import divide_

if TYPE_CHECKING:
    from sordino.ledger.ledger import Ledger

_STRAY = (
    "loss.backward() reached the model's parameters outside private.backward; wrap steps on public data in "
    "`with private.public(...)`"
)
_GRADIENT = (
    "the gradient of parameter {!r} was written or changed by hand between private.backward and optimizer.step; if only "
    "released values went into it, do it inside `with private.post_processing(...)`"
)
_PARAMETER = (
    "{} was changed other than by an optimizer step on released gradients; wrap averaging, projections and "
    "the like in `with private.post_processing(...)`, training on public data in `with private.public(...)`"
)
_MOVED = (
    "parameter {!r} was moved from {} to {} in the middle of the run; move the model before the first lot is drawn, or "
    "inside `with private.post_processing(...)`"
)
_ANOTHER = (
    "an optimizer that holds none of the model's parameters made a step inside the loop: what it trains is not covered and "
    "may have seen the lots; give it to Private too, or wrap it in `with private.public(...)`"
)
_BESIDE = (
    "the optimizer made a step inside the loop on a parameter that is not of the model given to Private, with a gradient "
    "that was not released; make it part of that model, or wrap steps on public data in `with private.public(...)`"
)
_NEVER = (
    "the optimizer holds a trainable parameter of shape {} that is not of the model given to Private: it gets no gradient "
    "and would never train; make one module of both and give that to Private, or take it out of the optimizer"
)

_alive: weakref.WeakSet[Tripwire] = weakref.WeakSet()


class Tripwire:
    """Watches the parameters of one model."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._void, self._lineage = ledger, ledger.void, Lineage(ledger)
        self._named: Mapping[str, nn.Parameter] = {}
        self._buffers: Buffers = ()
        self._ids: dict[int, str] = {}  # names by the parameter's identity
        self._hooked: dict[int, weakref.ref[nn.Parameter]] = {}
        self._values = ParameterWatch()
        self._trusted = False  # the parameters' values are known to be right
        self._excused = False  # inside `public` or `post_processing`
        self._public = False
        self.public_before = False  # steps on public data were declared
        self.is_looping = False  # a lot is drawn and the next one is not
        self.steps = 0  # optimizer steps on released gradients
        self.release_was_used = True  # what was last released fed a step, or is in the user's hands
        _alive.add(self)
        # The hooks hold this object weakly and are removed with it, so that a run can be collected.
        me = weakref.ref(self)

        def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
            wire = me()
            return None if wire is None else wire._before_step(optimizer, args, kwargs)

        def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            wire = me()
            if wire is not None:
                wire._after_step(optimizer)

        handles = register_optimizer_step_pre_hook(before_step), register_optimizer_step_post_hook(after_step)
        for handle in handles:
            weakref.finalize(self, handle.remove)

    def watch(self, parameters: Mapping[str, nn.Parameter], buffers: Buffers = ()) -> None:
        """Watches these parameters and buffers.

        It is called for every lot, because parameters can be thawed and modules exchanged at any time.
        """
        self._buffers = buffers
        if parameters is self._named:  # another mapping is made when one is frozen or thawed
            return
        # A parameter object that was replaced by another one was changed by hand.
        new = {id(p): name for name, p in parameters.items()}
        if self._trusted and not new.keys() >= self._ids.keys():  # one replaced by another is a change by hand
            missing = next(name for key, name in self._ids.items() if key not in new)
            if missing in parameters and not self._excused:
                before, now = self._named[missing].device, parameters[missing].device
                is_moved = before != now
                self._void(
                    _MOVED.format(missing, before, now) if is_moved else _PARAMETER.format(f"parameter {missing!r}")
                )
        self._named, self._ids, me = parameters, new, weakref.ref(self)
        if self._trusted:
            self._values.replace_parameters(parameters)
        # The hook notices a backward pass outside private.backward; it holds this object weakly.
        for p in parameters.values():
            if p.requires_grad and (id(p) not in self._hooked or self._hooked[id(p)]() is not p):

                def note_stray_backward(_: Tensor) -> None:
                    wire = me()
                    if wire is not None and not wire._public:
                        wire._void(_STRAY)

                p.register_post_accumulate_grad_hook(note_stray_backward)
                self._hooked[id(p)] = weakref.ref(p)

    def begin(self) -> None:
        """Trusts the parameters as they are before the first draw, and names what is known of their past."""
        parameters = list(self._named.values())
        self._ledger.trains(parameters)
        past = find_unnamed_past(parameters, self._ledger)
        if past == claims.COPIED or (past is not None and not self.public_before):
            self._ledger.disclose(past)
        self._lineage.begin(parameters)
        self.trust()

    def __del__(self) -> None:
        """Leaves behind how the parameters stood, so that a later claim sees whether somebody wrote to them."""
        if getattr(self, "_trusted", False) and not sys.is_finalizing():
            watched = {key for wire in list(_alive) if wire is not self and wire._trusted for key in wire._ids}
            left = self._values.left_behind().without(watched)  # those that another run watches are its own to look at
            if left is not None:
                self._ledger.watchers.add_left_behind(left)

    def trust(self) -> None:
        """Accepts the parameters as they are: before the first draw, and after a state was loaded."""
        self._values.accept_all(self._named, self._buffers)
        self._trusted = True

    def accept_restored(self) -> None:
        """Accepts parameters that the library itself moved and put back to the last bit."""
        if self._trusted:
            self._values.accept_restored(list(self._named.values()))

    def check_parameters(self, *, numbers: bool = True) -> None:
        """Voids the claim if a parameter changed other than by a step on released gradients."""
        if not self._trusted or self._excused:
            return
        name = self._values.find_changed(self._buffers, numbers=numbers)
        if name is not None:
            moved = self._values.find_moved()
            self._void(_PARAMETER.format(name) if moved is None else _MOVED.format(*moved))
            self.trust()  # said once

    def write_gradients(self, released: dict[str, Tensor], divide_by: float = 1.0) -> None:
        """Sets released gradients, by the parameters' names, and remembers what they looked like.

        They are divided by a public number, such as the expected batch, before that.
        """
        divide_(released, divide_by)
        written = []
        for name, p in self._named.items():
            grad = released.get(name)
            if grad is not None:
                local_grad = shard_like(p, grad) if is_shard(p) and not is_shard(grad) else grad
                written.append((p, local_grad if local_grad.dtype == p.dtype else local_grad.to(p.dtype)))
        released_gradients.write_gradients(written, self)

    def drop_gradients(self) -> None:
        """Drops every gradient that this run has written."""
        released_gradients.drop_gradients(self._named.values(), self)

    @contextmanager
    def public(self) -> Iterator[None]:
        """Allows, while it lasts, gradients of data that the user declares public."""
        before, self._public, self.public_before = self._public, True, True
        try:
            with self.post_processing():
                yield
        finally:
            self._public = before

    @contextmanager
    def post_processing(self) -> Iterator[None]:
        """Allows, while it lasts, changes of parameters and gradients by what was released."""
        self.check_parameters()
        before, self._excused, self.release_was_used = self._excused, True, True
        try:
            yield
        finally:
            self._excused = before
            for p in self._named.values():
                if p.grad is not None and not before:
                    released_gradients.remember_gradient(p, self)
            if self._trusted:
                self._values.accept_all(self._named, self._buffers)

    def _watched_parameters_of(self, optimizer: Optimizer) -> list[nn.Parameter]:
        return [p for group in optimizer.param_groups for p in group["params"] if id(p) in self._ids]

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Checks parameters and gradients before an optimizer step, and wraps its closure."""
        if self._excused:
            return None
        mine = self._watched_parameters_of(optimizer)
        if not mine:
            if self.is_looping and not _is_watched_by_a_run(optimizer) and _has_own_gradients(optimizer):
                self._void(_ANOTHER)
            return None
        self.check_parameters()
        self._check_gradients(mine)
        self._check_other_parameters(optimizer, mine)
        return self._wrap_closure(mine, args, kwargs)

    def _check_gradients(self, mine: list[nn.Parameter]) -> None:
        p = released_gradients.find_changed_gradient(mine)
        if p is not None:
            self._void(_GRADIENT.format(self._ids[id(p)]))

    def _check_other_parameters(self, optimizer: Optimizer, mine: list[nn.Parameter]) -> None:
        """Checks what the optimizer trains besides the model, in a step on released gradients."""
        if len(mine) == sum(len(group["params"]) for group in optimizer.param_groups) or not self.is_looping:
            return
        beside = [
            p
            for group in optimizer.param_groups
            for p in group["params"]
            if p.requires_grad and not _is_known_parameter(p)
        ]
        if any(p.grad is not None and not released_gradients.is_released_copy(p.grad) for p in beside):
            self._void(_BESIDE)
        idle = next((p for p in beside if p.grad is None), None)
        if idle is not None and any(p.grad is not None for p in mine):
            raise Refusal(_NEVER.format(tuple(idle.shape)))

    def _wrap_closure(self, mine: list[nn.Parameter], args: Any, kwargs: Any) -> Any:
        """Returns the step's arguments with its closure wrapped, so that the gradients it computes are checked too."""
        closure = kwargs.get("closure") if "closure" in kwargs else args[1] if len(args) > 1 else None
        if not callable(closure):
            return None

        def checked_closure() -> Any:
            result = closure()
            self._check_gradients(mine)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": checked_closure}
        return (args[0], checked_closure, *args[2:]), kwargs

    def _after_step(self, optimizer: Optimizer) -> None:
        """Accepts the parameters that an optimizer step has just changed."""
        mine = self._watched_parameters_of(optimizer)
        if mine:
            self.steps += 1
            self.release_was_used = self.release_was_used or any(p.grad is not None for p in mine)
            self._values.accept_changed(mine)
            self._lineage.remember(mine)


def _is_watched_by_a_run(optimizer: Optimizer) -> bool:
    """Returns whether some run of the process watches what this optimizer trains."""
    return any(wire._watched_parameters_of(optimizer) for wire in _alive)


def _is_known_parameter(p: nn.Parameter) -> bool:
    """Returns whether this is or was a parameter of a model that some run of the process watches."""
    return any(id(p) in wire._ids or (id(p) in wire._hooked and wire._hooked[id(p)]() is p) for wire in _alive)


def _has_own_gradients(optimizer: Optimizer) -> bool:
    """Returns whether the optimizer has gradients that are no copies of released ones."""
    grads = (p.grad for group in optimizer.param_groups for p in group["params"])
    return any(grad is not None and not released_gradients.is_released_copy(grad) for grad in grads)


@contextmanager
def post_processing(parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Allows library code, such as an average, to make parameters of released ones, in every run that watches them."""
    ids = {id(p) for p in parameters.values()}
    wires = [wire for wire in _alive if ids & wire._ids.keys()]
    with _post_processing_of_all(wires):
        yield


@contextmanager
def _post_processing_of_all(wires: list[Tripwire]) -> Iterator[None]:
    """Enters `post_processing` of all these runs, one inside the other."""
    if not wires:
        yield
        return
    with wires[0].post_processing(), _post_processing_of_all(wires[1:]):
        yield
