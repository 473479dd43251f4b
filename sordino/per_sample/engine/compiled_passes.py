"""Compiles the engine's forward and backward pass, recordings included, for batches of one shape.

The pass is traced once with tensors that have shapes and no values: layers run by their rules, the tape records, autograd
goes back to the recorded places. The trace is one graph of plain tensor operations. Its inputs are the batch, the
model's tensors and what is drawn at random; its outputs are the losses, what each use saved, and the gradient at each
use. The user's compiler (inductor, as a rule) makes one function of it. From its outputs the same parts are made as
from an eager pass, so norms and sums have the same formulas, and nothing that is recorded can get lost on the way.

A trace knows one course through the Python code. What could take another course is refused by name: a branch on a
tensor's value, a number drawn outside torch, a module that writes to itself. Modes, hooks and plain attributes of modules
are looked at before every pass, and a change is traced anew. What cannot be seen this way (a global variable) is found
by comparison: the compiled pass is compared with an eager one at its first use, at passes 2, 4, 8, … and at every 64th.

Random numbers are drawn outside the graph, in the order and shape of the eager pass: dropout has the same masks.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from sordino.per_sample.batch_structure import list_tensors
from sordino.per_sample.compiled_models import Compiler
from sordino.per_sample.engine.batch_result import KeepBudget, Result
from sordino.per_sample.engine.pruned_backward import PartsByColumn, require_recorded_uses
from sordino.per_sample.engine.session import Session
from sordino.per_sample.formulas.gradient_part import PlainArithmetic, list_autocast_kinds
from sordino.per_sample.recording.tape import Checkpointed, KeepingTape, Parts, Use
from sordino.refusal import Refusal
from sordino.rng.global_generators import GlobalState, TorchState

_MOST_GRAPHS = 8
"""Graphs of one run; a model that needs more changes with every step, and compiling it gains nothing."""
_COMPARED_EVERY = 64
_AGREE, _AGREE_LOW = 2e-3, 0.2
"""Relative differences of norms and sums that rounding may explain, in float32 and in half precision."""
_PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "forward")
_AS_BEFORE = "Pass the model as it was before torch.compile, which trains it eagerly."


@dataclass(frozen=True)
class _TracedUse:
    """What is known of one use from the trace: all but its tensors."""

    name: str
    parts: Parts
    rows: int
    bytes: int
    saved: int  # how many tensors it saved

    def with_tensors(self, saved: tuple[Tensor, ...], edge: Any) -> Use:
        """Returns the use of one pass, with the tensors that the pass computed for it."""
        return Use(self.name, edge, saved, tuple([t._version for t in saved]), self.parts, self.rows, self.bytes)


@dataclass(frozen=True)
class _RandomDraw:
    """A random operation of the trace that is made outside the compiled function."""

    operation: Callable[..., Tensor]
    arguments: tuple[Any, ...]  # after the tensor whose shape it takes, if it takes one
    options: dict[str, Any]
    like: Tensor | None  # has the shape, strides and type of what is drawn; no values

    def __call__(self) -> Tensor:
        """Draws from torch's generator, as the eager pass would."""
        if self.like is None:
            return self.operation(*self.arguments, **self.options)
        like = self.like
        room = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
        return self.operation(room, *self.arguments, **self.options)


@dataclass(eq=False)
class _Graph:
    """One traced and compiled pass."""

    function: Callable[..., Sequence[Tensor]]
    constants: list[Tensor]  # parameters, buffers and other tensors that the pass reads
    draws: list[_RandomDraw]
    uses: list[_TracedUse]
    passes: int = 0

    def run(self, session: Session, inputs: list[Tensor]) -> Result:
        """Runs the compiled passes over a batch, and returns the result that an eager pass would give, to rounding."""
        drawn = [draw() for draw in self.draws]
        constants = [constant.detach() for constant in self.constants]
        # The graph holds casts as operations of its own, so autocast must not add others.
        with torch.no_grad(), torch.autocast(inputs[0].device.type, enabled=False):
            losses, *tensors = self.function(*inputs, *constants, *drawn)
        gradients = tensors[len(tensors) - len(self.uses) :]
        # Hand each use its tensors, in the order of the trace.
        uses, place = [], 0
        for traced in self.uses:
            uses.append(traced.with_tensors(tuple(tensors[place : place + traced.saved]), None))
            place += traced.saved
        # From here on it is the eager engine: parts of the uses, joined by parameter, measured when asked for.
        plan, structure = session.plan, session.plan.structure
        columns = len(structure.parameters)
        parts = PartsByColumn(
            plan, KeepBudget.for_uses(session.options, uses), [None] * columns, [None] * columns, None
        )
        with PlainArithmetic(losses.device):
            for use, gradient in zip(uses, gradients, strict=True):
                parts.add_use(use, gradient, early=False)
            parts.join_uses()
        return Result(losses, parts.parts, structure.names, structure.parameters, parts.budget, plan.pool)


