"""Tripwire: notices parameters and gradients that were not made by a release.

Ways in which a training loop escapes its accounting, and how each is seen:
  - `loss.backward()` on the watched parameters: a post-accumulate-grad hook;
  - `.grad` written by hand: before every optimizer step the gradients must be those released, times one number;
  - parameters written by hand: looked at before every draw, step and claim (`ParameterWatch`);
  - a step with a closure: the closure is wrapped, and the gradients are looked at again after it;
  - other parameters trained in the loop on what the lots or the model give away: a step of an optimizer that holds them,
    with gradients that were not released, between two draws.

A trainable head beside the model would get no gradient and never train: the first step of its optimizer is refused.

What is made of released values is no escape: inside `post_processing` parameters and gradients may be averaged, projected
or clipped. Inside `public` anything may be done with data that the user declares public.

How parameters are watched: a write through torch moves a tensor's version; one through `.data` moves its numbers only.
So versions and addresses are looked at every time, and some numbers of every tensor, at places that are a secret of the
process, are compared as well. This is asked several times at every lot: lists are made by `map`, and numbers read as
bytes, because torch's own calls cost more than what they would do here. On a device the numbers are copied there at the
same moments, one launch each time, and the host compares all of them when it next waits: before the next lot is drawn, or
for a claim (`NumbersToCompare`).

How released gradients are recognised: the tensors are remembered as they were written, and every run of the process
knows them. A released gradient may be multiplied by one number before the optimizer sees it: `clip_grad_norm_` and an
unscaling do so, and what is made of a release is post-processing. A gradient that was changed in any other way is not
the released one any more. Two numbers of each tensor, at places drawn at random, tell the two apart.

How the lineage of weights is recognised: stage two often begins from a copy, by `load_state_dict`, `deepcopy` or a
checkpoint on disk. The copy has other parameter objects, so `history` does not know them, yet its values tell about every
record that stage one was trained on. After every optimizer step of a run a few numbers of its largest tensors are
remembered as a digest. A run that begins at weights with one of these digests begins where another one has been, and its
claim says so. Weights that were written to many times before a run, as training without privacy does, are named too.

Privacy: each escape makes the run's claim `NoGuarantee`; none is a warning. A digest of released parameters is public, as
they are. Weights that come from another process, and training without privacy of a few steps, cannot be seen; every claim
says that the initial weights are taken to be public.
"""

from __future__ import annotations

import math
import random
import secrets
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from sordino.distributed.row_shard import is_shard, local_rows, shard_like, version_of
from sordino.kernels.abi import read_bytes, read_two_floats
from sordino.ledger import claims
from sordino.ledger.watchers import LeftBehind
from sordino.refusal import Refusal
from sordino.release.vectors import divide_

if TYPE_CHECKING:
    from sordino.ledger.ledger import Ledger

_coins = random.Random(secrets.randbits(128))
"""A generator that only this file has, seeded by the operating system: nobody can foresee it, and it is quick."""

_STRAY = (
    "loss.backward() reached the model's parameters outside private.backward.\n"
    "Its gradients are of bare records, without clipping and noise.\n"
    "Call private.backward(lot) in place of it, in a loop over private.draws(...).\n"
    "Wrap steps on public data in `with private.public(...)`, training on released values alone, as of a GAN's "
    "generator, in `with private.post_processing(...)`."
)
_GRADIENT = (
    "the gradient of parameter {!r} was written or changed by hand between private.backward and optimizer.step.\n"
    "What the optimizer steps on is then not what was released.\n"
    "If only released values went into it, do it inside `with private.post_processing(...)`."
)
_PARAMETER = (
    "{} was changed other than by an optimizer step on released gradients.\n"
    "It may hold something of the records that no noise covers.\n"
    "Wrap averaging, projections and the like in `with private.post_processing(...)`, training on public data in "
    "`with private.public(...)`."
)
_MOVED = (
    "parameter {!r} was moved from {} to {} in the middle of the run.\n"
    "Its values can no longer be compared with those that the last step left.\n"
    "Move the model before the first lot is drawn, or inside `with private.post_processing(...)`."
)
_ANOTHER = (
    "an optimizer that holds none of the model's parameters made a step inside the loop.\n"
    "What it trains is not covered and may have seen the lots.\n"
    "Give it to Private too, wrap steps on public data in `with private.public(...)`, training on released values alone, "
    "as of a GAN's generator, in `with private.post_processing(...)`."
)
_BESIDE = (
    "the optimizer made a step inside the loop on a parameter that is not of the model given to Private.\n"
    "Its gradient was not released, so it is of bare records.\n"
    "Make it part of that model, or wrap steps on public data in `with private.public(...)`."
)
_NEVER = (
    "the optimizer holds a trainable parameter of shape {} that is not of the model given to Private.\n"
    "It gets no gradient and would never train.\n"
    "Make one module of both and give that to Private, or take it out of the optimizer."
)

