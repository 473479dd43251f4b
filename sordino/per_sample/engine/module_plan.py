"""Plans which rule runs each module of a model; kept for as long as model and loss stay the same.

A plan is made anew when a module or a parameter is added, replaced, frozen or thawed. It holds the trained parameters
and the modules below the model, so that their identities are not given out again, and no reference to the model itself.

When two losses are the same (`find_loss_identity`) matters because no loss may be trusted for another's verification. A
lambda written inside a loop is a new object every time, and the same loss. Two functions made by one factory share their
code and may compute quite different things. So a function is known by its code and by everything that it holds: the
contents of its closure, its default arguments, the arguments of a `partial`, the object of a method. Numbers and strings
are compared by value, functions by this same rule, other objects by identity, while they live. What a loss reads through
a global name, and what changes inside an object that it holds, is not seen here.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from sordino import accelerations
from sordino.per_sample.engine.gradient_buffer import Pool
from sordino.per_sample.engine.loose_parameters import LooseParameters
from sordino.per_sample.layers.fallback import run_fallback
from sordino.per_sample.layers.layer_registry import rule_for
from sordino.per_sample.model_inventory import Inventory, Mark
from sordino.per_sample.protocol import LossFn, trainable_parameters
from sordino.per_sample.recording.layer_accelerations import FasterRule, StandIn
from sordino.per_sample.recording.sample_layout import OUTSIDE, Layouts
from sordino.per_sample.recording.tape import Rule, Tape
from sordino.refusal import Refusal

_REWRITTEN = ("weight_g", "weight_v", "_orig")
"""What weight_norm, spectral_norm and pruning by hooks leave in place of a weight."""


_FASTER_RULES: list[FasterRule] = [accelerations.load(name) for name in accelerations.LAYER_RULES]
_STAND_INS: list[StandIn] = [accelerations.load(name) for name in accelerations.STAND_INS]

Lengths = tuple[torch.Size, ...]
"""The shapes of a batch's tensors, without their samples."""

_VALUES = frozenset((int, float, bool, complex, str, bytes, type(None)))


@dataclass(frozen=True)
class ModelStructure:
    """One model's modules and parameters, as they were when its plan was made."""

    mark: Mark
    submodules: list[nn.Module]  # the model's modules but the model, held so that the mark stays true
    names: tuple[str, ...]
    parameters: list[nn.Parameter]  # of those names
    columns: dict[int, int]  # id of a parameter -> its column
    trainable: frozenset[int]  # the same ids
    rules: tuple[tuple[int, str, Rule], ...]  # position among model.modules(), name, rule
    stand_ins: tuple[tuple[int, StandIn], ...]  # positions of layers without parameters that have faster code
    has_convolutions: bool


@dataclass(frozen=True)
class Learned:
    """What the batches of one way of using a model have taught so far."""

    layouts: Layouts | None = None
    """Where the layers have their samples; None before the first batch."""
    trusted: bool = False
    """Whether norms and sums were compared with autograd's, on samples whose gradients were finite."""
    channels_last: bool = False
    needs_two_passes: bool = False
    """Whether the model checkpoints activations."""
    follows_everything: bool = False
    """Whether operations outside layers are followed, because they use parameters."""
    follows_code: bool = False
    """Whether the code of layers without a rule is followed operation by operation."""
    mapped_positions: frozenset[int] = frozenset()
    """The positions of layers without a rule that are run as a whole, one sample at a time."""
    sample_bytes: int = 0
    """What a sample took on the first batch."""
    held_bytes: int = 0
    """What of it is there at the end of a backward pass."""


@dataclass(frozen=True)
class Usage:
    """How often a pass uses each parameter, and whether large layers can be measured during the backward pass."""

    used_once: frozenset[int] = frozenset()  # columns known to be used once per pass
    used_again: frozenset[int] = frozenset()  # columns that were used more than once in some pass
    measures_early: bool = True  # layers are measured during the backward pass