class CompiledPasses:
    """Runs the passes of one model over batches of one number of rows by compiled functions."""

    def __init__(self, model: nn.Module, rows: int, compiler: Compiler) -> None:
        self._model, self._rows, self._compiler = model, rows, compiler
        self._graphs: dict[Any, _Graph | None] = {}  # None: a pass that uses no parameter
        self._shapes: set[Any] = set()

    def apply_to(self, session: Session, b: int) -> bool:
        """Returns whether a pass over b samples is one of those that are compiled."""
        return b == self._rows and session.model is self._model

    def run(self, session: Session, batch: Any, initial_rng: TorchState) -> Result:
        """Runs the compiled pass over a batch, which is traced and compiled first where it is new.

        Raises:
            Refusal: the pass cannot be traced, its shapes change from batch to batch, or the compiled function gives
                other gradients than an eager pass.

        """
        inputs = list_tensors(batch)
        key = (_describe_inputs(batch, inputs), _describe_way(session), _describe_modules(session.modules))
        # A new shape or a changed model is compared with an eager pass first, which also learns what an eager pass
        # learns of its first batch.
        graph = self._graphs.get(key)
        passes = 1 if graph is None else graph.passes + 1
        eager = None
        if passes & (passes - 1) == 0 or passes % _COMPARED_EVERY == 0:
            eager = session.run_passes(batch, initial_rng=initial_rng)
            after = TorchState.capture()
            initial_rng.restore()
        if key not in self._graphs:
            self._refuse_many_graphs(key[0])
            self._graphs[key] = graph = self._compile(session, batch, inputs)
        if graph is None:
            return session.run_passes(batch, initial_rng=initial_rng)
        graph.passes = passes
        result = graph.run(session, inputs)
        if eager is not None:
            _refuse_difference(session, result, eager, same_draws=torch.equal(after.cpu, TorchState.capture().cpu))
        return result

    def _refuse_many_graphs(self, shape: Any) -> None:
        """Raises where batches of ever new shapes, or a model that changes at every step, would be compiled anew each
        time.
        """
        self._shapes.add(shape)
        if len(self._graphs) < _MOST_GRAPHS:
            return
        if len(self._shapes) > 1:
            raise Refusal(
                f"the batches of a compiled model had {len(self._shapes)} shapes, although lots are padded.\n"
                "Every shape is compiled anew, which takes longer than it gains.\n"
                f"Let the dataset or collate bring all records to one length. {_AS_BEFORE}"
            )
        raise Refusal(
            "modes, hooks or attributes of a compiled model change at every step.\n"
            "Every change is compiled anew, which takes longer than it gains.\n"
            f"Keep what changes in a buffer, as a tensor. {_AS_BEFORE}"
        )

    def _compile(self, session: Session, batch: Any, inputs: list[Tensor]) -> _Graph | None:
        """Returns the traced and compiled pass over batches like this one; None for a pass that uses no parameter."""
        traced, uses = _trace(session, batch, inputs)
        if not uses:
            return None
        constants = _make_constants_inputs(traced)
        draws = _make_draws_inputs(traced)
        _flatten_outputs(traced)
        # The compiler sees tensors without gradients: the backward pass is part of the graph already.
        rng = TorchState.capture()
        examples = [*inputs, *[constant.detach() for constant in constants], *[draw() for draw in draws]]
        try:
            with torch.no_grad():
                function = self._compiler.compile_graph(traced, examples)
        except Exception as error:
            raise Refusal(
                f"the compiler {self._compiler.name!r} failed on the passes of the model ({type(error).__name__}).\n"
                "Their graph, with all that is recorded, could not be made a function.\n"
                f"Try another backend of torch.compile. {_AS_BEFORE}"
            ) from error
        finally:
            rng.restore()
        return _Graph(function, constants, draws, uses)