_alive: weakref.WeakSet[Tripwire] = weakref.WeakSet()


class Tripwire:
    """Watches the parameters of one model."""

    def __init__(self, ledger: Ledger) -> None:
        # What is watched, and under which names.
        self._ledger, self._void, self._lineage = ledger, ledger.void, Lineage(ledger)
        self._named: Mapping[str, nn.Parameter] = {}
        self._buffers: Buffers = ()
        self._ids: dict[int, str] = {}  # names by the parameter's identity
        self._hooked: dict[int, weakref.ref[nn.Parameter]] = {}
        # What is known of the values, and which changes are allowed at the moment.
        self._values = ParameterWatch()
        self._trusted = False  # the parameters' values are known to be right
        self._excused = False  # inside `public` or `post_processing`
        self._public = False
        self._takes_gradients = False  # inside a block of the user's own that may take gradients of released values
        self.was_backward_inside = False  # such a block has taken gradients of the watched parameters
        self.public_before = False  # steps on public data were declared
        # Where the training loop is.
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

        # torch calls these hooks for every optimizer of the process, so each of them asks first whether the step
        # concerns this run.
        handles = register_optimizer_step_pre_hook(before_step), register_optimizer_step_post_hook(after_step)
        for handle in handles:
            weakref.finalize(self, handle.remove)

    def watch(self, parameters: Mapping[str, nn.Parameter], buffers: Buffers = ()) -> None:
        """Makes the tripwire watch these parameters and buffers for changes that no release made.

        It is called for every lot, because parameters can be thawed and modules exchanged at any time.
        """
        # Nothing to do for the mapping of the last call, which is the case at almost every lot.
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
        # From here on the new objects are watched; their values are those that were trusted under the same names.
        self._named, self._ids, me = parameters, new, weakref.ref(self)
        if self._trusted:
            self._values.replace_parameters(parameters)
        # The hook notices a backward pass outside private.backward; it holds this object weakly.
        for p in parameters.values():
            if p.requires_grad and (id(p) not in self._hooked or self._hooked[id(p)]() is not p):

                def note_stray_backward(_: Tensor) -> None:
                    """Voids the claim where the tripwire meets a gradient that came from another backward pass than
                    that of a release.
                    """
                    wire = me()
                    if wire is None or wire._public:
                        return
                    if wire._takes_gradients:
                        wire.was_backward_inside = True
                    else:
                        wire._void(_STRAY)

                p.register_post_accumulate_grad_hook(note_stray_backward)
                self._hooked[id(p)] = weakref.ref(p)

    def begin(self) -> None:
        """Makes the tripwire trust the parameters as they are before the first draw, and names what is known of their
        past.
        """
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

    def check_parameters(self, *, numbers: bool = True, may_wait: bool = True) -> None:
        """Voids the claim if the tripwire finds a parameter changed other than by a step on released gradients.

        Args:
            numbers: whether some numbers are compared too.
            may_wait: whether the host may wait for a device to see its numbers. Otherwise they are copied there, and
                compared when it waits next.

        """
        if not self._trusted or self._excused:
            return
        name = self._values.find_changed(self._buffers, numbers=numbers, may_wait=may_wait)
        if name is not None:
            moved = self._values.find_moved()
            self._void(_PARAMETER.format(name) if moved is None else _MOVED.format(*moved))
            self.trust()  # said once

    def take_numbers_to_compare(self) -> list[NumbersToCompare]:
        """Returns what was copied on a device for comparison since the last call; the caller reads and judges it."""
        return self._values.take_numbers_to_compare()

    def judge_numbers(self, taken: Sequence[NumbersToCompare], read: Sequence[float]) -> None:
        """Voids the claim if the numbers that were read show a parameter on a device that was changed by hand."""
        start = 0
        for numbers in taken:
            name = numbers.find_different(read[start : start + numbers.length])
            start += numbers.length
            if name is not None:
                self._void(_PARAMETER.format(f"parameter {name!r}"))

    def write_gradients(self, released: dict[str, Tensor], divide_by: float = 1.0) -> None:
        """Sets released gradients by the parameters' names; the tripwire remembers what they looked like.

        They are divided by a public number, such as the expected batch, before that.
        """
        divide_(released, divide_by)
        written = []
        for name, p in self._named.items():
            grad = released.get(name)
            if grad is not None:
                local_grad = shard_like(p, grad) if is_shard(p) and not is_shard(grad) else grad
                written.append((p, local_grad if local_grad.dtype == p.dtype else local_grad.to(p.dtype)))
        write_gradients(written, self)

    def drop_gradients(self) -> None:
        """Drops every gradient that this run has written."""
        drop_gradients(self._named.values(), self)

    @contextmanager
    def public(self) -> Iterator[None]:
        """Makes the tripwire allow, inside the context, gradients of data that the user declares public."""
        before, self._public, self.public_before = self._public, True, True
        try:
            with self.post_processing():
                yield
        finally:
            self._public = before

    @contextmanager
    def post_processing(self, *, takes_gradients: bool = False) -> Iterator[None]:
        """Makes the tripwire allow, inside the context, changes of parameters and gradients by what was released.

        With `takes_gradients` backward passes are allowed too, for a block in which somebody watches what goes into them.
        """
        # Look before the block begins: a change made before it is not excused by it.
        self.check_parameters()
        before, self._excused, self.release_was_used = self._excused, True, True
        took_gradients, self._takes_gradients = self._takes_gradients, takes_gradients
        self.was_backward_inside = False
        try:
            yield
        finally:
            self._excused, self._takes_gradients = before, took_gradients
            # What the user did to gradients inside the block is now what may be stepped on; nested blocks leave that to
            # the outer one.
            for p in self._named.values():
                if p.grad is not None and not before:
                    remember_gradient(p, self)
            # The same for parameters and buffers.
            if self._trusted:
                self._values.accept_all(self._named, self._buffers)

    def _watched_parameters_of(self, optimizer: Optimizer) -> list[nn.Parameter]:
        return [p for group in optimizer.param_groups for p in group["params"] if id(p) in self._ids]

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Checks parameters and gradients by the tripwire before an optimizer step, and wraps the step's closure."""
        if self._excused:
            return None
        mine = self._watched_parameters_of(optimizer)
        # An optimizer of another model may train on raw gradients of the same records. That counts only while a lot is
        # drawn and when no other private run watches that model.
        if not mine:
            if self.is_looping and not _is_watched_by_a_run(optimizer) and _has_own_gradients(optimizer):
                self._void(_ANOTHER)
            return None
        # A step of our own: parameters must be as the last step left them, and gradients as they were released.
        self.check_parameters(may_wait=False)
        self._check_gradients(mine)
        self._check_other_parameters(optimizer, mine)
        return self._wrap_closure(mine, args, kwargs)

    def _check_gradients(self, mine: list[nn.Parameter]) -> None:
        p = find_changed_gradient(mine)
        if p is not None:
            self._void(_GRADIENT.format(self._ids[id(p)]))

    def _check_other_parameters(self, optimizer: Optimizer, mine: list[nn.Parameter]) -> None:
        """Checks, for the tripwire, what an optimizer trains besides the model in a step on released gradients."""
        # The usual case: the optimizer trains watched parameters and nothing else.
        if len(mine) == sum(len(group["params"]) for group in optimizer.param_groups) or not self.is_looping:
            return
        beside = [
            p
            for group in optimizer.param_groups
            for p in group["params"]
            if p.requires_grad and not _is_known_parameter(p)
        ]
        # Gradients of other parameters came from a backward pass without noise, unless they are copies of released
        # values.
        if any(p.grad is not None and not is_released_copy(p.grad) for p in beside):
            self._void(_BESIDE)
        # A parameter that gets no gradient was probably meant to be trained. Refusing loses nothing yet.
        idle = next((p for p in beside if p.grad is None), None)
        if idle is not None and any(p.grad is not None for p in mine):
            raise Refusal(_NEVER.format(tuple(idle.shape)))

    def _wrap_closure(self, mine: list[nn.Parameter], args: Any, kwargs: Any) -> Any:
        """Returns an optimizer step's arguments with the closure wrapped, so that the tripwire checks its gradients
        too.
        """
        # torch passes the closure by name or as the first argument behind the optimizer.
        closure = kwargs.get("closure") if "closure" in kwargs else args[1] if len(args) > 1 else None
        if not callable(closure):
            return None

        # A closure computes gradients in the middle of the step, after the check that was made before it.
        def checked_closure() -> Any:
            result = closure()
            self._check_gradients(mine)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": checked_closure}
        return (args[0], checked_closure, *args[2:]), kwargs

    def _after_step(self, optimizer: Optimizer) -> None:
        """Makes the tripwire accept the parameters that an optimizer step has just changed."""
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
    return any(grad is not None and not is_released_copy(grad) for grad in grads)