@dataclass(frozen=True, eq=False)
class ModulePlan:
    """One model's structure, which never changes, and what its batches taught, which changes by the methods here."""

    structure: ModelStructure
    learned: Learned
    usage: Usage = Usage()
    pool: Pool = field(default_factory=Pool)
    _layouts_by_lengths: dict[Lengths, Layouts] = field(default_factory=dict)  # where samples are folded into rows
    _usage_by_lengths: dict[Lengths, Usage] = field(default_factory=dict)  # where rounding must follow the shapes
    _lengths: Lengths | None = None  # of this batch, if its usage is one of those
    _ones: Tensor | None = None

    def learn(self, **facts: Any) -> None:
        """Writes down what a batch has taught, by the names of the fields of `Learned`."""
        object.__setattr__(self, "learned", replace(self.learned, **facts))

    def learn_layouts_of_lengths(self, lengths: Lengths, layouts: Layouts) -> None:
        """Writes down the layouts of batches of these lengths, and uses them from here on."""
        self._layouts_by_lengths[lengths] = layouts
        self.learn(layouts=layouts)

    @property
    def has_layouts_by_lengths(self) -> bool:
        """Whether the layouts depend on the lengths of a batch's tensors."""
        return bool(self._layouts_by_lengths)

    def select_lengths(self, lengths: Lengths, *, also_usage: bool) -> None:
        """Uses what the module plan knows of batches of the given lengths, from here on; of other lengths the layouts
        stay as they are.

        `also_usage` makes what is known of the model's usage a function of a batch's shapes, whatever batches came
        before it. A layer that is measured during the backward pass rounds otherwise than one that is measured after
        it. Processes that see batches in another order must not differ in that. So every kind of batch begins with the
        belief that each parameter is used once; a pass that finds it wrong is made again, and the next of its kind
        knows.
        """
        layouts = self._layouts_by_lengths.get(lengths)
        if layouts is not None and layouts is not self.learned.layouts:
            self.learn(layouts=layouts)
        if also_usage:
            usage = self._usage_by_lengths.get(lengths)
            if usage is None:
                usage = Usage(used_once=frozenset(range(len(self.structure.parameters))))
            object.__setattr__(self, "_lengths", lengths)
            self._set_usage(usage)

    def note_used_once(self, columns: frozenset[int]) -> None:
        """Writes down which parameters a pass uses once."""
        if columns != self.usage.used_once:
            self._set_usage(replace(self.usage, used_once=columns))

    def note_used_again(self, column: int) -> None:
        """Writes down that a parameter which was taken to be used once is used again."""
        usage = self.usage
        self._set_usage(replace(usage, used_once=usage.used_once - {column}, used_again=usage.used_again | {column}))

    def stop_measuring_early(self) -> None:
        """Leaves all measuring to the end of the backward pass, for a model some of whose large layers are not run."""
        self._set_usage(replace(self.usage, measures_early=False))

    def _set_usage(self, usage: Usage) -> None:
        object.__setattr__(self, "usage", usage)
        if self._lengths is not None:
            self._usage_by_lengths[self._lengths] = usage

    def upstream_ones(self, losses: Tensor) -> Tensor:
        """Returns the gradient of the sum at each of the losses: the one the module plan keeps of the last batch, if it
        fits and nobody wrote to it.
        """
        ones = self._ones
        fits = ones is not None and ones.shape == losses.shape and ones.dtype is losses.dtype
        if ones is None or not fits or ones.device != losses.device or ones._version:
            ones = torch.ones_like(losses, requires_grad=False)
            object.__setattr__(self, "_ones", ones)
        return ones


class Plans:
    """Keeps the plans of one backend, for each model by loss, mode and kind of input.

    Another way of using a model may use its layers otherwise.
    """

    _MOST = 16  # ways of using one model that are remembered

    def __init__(self) -> None:
        self._plans: WeakKeyDictionary[nn.Module, dict[Hashable, ModulePlan]] = WeakKeyDictionary()

    def find_or_make_plan(self, inventory: Inventory, loss_fn: LossFn, inputs: list[Tensor]) -> ModulePlan:
        """Returns the module plan for a model with a loss and inputs of these kinds, made anew if the model is not what
        it was.
        """
        model = inventory.model
        # What was learned of a model holds for one loss, one mode and one kind of inputs.
        way = find_loss_identity(loss_fn), model.training, tuple([(t.dim(), t.dtype) for t in inputs])
        plans = self._plans.get(model)
        plan = None if plans is None else plans.get(way)
        # A plan is kept only while the model's modules and parameters are the same objects.
        if plan is None or plan.structure.mark != inventory.mark:
            plans = self._plans.setdefault(model, {})
            plan = make_plan(inventory)
            plans.pop(way, None)
            plans[way] = plan
            # Old plans go first, so that many losses do not fill the memory.
            for old in list(plans)[: -self._MOST]:
                del plans[old]
        return plan

    def sample_bytes(self, model: nn.Module) -> int:
        """Returns the most bytes a sample took in any way the model was used, 0 if it was not."""
        return max((plan.learned.sample_bytes for plan in self._plans.get(model, {}).values()), default=0)

    def held_bytes(self, model: nn.Module) -> int:
        """Returns the most bytes that norms and sum hold of a sample, 0 if that is not known."""
        return max((plan.learned.held_bytes for plan in self._plans.get(model, {}).values()), default=0)

    def forget_all(self) -> None:
        """Forgets all plans, so that every model is looked at again on its next batch."""
        self._plans.clear()


