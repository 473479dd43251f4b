"""Notices gradients that did not come through the door.

Three ways in which a training loop escapes its accounting are seen:
  - `loss.backward()` on the watched parameters, by a post-accumulate-grad hook;
  - `.grad` replaced or changed in place between `private.backward` and `optimizer.step`, by identity and version counter,
    looked at in a hook before every optimizer step;
  - an optimizer step with a closure, which computes its own gradients: refused.

Privacy: each makes the run's claim `NoGuarantee`; none is a warning. A write through `.data` cannot be seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook


@dataclass
class _Watched:
    """A parameter, and the gradient last written to it as it looked then."""

    p: nn.Parameter
    name: str
    hooked: bool = False
    grad: Tensor | None = None
    version: int = 0


class Tripwire:
    """Watches the parameters of one model."""

    def __init__(self, void: Callable[[str], None]) -> None:
        self._void = void
        self._watched: dict[int, _Watched] = {}  # by the parameter's identity
        self._latest: Mapping[str, nn.Parameter] | None = None
        self._public = False
        me = weakref.ref(self)

        def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            wire = me()
            if wire is not None:
                wire._before_step(optimizer, args, kwargs)

        handle = register_optimizer_step_pre_hook(before_step)
        weakref.finalize(self, handle.remove)

    def watch(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Watch these too; parameters can be thawed at any time, so this is called for every lot."""
        if parameters is self._latest:  # `Names` makes another when one is frozen or thawed
            return
        self._latest, me = parameters, weakref.ref(self)
        for name, p in parameters.items():
            watched = self._watched.get(id(p))
            if watched is None:
                watched = self._watched[id(p)] = _Watched(p, name)
            if p.requires_grad and not watched.hooked:

                def stray(_: Tensor) -> None:
                    wire = me()
                    if wire is not None:
                        wire._stray()

                p.register_post_accumulate_grad_hook(stray)
                watched.hooked = True

    def write(self, p: nn.Parameter, grad: Tensor) -> None:
        """Set a released gradient and remember what it looked like."""
        # The tensors of a release may be views of one vector and share its version counter; `data` of them does not.
        own = grad if grad._base is None else grad.data
        p.grad = own
        watched = self._watched[id(p)]
        watched.grad, watched.version = own, own._version

    def forget(self) -> None:
        """Drop every gradient written so far."""
        for watched in self._watched.values():
            if watched.grad is not None:
                if watched.p.grad is watched.grad:
                    watched.p.grad = None
                watched.grad = None

    @contextmanager
    def public(self) -> Iterator[None]:
        """Gradients computed and applied inside are of data the user declares public."""
        before, self._public = self._public, True
        try:
            yield
        finally:
            self._public = before

    def _stray(self) -> None:
        if not self._public:
            self._void(
                "loss.backward() reached the model's parameters outside private.backward; "
                "wrap steps on public data in `with private.public(...)`"
            )

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._public:
            return
        known = self._watched
        watched = [known[id(p)] for group in optimizer.param_groups for p in group["params"] if id(p) in known]
        if not watched:
            return
        if (len(args) > 1 or kwargs) and any(callable(value) for value in (*args[1:], *kwargs.values())):
            raise TypeError(
                "optimizer.step(closure): a closure computes gradients of its own; "
                "call private.backward(lot), then optimizer.step() without one"
            )
        for found in watched:
            grad = found.p.grad
            if grad is not None and (grad is not found.grad or grad._version != found.version):
                self._void(
                    f"the gradient of parameter {found.name!r} was written or changed by hand between private.backward "
                    "and optimizer.step"
                )
                return  # one name is enough