@contextmanager
def post_processing(parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Allows library code, such as an average, to make parameters of released ones without setting off a tripwire, in
    every run that watches the parameters.
    """
    ids = {id(p) for p in parameters.values()}
    wires = [wire for wire in _alive if ids & wire._ids.keys()]
    with _post_processing_of_all(wires):
        yield


@contextmanager
def following_move(model: nn.Module) -> Iterator[None]:
    """Allows a framework to move a model to another device inside the context, without the tripwire of any run that
    watches its parameters going off.

    A move copies values and adds nothing to them, so the claim stays as it was. Every value is compared: if a parameter is
    not what it was before, to the last bit and in the same type, the tripwire says that it was changed by hand.
    """
    # Only runs that have drawn lots watch values; before that a model may be moved in any case.
    before = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    ids = {id(p) for p in before.values()}
    wires = [wire for wire in _alive if wire._trusted and ids & wire._ids.keys()]
    if not wires:
        yield
        return
    # A detached tensor keeps the old memory, also where the parameter object itself gets new memory.
    values = {name: tensor.detach() for name, tensor in before.items()}
    with _post_processing_of_all(wires):
        yield
        after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        changed = next((name for name, value in values.items() if not _has_value(after.get(name), value)), None)
        # PyTorch makes new buffers, and for some devices new parameter objects; from here on those are watched.
        renewed: dict[int, Any] = {id(tensor): after.get(name, tensor) for name, tensor in before.items()}
        for wire in wires:
            buffers = [(name, renewed.get(id(tensor), tensor)) for name, tensor in wire._buffers]
            wire.watch({name: renewed.get(id(p), p) for name, p in wire._named.items()}, buffers)
            if changed is not None:
                wire._void(_PARAMETER.format(f"parameter {changed!r}"))


def _has_value(moved: Tensor | None, value: Tensor) -> bool:
    """Returns whether a tensor that the tripwire watches still has this value after a move, bit by bit."""
    if moved is None or moved.dtype is not value.dtype or moved.shape != value.shape:
        return False
    # Bits, not values: a run that diverged has numbers that are not equal to themselves.
    here, there = (t.reshape(-1).view(torch.uint8) for t in (value, moved.detach().to(value.device)))
    return torch.equal(here, there)


@contextmanager
def _post_processing_of_all(wires: list[Tripwire]) -> Iterator[None]:
    """Enters `post_processing` of the tripwires of all these runs, one inside the other."""
    if not wires:
        yield
        return
    with wires[0].post_processing(), _post_processing_of_all(wires[1:]):
        yield


# The watch over the parameters.

Buffers = Sequence[tuple[str, Tensor]]
"""A model's buffers with names, in order."""


_PIECE, _LEAST = 4096, 16
"""Numbers compared at a time: all tensors together, and of each at least."""

_DEVICE_PIECE, _DEVICE_LEAST = 512, 8
"""The same for a model on a device, where the numbers are copied to the host with every lot."""

_version, _device = attrgetter("_version"), attrgetter("device")


@dataclass(frozen=True)
class NumbersToCompare:
    """Numbers of parameters on a device, as they should be and as they were at one moment; nobody has read them yet."""

    names: Sequence[str]
    counts: Sequence[int]  # so many of each
    expected: Tensor
    found: Tensor

    @property
    def length(self) -> int:
        """How many numbers there are to read."""
        return 2 * sum(self.counts)

    def find_different(self, read: Sequence[float]) -> str | None:
        """Returns the first watched parameter with a number that the tripwire finds changed; `read` holds the expected
        numbers and then those found.
        """
        start, half = 0, len(read) // 2
        for name, count in zip(self.names, self.counts, strict=True):
            here, there = read[start : start + count], read[half + start : half + start + count]
            start += count
            # What is not a number is equal to nothing, and ends the run by itself.
            if any(a != b and not (math.isnan(a) and math.isnan(b)) for a, b in zip(here, there, strict=True)):
                return name
        return None


class ParameterWatch:
    """The parameters of one model as they should be."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._parameters: list[nn.Parameter] = []
        self._divided = False  # among ranks, some of them
        self._positions: dict[int, int] = {}  # a parameter's place in these lists, by its identity
        self._devices: list[torch.device] = []
        self._versions: list[int] = []
        self._addresses: list[int] = []
        self._pieces: list[tuple[int, int]] = []  # which bytes of each are compared: from where on, how many
        self._windows: list[Any] = []  # these bytes, in the parameters' own memory
        self._numbers: list[bytes] = []  # what they were
        self._buffers: list[Tensor] = []
        self._buffer_versions: list[int] = []
        self._device_pieces: list[tuple[int, int, int]] = []  # place in these lists, first number, how many
        self._device_numbers: Tensor | None = None  # what they were
        self._to_compare: list[NumbersToCompare] = []

    def accept_all(self, named: Mapping[str, nn.Parameter], buffers: Buffers = ()) -> None:
        """Records all parameters and buffers as right in the state that the tripwire sees now."""
        # Buffers are compared by version only: torch counts every write in place.
        self._buffers = [tensor for _, tensor in buffers]
        self._buffer_versions = list(map(_version, self._buffers))
        self._names, self._parameters = list(named), list(named.values())
        self._positions = {id(p): i for i, p in enumerate(self._parameters)}
        self._divided = any(map(is_shard, self._parameters))
        self._devices = list(map(_device, self._parameters))
        # Versions show writes that torch knows of, addresses show tensors that were replaced behind `.data`.
        self._versions, self._addresses = self._versions_and_addresses(self._parameters)
        # Some numbers are compared too, because numpy or a kernel can write without a new version.
        self._pieces = _choose_pieces(self._parameters)
        places = zip(self._addresses, self._pieces, strict=True)
        self._windows = [read_bytes(address + start, many) for address, (start, many) in places]
        self._numbers = [window.raw for window in self._windows]
        self._device_pieces = _choose_device_pieces(self._parameters)
        self._device_numbers = self._copy_device_numbers()

    def _copy_device_numbers(self) -> Tensor | None:
        """Returns a copy, on the device, of the parameters' numbers that the tripwire compares there; None for a model
        on the CPU.
        """
        if not self._device_pieces:
            return None
        with torch.no_grad():
            views = []
            for place, start, count in self._device_pieces:
                held = local_rows(self._parameters[place])
                views.append(held.as_strided((count,), (1,), held.storage_offset() + start))
            return torch.cat(views)

    def take_numbers_to_compare(self) -> list[NumbersToCompare]:
        """Returns what was copied on a device for comparison since the last call."""
        taken, self._to_compare = self._to_compare, []
        return taken

    def replace_parameters(self, named: Mapping[str, nn.Parameter]) -> None:
        """Replaces the parameters that the tripwire watches by these; those that are new to the model are right as they
        are.
        """
        known = [(p, self._versions[i], self._addresses[i]) for i, p in enumerate(self._parameters)]
        buffers, versions = self._buffers, self._buffer_versions
        self.accept_all(named)
        self._buffers, self._buffer_versions = buffers, versions
        for p, before, address in known:
            i = self._positions.get(id(p))
            if i is not None:
                self._versions[i], self._addresses[i] = before, address

    def accept_restored(self, parameters: Sequence[nn.Parameter]) -> None:
        """Accepts parameters that the library itself moved and put back to the last bit."""
        self._record_versions(parameters)

    def accept_changed(self, parameters: Sequence[nn.Parameter]) -> None:
        """Accepts the change of these parameters, so that the tripwire does not report it, as after a step on released
        gradients.
        """
        for i in self._record_versions(parameters):
            self._numbers[i] = self._windows[i].raw
        # All were compared before the step, and only the optimizer has run since.
        self._device_numbers = self._copy_device_numbers()

    def _record_versions(self, parameters: Sequence[nn.Parameter]) -> Iterable[int]:
        """Records versions and addresses of parameters for the tripwire and returns the parameters' places in its
        lists.
        """
        # All parameters in their usual order: compare whole lists, which is much faster than one parameter after the
        # other.
        if len(parameters) == len(self._parameters) and all(map(is_, parameters, self._parameters)):  # as a rule
            self._versions, addresses = self._versions_and_addresses(parameters)
            if addresses == self._addresses:
                return range(len(addresses))
        # Otherwise some parameters only, such as those of one optimizer among several.
        places = [i for i in map(self._positions.get, map(id, parameters)) if i is not None]
        for i in places:
            p = self._parameters[i]
            self._versions[i], address = version_of(p), local_rows(p).data_ptr()
            # A parameter that moved in memory is read at its new address from now on.
            if address != self._addresses[i]:
                start, many = self._pieces[i]
                self._addresses[i], self._windows[i] = address, read_bytes(address + start, many)
        return places

    def find_changed(self, buffers: Buffers = (), *, numbers: bool = True, may_wait: bool = True) -> str | None:
        """Returns the name of a parameter or buffer that is not as the tripwire saw it last; `numbers` compares some
        numbers too, on a device only if the host may wait for them, and later otherwise.
        """
        # Buffers first: their check is cheapest.
        for (name, now), tensor, known in zip(buffers, self._buffers, self._buffer_versions, strict=False):
            if now is not tensor or now._version != known:
                return name
        # Versions and addresses of all parameters at once; names are looked for only when something differs.
        versions, addresses = self._versions_and_addresses(self._parameters)
        if versions != self._versions or addresses != self._addresses:
            before, after = zip(self._versions, self._addresses, strict=True), zip(versions, addresses, strict=True)
            return self._first_different(before, after)
        if numbers:  # read only now that they are known to be where they were
            read = [window.raw for window in self._windows]
            if read != self._numbers:
                return self._first_different(self._numbers, read)
            if self._device_pieces:
                return self._compare_on_device(may_wait=may_wait)
        return None

    def _compare_on_device(self, *, may_wait: bool) -> str | None:
        """Copies the parameters' numbers that the tripwire compares on a device; reads and compares all that were
        copied if the host may wait.
        """
        found = self._copy_device_numbers()
        assert found is not None, "there are numbers on a device"
        assert self._device_numbers is not None, "they were copied before"
        names = [self._names[place] for place, _, _ in self._device_pieces]
        counts = [count for _, _, count in self._device_pieces]
        self._to_compare.append(NumbersToCompare(names, counts, self._device_numbers, found))
        if not may_wait:
            return None
        # One copy for all of them.
        taken = self.take_numbers_to_compare()
        read = torch.cat([tensor for each in taken for tensor in (each.expected, each.found)]).tolist()
        start = 0
        for each in taken:
            name = each.find_different(read[start : start + each.length])
            start += each.length
            if name is not None:
                return f"parameter {name!r}"
        return None

    def find_moved(self) -> tuple[str, torch.device, torch.device] | None:
        """Returns a watched parameter that the tripwire finds on another device than before: its name and both devices,
        or None.
        """
        for name, p, before in zip(self._names, self._parameters, self._devices, strict=True):
            if p.device != before:
                return name, before, p.device
        return None

    def left_behind(self) -> LeftBehind:
        """Returns the parameters as they should be found by whoever looks at them after this watch is gone."""
        return LeftBehind.of(self._names, self._parameters, self._versions)

    def _versions_and_addresses(self, parameters: Sequence[nn.Parameter]) -> tuple[list[int], list[int]]:
        """Returns current versions and addresses of the tripwire's parameters; of divided ones, those of this rank's
        rows.
        """
        if self._divided:
            return list(map(version_of, parameters)), [local_rows(p).data_ptr() for p in parameters]
        return list(map(_version, parameters)), list(map(Tensor.data_ptr, parameters))

    def _first_different(self, before: Iterable[object], now: Iterable[object]) -> str:
        different = (name for name, a, b in zip(self._names, before, now, strict=True) if a != b)
        return f"parameter {next(different)!r}"


def _choose_pieces(parameters: Sequence[nn.Parameter]) -> list[tuple[int, int]]:
    """Returns which bytes of each watched parameter the tripwire compares, by start and length.

    A parameter without plain memory here has none; its version and address must do.
    """
    pieces = []
    for p in parameters:
        held_rows = local_rows(p).detach()
        # What cannot be read by address is watched by versions alone.
        if (
            held_rows.is_meta
            or not held_rows.numel()
            or not held_rows.is_contiguous()
            or not held_rows.is_cpu
            or not held_rows.data_ptr()
        ):
            pieces.append((0, 0))
            continue
        # A fixed number of bytes is shared among all parameters, so that the check costs the same for models of any
        # size. The place in each is random and secret.
        count = min(held_rows.numel(), max(_LEAST, _PIECE // len(parameters)))
        start = _coins.randrange(held_rows.numel() - count + 1)
        pieces.append((start * held_rows.element_size(), count * held_rows.element_size()))
    return pieces


def _choose_device_pieces(parameters: Sequence[nn.Parameter]) -> list[tuple[int, int, int]]:
    """Returns which numbers of each watched parameter on a device the tripwire compares: its place, the first number and
    how many.
    """
    pieces = []
    for place, p in enumerate(parameters):
        held = local_rows(p).detach()
        if held.is_cpu or held.is_meta or not held.numel() or not held.is_contiguous():
            continue
        count = min(held.numel(), max(_DEVICE_LEAST, _DEVICE_PIECE // len(parameters)))
        pieces.append((place, _coins.randrange(held.numel() - count + 1), count))
    return pieces


# The recognition of released gradients.

_AGREE = 1e-4
"""Relative difference allowed between the factors of two numbers: they were rounded once."""


_ONE = [1.0]


class NumbersOnDevice:
    """Numbers of the gradients of one release, copied on their device and read when somebody asks for them.

    A device is waited for then, and not at every step.
    """

    def __init__(self, views: Sequence[Tensor]) -> None:
        self._copied = torch.cat(list(views))
        self._numbers: list[float] | None = None

    def read(self, first: int) -> list[float]:
        """Returns the two sampled numbers of a gradient from a place on, which the tripwire keeps on the device."""
        if self._numbers is None:
            self._numbers = self._copied.tolist()
        return self._numbers[first : first + 2]


@dataclass(slots=True)
class ReleasedGradient:
    """A gradient as it was written: the tensor, its version, and two of its numbers with their places in memory."""

    grad: Tensor
    version: int
    first: int
    stride: int
    numbers: list[float] | tuple[NumbersOnDevice, int]  # read, or still on a device, and where among the others there
    owner: ref[object]  # whose release it was

    @property
    def sample(self) -> list[float]:
        """The two numbers."""
        return self.numbers if isinstance(self.numbers, list) else self.numbers[0].read(self.numbers[1])

    def factors_to(self, grad: Tensor) -> list[float] | None:
        """Returns the factors by which the tripwire's sampled numbers of a released gradient were multiplied since;
        None where no multiplication explains the gradient as it is now.
        """
        # Another shape or kind of number is never a multiple of what was released.
        if grad.shape != self.grad.shape or grad.dtype != self.grad.dtype:
            return None
        if (
            local_rows(self.grad).is_contiguous() and not local_rows(grad).is_contiguous()
        ):  # it may have less memory: one number
            return None
        ratios = []
        # A zero must have stayed a zero, and every other number has a factor; equal factors everywhere mean that the
        # gradient was only scaled.
        for before, after in zip(self.sample, _read_two_numbers(grad, self.first, self.stride), strict=True):
            if before == 0:
                if after != 0:
                    return None
            elif not math.isfinite(after):
                return None
            else:
                ratios.append(after / before)
        return ratios


_written: dict[
    int, tuple[ref[nn.Parameter], ReleasedGradient | None]
] = {}  # by identity: tensors do not compare as keys do


def write_gradients(grads: Iterable[tuple[nn.Parameter, Tensor]], owner: object) -> None:
    """Sets released gradients and remembers for the tripwire what they looked like."""
    owner_reference = ref(owner)
    on_device: list[tuple[ReleasedGradient, Tensor]] = []
    for p, grad in grads:
        # The tensors of a release may be views of one vector and share its version counter; `data` of them does not.
        p.grad = gradient = grad if grad._base is None else grad.data
        held = _store_sample(p, gradient, owner_reference, may_wait=False)
        if not held.numbers and local_rows(gradient).numel():
            on_device.append((held, _view_two_numbers(gradient, held.first, held.stride)))
    # The samples of all gradients on a device are copied there at once, and read when they are needed.
    if on_device:
        copied = NumbersOnDevice([view for _, view in on_device])
        for place, (held, _) in enumerate(on_device):
            held.numbers = copied, 2 * place


def remember_gradient(p: nn.Parameter, owner: object) -> None:
    """Remembers the gradient that is there now as released."""
    assert p.grad is not None, "there is a gradient to remember"
    _store_sample(p, p.grad, ref(owner))


def _store_sample(p: nn.Parameter, grad: Tensor, owner: ref[object], *, may_wait: bool = True) -> ReleasedGradient:
    """Stores a released gradient with two of its numbers, at random places, for the tripwire; returns what is stored.

    Without `may_wait` the numbers of a tensor on a device are left out, for the caller to copy.
    """
    # The two places are drawn at random, so a gradient that was altered elsewhere is noticed with the chance that
    # belongs to the altered share.
    n, coin = local_rows(grad).numel(), _coins.random
    first = int(coin() * n)
    stride = int(coin() * (n - first))
    key = id(p)
    known = _written.get(key)
    whose = known[0] if known is not None and known[0]() is p else _reference_that_forgets(p)
    # Reading from a device would wait for all its pending work, so it is left out there where waiting is not allowed.
    is_readable = may_wait or local_rows(grad).is_cpu
    numbers = _read_two_numbers(grad, first, stride) if is_readable else []
    held = ReleasedGradient(grad, version_of(grad), first, stride, numbers, owner)
    _written[key] = whose, held
    return held


def _reference_that_forgets(p: nn.Parameter) -> ref[nn.Parameter]:
    """Returns a weak reference to a parameter; when the parameter goes, the tripwire forgets its released gradient."""
    key = id(p)

    def forget_dead(dead: ref[nn.Parameter]) -> None:
        if _written.get(key, (None,))[0] is dead:
            del _written[key]

    return ref(p, forget_dead)


def drop_gradients(parameters: Iterable[nn.Parameter], owner: object) -> None:
    """Drops the gradients that this owner released from the tripwire's memory, and frees the space."""
    for p in parameters:
        whose, held = _written.get(id(p), (None, None))
        if held is not None and whose is not None and whose() is p and p.grad is held.grad and held.owner() is owner:
            _written[id(p)] = whose, None
            p.grad = None


def is_released_copy(grad: Tensor) -> bool:
    """Returns whether a gradient is one of those that the tripwire knows as released, or a copy of one."""
    for _, held in _written.values():
        factors = held.factors_to(grad) if held is not None and held.sample else None
        if factors is not None and all(abs(factor - 1) <= _AGREE for factor in factors):
            return True
    return False


def find_changed_gradient(parameters: Iterable[nn.Parameter]) -> nn.Parameter | None:
    """Returns a parameter whose gradient the tripwire finds to be no released one times the factor that all share, or
    None.
    """
    common: float | None = None
    for p in parameters:
        grad = p.grad
        if grad is None:
            continue
        # A gradient that no release wrote is a change in itself.
        whose, held = _written.get(id(p), (None, None))
        if held is None or whose is None or whose() is not p:
            return p
        factors = _ONE if _is_untouched(grad, held) else held.factors_to(grad)
        if factors is _ONE and (common is None or common == 1.0):  # as a rule
            common = 1.0
            continue
        if factors is None:
            return p
        # Clipping and unscaling multiply all gradients by one number; any other change shows here.
        for factor in factors:
            if common is None:
                common = factor
            if abs(factor - common) > _AGREE * max(abs(factor), abs(common)):
                return p
    return None


def _is_untouched(grad: Tensor, held: ReleasedGradient) -> bool:
    """Returns whether a gradient is the very tensor that was released, as far as the tripwire can see: the common case.

    A write through `.data` leaves the version as it was, so the two numbers are compared as well. On a device that would
    make the host wait at every step, and the version alone decides.
    """
    if grad is not held.grad or version_of(grad) != held.version:
        return False
    if not isinstance(held.numbers, list):
        return True
    numbers = _read_two_numbers(grad, held.first, held.stride)
    # Numbers of a run that diverged are no numbers any more, and NaN is not equal to itself.
    return numbers == held.numbers or all(
        a == b or (a != a and b != b) for a, b in zip(numbers, held.numbers, strict=True)
    )


def _read_two_numbers(grad: Tensor, first: int, stride: int) -> list[float]:
    """Returns two numbers of a gradient, by their places in memory, for the tripwire to compare."""
    grad = local_rows(grad)
    if not grad.numel():
        return []
    if grad.dtype is torch.float32 and grad.is_cpu and grad.is_contiguous():  # as a rule; others may have less memory
        return read_two_floats(grad.data_ptr(), first, stride)
    numbers: list[float] = _view_two_numbers(grad, first, stride).tolist()
    return numbers


def _view_two_numbers(grad: Tensor, first: int, stride: int) -> Tensor:
    """Returns two numbers of a tensor as a view of its memory."""
    grad = local_rows(grad)
    return grad.as_strided((2,), (stride,), grad.storage_offset() + first)


# The lineage of weights.

ShapeAndType = tuple[tuple[int, ...], str]
"""Tensors of one shape and type are compared with one another."""

_TENSORS = 4
"""How many of a model's largest tensors are remembered after each step."""
_FEWEST = 8
"""Tensors of fewer numbers are not compared: a few zeros or ones are in every model."""
_COMPARED = 64
"""Numbers of a tensor that are compared."""
_WRITES = 16
"""Initialisation writes to a tensor a few times; training writes to it at every step."""

_places: dict[ShapeAndType, int] = {}
"""From which number on tensors of a kind are compared; a secret of the process."""
_made: dict[ShapeAndType, dict[int, weakref.ref[Ledger]]] = {}
"""By kind and digest, the ledger of the run that made these values."""


class Lineage:
    """What the parameters of one run were at its beginning, and what its steps made of them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = weakref.ref(ledger)
        self._initial: set[int] = set()

    def begin(self, parameters: Iterable[nn.Parameter]) -> None:
        """Notes the initial values. They are no result of this run: others may begin at the same ones."""
        self._initial = {digest for p in _largest_tensors(parameters) if (digest := _digest_of_values(p)) is not None}

    def remember(self, parameters: Iterable[nn.Parameter]) -> None:
        """Remembers the values that parameters have now as made by this run, so that the tripwire recognises another
        run that begins at a copy of them.
        """
        for p in _largest_tensors(parameters):
            digest = _digest_of_values(p)
            if digest is not None and digest not in self._initial:
                _made.setdefault(_shape_and_dtype(p), {})[digest] = self._ledger


def find_unnamed_past(parameters: Iterable[nn.Parameter], ledger: Ledger) -> str | None:
    """Returns what the tripwire finds in the lineage of a run's initial weights that its claim must name, or None.

    Weights that a run with the same ledger made are part of its claim already.
    """
    every = list(parameters)
    makers = [maker for p in every if (maker := _find_maker(p)) is not None]
    if any(maker() is not ledger for maker in makers):
        return claims.COPIED
    written_often = any(p.requires_grad and p.is_cpu and not is_shard(p) and p._version >= _WRITES for p in every)
    return claims.WRITTEN_BEFORE if written_often and not makers else None


def _find_maker(p: nn.Parameter) -> weakref.ref[Ledger] | None:
    """Returns the ledger of the run that made these very weights, if the tripwire knows one by their lineage; the
    ledger may be gone.
    """
    known = _made.get(_shape_and_dtype(p))
    digest = None if known is None else _digest_of_values(p)
    return None if known is None or digest is None else known.get(digest)


def _largest_tensors(parameters: Iterable[nn.Parameter]) -> Sequence[nn.Parameter]:
    return sorted((p for p in parameters if p.requires_grad), key=Tensor.numel, reverse=True)[:_TENSORS]


def _shape_and_dtype(p: Tensor) -> ShapeAndType:
    return tuple(p.shape), str(p.dtype)


def _digest_of_values(p: nn.Parameter) -> int | None:
    """Returns the digest of some numbers of a tensor by which the tripwire recognises its lineage, or None for one that
    is small, divided or constant.
    """
    # Only plain tensors on the host can be read by address without a copy or a wait.
    if is_shard(p) or p.is_meta or p.numel() < _FEWEST or not p.is_contiguous() or not p.is_cpu:
        return None
    count = min(_COMPARED, p.numel())
    # The place is drawn once per shape and kept, so that equal tensors have equal digests. It is secret, so
    # that no code can spare just these numbers.
    start = _places.get(_shape_and_dtype(p))
    if start is None:
        start = _places[_shape_and_dtype(p)] = _coins.randrange(p.numel() - count + 1)
    size = p.element_size()
    raw_bytes = read_bytes(p.data_ptr() + start * size, count * size).raw
    # Constant values, such as zeros of a new bias, are alike in unrelated models and prove no descent.
    if raw_bytes == raw_bytes[:size] * count:
        return None
    return hash(raw_bytes)