def make_plan(inventory: Inventory) -> ModulePlan:
    """Returns a module plan that gives each module its rule, and in which nothing is known yet of the layers' inputs."""
    model = inventory.model
    parameters = trainable_parameters(model)
    rules: list[tuple[int, str, Rule]] = []
    stand_ins: list[tuple[int, StandIn]] = []
    loose, convolutions, covered = False, False, set[int]()
    for position, (name, module) in enumerate(model.named_modules()):
        # A scripted module hides its layers, so none of them could be recorded.
        if isinstance(module, torch.jit.ScriptModule):
            raise Refusal(
                f"module '{name or type(module).__name__}' is compiled by torch.jit.\n"
                "Its layers cannot be seen.\n"
                "Pass the model as it was before torch.jit."
            )
        # Modules below a fallback layer run inside it, and get no rule of their own.
        if id(module) in covered:
            continue
        # Some layers without parameters have faster code, which records nothing.
        stand_ins += [(position, faster) for faster in _STAND_INS if faster.may_run(module)]
        if not any(p.requires_grad for p in module.parameters()):
            continue
        # A module that can run as one layer; its layers have their own rules too, for passes on which it cannot.
        faster_rule = next((faster.rule for faster in _FASTER_RULES if faster.may_run(module)), None)
        if faster_rule is not None:
            rules.append((position, name, faster_rule))
            continue
        # A layer with a rule of its own, unless a parametrization rewrites its weight, which the fallback follows.
        trained_keys = [key for key, p in module._parameters.items() if p is not None and p.requires_grad]
        layer_rule = None if is_parametrized(module) else rule_for(module)
        if layer_rule is not None:
            if any(key.endswith(_REWRITTEN) for key in trained_keys):
                raise Refusal(
                    f"layer '{name}': its weight is rewritten by a hook before every call.\n"
                    "Gradients are needed at a weight that is a parameter.\n"
                    "Use torch.nn.utils.parametrizations in place of the older torch.nn.utils functions."
                )
            rules.append((position, name, layer_rule))
            convolutions = convolutions or isinstance(module, nn.Conv2d)
            continue
        # Other modules with parameters: one without layers below runs by the fallback as a whole. One that has layers
        # below owns loose parameters, which are followed operation by operation.
        below = [m for m in module.modules() if m is not module]
        is_leaf = is_parametrized(module) or not any(
            p.requires_grad for m in below for p in m._parameters.values() if p is not None
        )
        if trained_keys or is_parametrized(module):
            if is_leaf:
                rules.append((position, name, run_fallback))
                covered.update(id(m) for m in below)
            else:
                loose = True
    columns = {id(p): column for column, p in enumerate(parameters.values())}
    structure = ModelStructure(
        inventory.mark,
        inventory.modules[1:],
        tuple(parameters),
        list(parameters.values()),
        columns,
        frozenset(columns),
        tuple(rules),
        tuple(stand_ins),
        convolutions,
    )
    return ModulePlan(structure, Learned(follows_everything=loose))


class Installed:
    """Runs a model's layers by their rules inside the context, and puts their own `forward` back whatever happens."""

    __slots__ = ("_before", "_everywhere", "_modules", "_plan", "_tape")

    def __init__(self, plan: ModulePlan, modules: list[nn.Module], tape: Tape) -> None:
        self._plan, self._modules, self._tape = plan, modules, tape
        self._before: list[tuple[nn.Module, Any]] = []
        self._everywhere: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        """Replaces the layers' `forward` and begins to follow operations where the plan needs it."""
        learned, tape = self._plan.learned, self._tape
        # What follows operations is made where some are followed, and in a pass for shapes, which asks what it saw.
        follows = learned.follows_everything or learned.follows_code or tape.shapes_only
        tape.follower = loose = LooseParameters(tape) if follows else None
        try:
            self._install(loose)
            if loose is not None and learned.follows_everything:
                self._everywhere = loose.follow_everything()
                self._everywhere.__enter__()
        except BaseException:
            self._restore_forwards()
            raise

    def _install(self, loose: LooseParameters | None) -> None:
        """Replaces `forward` of every module that the plan gives a rule or a stand-in, or follows, and notes what was
        there.
        """
        structure, learned, tape = self._plan.structure, self._plan.learned, self._tape
        places: dict[int, tuple[int, Rule]] = {}
        tape.rules = places
        # Every layer with a rule runs by it; what was there is noted so that it can be put back.
        for position, name, rule in structure.rules:
            module = self._modules[position]
            places[id(module)] = position, rule
            own = module.__dict__
            self._before.append((module, own.get("forward")))
            original = module.forward
            if rule is not run_fallback or position in learned.mapped_positions:
                own["forward"] = partial(_run_by_rule, tape, position, name, module, rule, original)
            elif loose is not None and learned.follows_code:
                own["forward"] = partial(_run_followed, tape, loose, position, name, original)
        # Stand-ins, such as pooling, replace layers without parameters, unless a user replaced their forward.
        for position, stand_in in structure.stand_ins:
            module = self._modules[position]
            if "forward" not in module.__dict__:
                self._before.append((module, None))
                module.__dict__["forward"] = partial(stand_in.run, tape, module, module.forward)

    def __exit__(self, *error: Any) -> None:
        """Stops following operations and puts the layers back."""
        try:
            if self._everywhere is not None:
                self._everywhere.__exit__(*error)
        finally:
            self._restore_forwards()

    def _restore_forwards(self) -> None:
        """Puts back the `forward` that each module had before the module plan was installed."""
        for module, forward in self._before:
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = forward


def _run_by_rule(
    tape: Tape, position: int, name: str, module: nn.Module, rule: Rule, original: Rule, *args: Any, **kwargs: Any
) -> Any:
    """Stands in for the `forward` of a module in the plan, and lets the tape run the module's rule."""
    return tape.run_layer(position, name, module, rule, original, args, kwargs)


def _run_followed(
    tape: Tape, loose: LooseParameters, position: int, name: str, original: Rule, *args: Any, **kwargs: Any
) -> Any:
    """Stands in for the `forward` of a module that the plan has no rule for, and whose operations are followed."""
    if tape.idle or tape.index != OUTSIDE or not torch.is_grad_enabled():
        return original(*args, **kwargs)
    outer, tape.name = tape.name, name
    try:
        with loose.follow_layer(position):
            return original(*args, **kwargs)
    finally:
        tape.name = outer


class _ObjectIdentity:
    """Key that is equal to another one of the same living object; it does not keep the object alive where possible."""

    __slots__ = ("_get", "_id")

    def __init__(self, thing: object) -> None:
        self._id = id(thing)
        self._get: Any = ref(thing) if type(thing).__weakrefoffset__ else lambda: thing

    def __hash__(self) -> int:
        return self._id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _ObjectIdentity) or self._id != other._id:
            return False
        mine = self._get()
        return mine is not None and mine is other._get()


def find_loss_identity(thing: object, depth: int = 3) -> Hashable:
    """Returns the identity of a loss, by which module plans are kept: a key that is equal for losses that are the same.

    Functions that are held by functions are followed to a depth, because they may hold each other; below it they are
    compared by identity, which may verify a loss once more than needed and never trusts one too many.
    """
    # Numbers and strings count by value.
    kind = type(thing)
    if kind in _VALUES:
        return kind, repr(thing) if kind is float else thing  # nan is not equal to itself
    if depth:
        # A function is its code, the module it looks names up in, and all that it holds.
        if isinstance(thing, FunctionType):
            code, names = _ObjectIdentity(thing.__code__), _ObjectIdentity(thing.__globals__)
            if thing.__closure__ is None and thing.__defaults__ is None and thing.__kwdefaults__ is None:
                return code, names
            held = [_cell_content(cell) for cell in thing.__closure__ or ()] + [*(thing.__defaults__ or ())]
            named = thing.__kwdefaults__ or {}
            return code, names, *[find_loss_identity(each, depth - 1) for each in (*held, *named, *named.values())]
        # A method is its function and its object; a partial or a tuple is what it contains.
        if isinstance(thing, MethodType):
            return find_loss_identity(thing.__func__, depth - 1), _ObjectIdentity(thing.__self__)
        if kind is partial:
            assert isinstance(thing, partial), "just asked"
            held = [thing.func, *thing.args, *thing.keywords, *thing.keywords.values()]
            return (partial, *[find_loss_identity(each, depth - 1) for each in held])
        if kind is tuple:
            assert isinstance(thing, tuple), "just asked"
            return (tuple, *[find_loss_identity(each, depth - 1) for each in thing])
    # Anything else is the same only if it is the same living object.
    return _ObjectIdentity(thing)


def _cell_content(cell: CellType) -> object:
    """Returns what a cell in the closure of a module plan's loss holds, for the loss's identity, or the cell itself
    while nothing is assigned to it.
    """
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return cell