def _describe_inputs(batch: Any, inputs: list[Tensor]) -> Any:
    """Returns the structure of a batch, and the shape, strides and type of each tensor in it."""
    return tree_flatten(batch)[1], tuple([(t.shape, t.stride(), t.dtype, t.device) for t in inputs])


def _describe_way(session: Session) -> Any:
    """Returns what, beside the modules, a compiled pass depends on: the plan by which rules run the layers, what it
    learned, and precision.
    """
    learned = session.plan.learned
    facts = learned.channels_last, learned.follows_everything, learned.follows_code, learned.mapped_positions
    kinds = list_autocast_kinds()
    autocast = tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds)
    # Held by the key itself, so that an identity is not given out again.
    return _Held(session.plan), _Held(learned.layouts), facts, autocast, torch.get_default_dtype()


class _Held:
    """A key that is equal to another one of the same object, and keeps the object alive."""

    __slots__ = ("_thing",)

    def __init__(self, thing: object) -> None:
        self._thing = thing

    def __hash__(self) -> int:
        return id(self._thing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self._thing is other._thing


def _describe_modules(modules: Iterable[nn.Module]) -> Any:
    """Returns what a compiled pass depends on in a model's modules: modes, plain attributes, hooks and buffers, which
    Python code may decide by.
    """
    found: list[Any] = []
    for module in modules:
        own = module.__dict__
        found += [(name, value) for name, value in own.items() if type(value) in _PLAIN]
        found += [(name, id(own[name]) if name == "forward" else tuple(own[name])) for name in _HOOKS if own.get(name)]
        found += [id(buffer) for buffer in module._buffers.values()]
    return tuple(found)


def _trace(session: Session, batch: Any, inputs: list[Tensor]) -> tuple[fx.GraphModule, list[_TracedUse]]:
    """Returns the graph of one recorded pass to be compiled, forward and backward, and the uses that its outputs belong
    to.
    """
    import torch._dynamo.config as dynamo  # by whoever compiled the model it was imported already
    from torch.fx.experimental.proxy_tensor import make_fx

    leaves, structure = tree_flatten(batch)
    b = inputs[0].shape[0]
    uses: list[_TracedUse] = []

    def run(*given: Tensor) -> Any:
        """Makes the eager pass that is traced to be compiled, and returns losses, what each use saved, and the gradient
        at each use.
        """
        rows = iter(given)
        own_batch = tree_unflatten([None if leaf is None else next(rows) for leaf in leaves], structure)
        tape = session.make_tape(KeepingTape, b)
        with torch.enable_grad(), session.record_on(tape):
            losses = session.compute_losses(own_batch, b)
        if not losses.requires_grad:
            return losses.detach(), [], []
        nodes = require_recorded_uses(losses, session.plan.structure.columns, session.plan.structure.names)
        recorded = [use for use in tape.uses if use.edge.node in nodes]
        gradients = torch.autograd.grad(losses, [use.edge for use in recorded], torch.ones_like(losses))
        # An input that was changed in place after it was recorded is refused, as in an eager pass.
        for use in recorded:
            use.refuse_changed_inputs()
            _refuse_hidden_tensors(use)
            uses.append(_TracedUse(use.name, use.parts, use.rows, use.bytes, len(use.saved)))
        saved = [list(use.saved) for use in recorded]
        tape.release_graph()
        return losses.detach(), saved, list(gradients)

    before, generators = _ModuleState(session.modules), GlobalState.capture()
    try:
        # Compiled modules inside the model run by their own code in a trace too, which dynamo would take for a mistake.
        with dynamo.patch(error_on_nested_fx_trace=False):
            traced = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    except (Refusal, Checkpointed):
        raise
    except Exception as error:
        raise _explain_failure(error) from error
    finally:
        changed = before.put_back()
        drew_outside = not generators.equals(GlobalState.capture())
        generators.restore()
    # A trace that leaves something behind would do so once, where the eager pass does it every time.
    if changed is not None:
        raise Refusal(
            f"{changed} is written by the forward pass of a compiled model.\n"
            "A compiled pass would write it once and never again.\n"
            f"Keep such a value in a buffer and change it in place, or leave it out. {_AS_BEFORE}"
        )
    if drew_outside:
        raise Refusal(
            "the model or the loss of a compiled run draws from Python's or numpy's generator, or seeds torch's.\n"
            "A compiled pass would draw once and keep the number.\n"
            f"Draw by torch, as torch.rand does. {_AS_BEFORE}"
        )
    return traced, uses


class _ModuleState:
    """The attributes and buffers of a model's modules at one moment."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._before = [(m, dict(m.__dict__), dict(m._buffers)) for m in modules]

    def put_back(self) -> str | None:
        """Puts back what tracing a pass to be compiled has changed in modules, and returns the name of the first such
        attribute; None if nothing has.
        """
        found = None
        for module, attributes, buffers in self._before:
            for kind, now, before in (("attribute", module.__dict__, attributes), ("buffer", module._buffers, buffers)):
                for name in [*now.keys(), *(before.keys() - now.keys())]:
                    if now.get(name) is before.get(name) and (name in now) == (name in before):
                        continue
                    found = found or f"{kind} {name!r} of {type(module).__name__}"
                    if name in before:
                        now[name] = before[name]
                    else:
                        del now[name]
        return found


def _refuse_hidden_tensors(use: Use) -> None:
    """Raises for a rule that keeps a tensor of its pass anywhere but in what it saved: a compiled pass would not renew
    it.
    """
    stack: list[Any] = [use.parts]
    while stack:
        thing = stack.pop()
        if isinstance(thing, FakeTensor):
            raise Refusal(
                f"layer '{use.name}': its rule keeps a tensor of the forward pass aside.\n"
                "A compiled pass cannot renew it for every batch.\n"
                f"{_AS_BEFORE}"
            )
        if isinstance(thing, FunctionType):
            stack += [cell.cell_contents for cell in thing.__closure__ or () if cell.cell_contents is not thing]
        elif isinstance(thing, partial):
            stack += [thing.func, *thing.args, *thing.keywords.values()]
        elif isinstance(thing, tuple | list):
            stack += thing


def _explain_failure(error: Exception) -> Refusal:
    """Returns the refusal of a pass that cannot be compiled, with the user's line at which the trace ended."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    own = [f for f in frames if "/sordino/" not in f.filename and "<" not in f.filename]
    where = f" at {own[-1].filename.rsplit('/', 1)[-1]}:{own[-1].lineno}" if own else ""
    kind = type(error).__name__
    # What depends on values of tensors is what dynamo calls a graph break.
    if any(word in kind for word in ("DataDependent", "DynamicOutputShape", "UnsupportedFakeTensor")):
        return Refusal(
            f"the code of a compiled model or loss asks for the value of a tensor{where}.\n"
            "A compiled pass takes one course for all batches, so another course would not be recorded.\n"
            f"Use torch.where in place of a branch, and no .item(). {_AS_BEFORE}"
        )
    return Refusal(
        f"the passes of a compiled model cannot be traced{where} ({kind}).\n"
        "Without a trace of the whole pass, not every use of a parameter would be recorded.\n"
        f"{_AS_BEFORE}"
    )


def _make_constants_inputs(traced: fx.GraphModule) -> list[Tensor]:
    """Turns the tensors in the graph of a compiled pass into further inputs, and returns them: parameters change at
    every step.
    """
    constants: list[Tensor] = []
    places: dict[int, fx.Node] = {}
    for node in list(traced.graph.nodes):
        if node.op != "get_attr":
            continue
        tensor = getattr(traced, node.target)
        if id(tensor) not in places:
            places[id(tensor)] = _add_input(traced, f"constant_{len(constants)}", node)
            constants.append(tensor)
        node.replace_all_uses_with(places[id(tensor)])
        traced.graph.erase_node(node)
    return constants


def _make_draws_inputs(traced: fx.GraphModule) -> list[_RandomDraw]:
    """Turns the random operations in the graph of a compiled pass into further inputs, and returns what draws them, in
    their order.

    Raises:
        Refusal: an operation whose random numbers depend on the values of a tensor.

    """
    draws: list[_RandomDraw] = []
    for node in list(traced.graph.nodes):
        if node.op != "call_function" or torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            continue
        if _has_no_dropout(node):
            continue
        # A draw may take the shape of one tensor, and no values.
        given, name = list(node.args), node.target._schema.name.rpartition("::")[2]
        takes_shape = bool(given) and isinstance(given[0], fx.Node)
        fresh = takes_shape and "empty" in str(given[0].target) and len(given[0].users) == 1
        rest = given[1:] if takes_shape else given
        plain = not any(isinstance(a, fx.Node) for a in tree_flatten([rest, node.kwargs])[0])
        if (
            not plain
            or not isinstance(node.meta.get("val"), Tensor)
            or (takes_shape and not fresh and "_like" not in name)
        ):
            raise Refusal(
                f"a compiled model or loss draws by {name}, whose numbers depend on the values of a tensor.\n"
                "Numbers are drawn outside the compiled pass, so that they are those of an eager one.\n"
                f"Draw with a fixed probability, as nn.Dropout does. {_AS_BEFORE}"
            )
        draws.append(
            _RandomDraw(node.target, tuple(rest), dict(node.kwargs), node.meta["val"] if takes_shape else None)
        )
        node.replace_all_uses_with(_add_input(traced, f"draw_{len(draws)}", node))
        traced.graph.erase_node(node)
    return draws


def _has_no_dropout(node: fx.Node) -> bool:
    """Returns whether an operation of a compiled pass with dropout inside it, as attention has, is called with a
    probability of 0.
    """
    for place, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.name == "dropout_p":
            given = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return bool(given == 0.0)
    return False


def _add_input(traced: fx.GraphModule, name: str, like: fx.Node) -> fx.Node:
    """Adds an input behind those that the graph of a compiled pass has, with what is known of the node that it
    replaces.
    """
    last = [node for node in traced.graph.nodes if node.op == "placeholder"][-1]
    with traced.graph.inserting_after(last):
        added = traced.graph.placeholder(name)
    added.meta = dict(like.meta)
    return added


def _flatten_outputs(traced: fx.GraphModule) -> None:
    """Makes the outputs of the graph of a compiled pass one flat tuple, which is what compilers expect."""
    output = traced.graph.output_node()
    output.args = (tuple(tree_flatten(output.args[0])[0]),)
    # A compiler may lay tensors out otherwise than the trace, and then a view of them needs a copy.
    for node in traced.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default
    traced.graph.set_codegen(fx.graph.CodeGen())
    traced.graph.eliminate_dead_code()
    traced.recompile()


def _refuse_difference(session: Session, compiled: Result, eager: Result, *, same_draws: bool) -> None:
    """Raises where the norms or a sum of a compiled pass are not those of the eager pass over the same batch."""
    ours, theirs = compiled.norms().squared.double(), eager.norms().squared.double()
    kinds = {p.dtype for p in session.plan.structure.parameters}
    low = torch.is_autocast_enabled(compiled.losses.device.type) or not kinds <= {torch.float32, torch.float64}
    tolerance = _AGREE_LOW if low else _AGREE
    # Rows that are not finite in both are left out: there is nothing to compare.
    finite = ours.isfinite().all(1) & theirs.isfinite().all(1)
    same_rows = bool((ours.isfinite().all(1) == theirs.isfinite().all(1)).all())
    overall = theirs[finite].sum(1, keepdim=True).sqrt()
    apart = ((ours[finite].sqrt() - theirs[finite].sqrt()).abs() > tolerance * (overall + _tiny(overall))).any()
    # A sum with weights of both signs, so that rows which were exchanged show.
    weights = torch.linspace(-1, 1, len(ours), device=ours.device).unsqueeze(1) * finite.unsqueeze(1)
    sums, expected = compiled.weighted_sum(weights.float()), eager.weighted_sum(weights.float())
    length = (overall * weights[finite].abs()).sum()
    off = sum((sums[name].double() - expected[name].double()).square().sum() for name in sums)
    if same_rows and same_draws and not bool(apart) and float(off) ** 0.5 <= tolerance * float(length) + 1e-12:
        return
    raise Refusal(
        "the compiled passes gave other gradients than the same passes run eagerly.\n"
        "Python code of the model or loss took another course than the one that was compiled: a global variable, a "
        "counter.\n"
        f"Keep what changes in a buffer of the model, as a tensor. {_AS_BEFORE}"
    )


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny
