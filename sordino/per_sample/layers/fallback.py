"""Runs a layer without a rule one sample at a time, under vmap or in a loop.

It is for a leaf whose code cannot be followed operation by operation: its vector-Jacobian product is computed for each
sample under `torch.func.vmap`, and where torch cannot do that, as in code that looks at values (the experts of a
mixture), in a loop.

The leaf's own code runs on one sample's rows, so whatever it computes is right by construction; the price is a gradient
per sample in memory and whatever vmap or the loop costs. A leaf that draws random numbers would draw others when it is
run again, so it is run with the same ones, and that graph differentiated once for each sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.utils._pytree import tree_flatten, tree_unflatten

from sordino.distributed.layer_by_layer import keep_gathered
from sordino.per_sample.formulas.gradient_part import Part, lift_precision
from sordino.per_sample.recording.sample_layout import Layout
from sordino.per_sample.recording.tape import Tape
from sordino.refusal import Refusal
from sordino.rng.global_generators import GlobalState, preserve_generators

_CHUNK = 16  # samples per vmap


def find_parameter_slots(module: nn.Module) -> dict[str, tuple[nn.Module, str, nn.Parameter]]:
    """Returns where each trainable parameter of a module that runs by the fallback sits: its owner, its key and itself,
    by name.
    """
    found = {}
    for prefix, owner in module.named_modules():
        for key, p in owner._parameters.items():
            if p is not None and p.requires_grad:
                found[f"{prefix}.{key}" if prefix else key] = (owner, key, p)
    return found


@contextmanager
def swap_parameters(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Puts other tensors in the places of a fallback layer's parameters, for as long as the context lasts."""
    places = {name: place for name, place in find_parameter_slots(module).items() if name in tensors}
    try:
        for name, (owner, key, _) in places.items():
            owner._parameters[key] = tensors[name]  # type: ignore[assignment]
        yield
    finally:
        for owner, key, p in places.values():
            owner._parameters[key] = p


def _capture_autocast(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Returns contexts in which autocast is what it is now: a layer of the fallback must be differentiated as it
    computed.
    """
    kind = device.type
    now = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
    return lambda: torch.autocast(kind, *now, cache_enabled=False)  # a cast that is remembered would leave the vmap


def find_spectral_norms(module: nn.Module) -> list[nn.Module]:
    """Returns the spectral normalisations whose vectors a forward pass moves on."""
    return [m for m in module.modules() if isinstance(m, _SpectralNorm) and m.training]


@contextmanager
def hold_vectors(held: Sequence[tuple[nn.Module, Mapping[str, Tensor]]]) -> Iterator[None]:
    """Gives spectral normalisations of a fallback layer the vectors that the forward pass ended with, which they do not
    move on.
    """
    before = [dict(m._buffers) for m, _ in held]
    try:
        for m, vectors in held:
            m._buffers.update(vectors)
            m.training = False
        yield
    finally:
        for (m, _), buffers in zip(held, before, strict=True):
            m._buffers.update(buffers)
            m.training = True


@dataclass(frozen=True)
class _RandomLeaf:
    """Holds all that is needed to run a leaf that drew random numbers again with the same ones."""

    module: nn.Module
    original: Callable[..., Any]
    wanted: dict[str, nn.Parameter]
    began: GlobalState
    spec: Any
    inputs: list[Any]
    layouts: dict[int, Layout | None]  # by the place of a tensor among the inputs: where it has its samples

    def run_again(self, only: int | None = None) -> tuple[list[Any], list[Tensor]]:
        """Runs a random fallback layer again and returns outputs and parameters on a graph of their own; with `only`,
        every sample is that one.
        """
        # Detached copies of parameters and inputs; with `only`, one sample's rows stand in for all others.
        own = {name: p.detach().requires_grad_() for name, p in self.wanted.items()}
        given = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in self.inputs]
        for j, at in self.layouts.items():
            if only is not None and at is not None:
                each = given[j].unflatten(at.dim, (-1, at.rows))
                given[j] = each.narrow(at.dim, only, 1).expand_as(each).flatten(at.dim, at.dim + 1)
        both: Any = tree_unflatten(given, self.spec)
        # Run the leaf with the same random numbers, and leave the generators as they were.
        # Tensors are kept as they are, in a checkpoint too.
        plainly = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
        with preserve_generators(), swap_parameters(self.module, own), plainly, torch.enable_grad():
            self.began.restore()
            return tree_flatten(self.original(*both[0], **both[1]))[0], list(own.values())

    def parts(self, number: int, at: Layout, saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
        """Returns the gradient of each sample's rows of an output, one after the other on one graph."""
        with keep_gathered(self.wanted.values()):
            return self._differentiate_per_sample(number, at, g)

    def _differentiate_per_sample(self, number: int, at: Layout, g: Tensor) -> dict[Tensor, Part | Tensor]:
        """Differentiates the output of a random fallback layer once per sample, with the other samples' gradients set
        to zero.
        """
        # The layer is run again with the random numbers of the first time.
        outputs, own = self.run_again()
        rows = []
        for i in range(g.shape[at.dim] // at.rows):
            mine = torch.zeros_like(g)
            span = at.dim, i * at.rows, at.rows
            mine.narrow(*span).copy_(g.narrow(*span))
            found = torch.autograd.grad(outputs[number], own, mine, retain_graph=True, allow_unused=True)
            # If another sample's value is not finite, 0 · nan spoils this one's gradient: run it without the others.
            if not all(t is None or bool(t.isfinite().all()) for t in found):  # 0 · nan of another: it has no other now
                others, theirs = self.run_again(only=i)
                found = torch.autograd.grad(others[number], theirs, mine, allow_unused=True)
            rows.append([torch.zeros_like(p) if t is None else t for t, p in zip(found, own, strict=True)])
        return {
            p: lift_precision(torch.stack(each))
            for p, each in zip(self.wanted.values(), zip(*rows, strict=True), strict=True)
        }


def _split_samples(tensors: Sequence[Tensor], layouts: Sequence[Layout | None], size: int) -> list[Tensor]:
    """Returns each tensor of a fallback layer with its samples first, and one sample's rows where they were; others as
    they are.
    """
    return [
        t if at is None else t.unflatten(at.dim, (size, at.rows)).movedim(at.dim, 0)
        for t, at in zip(tensors, layouts, strict=True)
    ]


def _gradients_of_samples(
    gradient: Callable[..., dict[str, Tensor]], shared: Sequence[bool], given: Sequence[Tensor], size: int
) -> dict[str, Tensor]:
    """Returns the fallback's gradients of all samples, under vmap, or one after the other."""
    dims = tuple(None if alone else 0 for alone in shared)
    # vmap over all samples at once; where the layer's code forbids it, one after the other.
    try:
        with warnings.catch_warnings():  # operations that vmap runs one by one are slow, not wrong
            warnings.filterwarnings("ignore", message="There is a performance drop")
            vectorised = torch.func.vmap(gradient, in_dims=dims, randomness="error", chunk_size=_CHUNK)
            found: dict[str, Tensor] = vectorised(*given)
            return found
    except RuntimeError:  # code that looks at values, or an operation that vmap does not know
        rows = [gradient(*[t if alone else t[i] for t, alone in zip(given, shared, strict=True)]) for i in range(size)]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def run_fallback(tape: Tape, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Runs the own forward of a layer without a rule, as the fallback, and records how to get per-sample gradients from
    runs on one sample each.
    """
    original, size = tape.original, tape.size
    # Find the parameters that are wanted, and where each input has its samples.
    wanted = {name: p for name, (_, _, p) in find_parameter_slots(module).items() if tape.wants(p)}
    inputs, spec = tree_flatten((args, kwargs))
    where = [j for j, leaf in enumerate(inputs) if isinstance(leaf, Tensor)]
    layouts = [tape.find_argument_layout(("in", j), inputs[j]) for j in where]
    inputs_need_no_grad = not any(inputs[j].requires_grad for j in where)
    # Run the leaf once on the whole batch, and note whether it drew random numbers.
    began = GlobalState.capture()
    vectors = find_spectral_norms(module)
    with swap_parameters(
        module, {name: tape.leaf(p, None if inputs_need_no_grad else inputs[where[0]]) for name, p in wanted.items()}
    ):
        output = original(*args, **kwargs)
    random_leaf: _RandomLeaf | None = None
    if not (tape.shapes_only or began.equals(GlobalState.capture())):
        random_leaf = _RandomLeaf(module, original, wanted, began, spec, inputs, dict(zip(where, layouts, strict=True)))
    # Keep the vectors of spectral normalisations, so that later runs use the same.
    held = [(m, {key: b.clone() for key, b in m._buffers.items() if b is not None}) for m in vectors]
    outputs, outspec = tree_flatten(output)
    name, kind = tape.name, type(module).__name__
    if not all(isinstance(y, Tensor) for y in outputs):
        raise Refusal(
            f"layer '{name}': {kind} returns something that is not a tensor.\n"
            "Gradients are taken at tensors.\n"
            "Write a rule for it (sordino.per_sample.layers.rule)."
        )
    # Record each output that has samples; one that all samples share must not depend on parameters.
    recorded = []
    for number, y in enumerate(outputs):
        at = tape.find_argument_layout(("out", number), y)
        if at is None and y.is_floating_point() and y.requires_grad:
            raise Refusal(
                f"layer '{name}': {kind} returns a tensor without a batch dimension.\n"
                "Without one row per sample its gradients cannot be told apart.\n"
                "Expand it."
            )
        if not y.is_floating_point() or at is None:
            recorded.append(y)
            continue
        precision = _capture_autocast(y.device)
        y = y.clone() if y._is_view() or any(y is leaf for leaf in inputs) else y
        if random_leaf is not None:
            recorded.append(
                tape.record(y, tuple(inputs[j] for j in where), partial(random_leaf.parts, number, at), rows=1)
            )
            continue

        def parts(
            saved: tuple[Tensor, ...],
            g: Tensor,
            number: int = number,
            at: Layout = at,
            precision: Callable[[], AbstractContextManager[Any]] = precision,
        ) -> dict[Tensor, Part | Tensor]:
            """Returns the parts of all parameters of a fallback layer from the gradient at one output."""

            def gradient(one: Tensor, *own: Tensor) -> dict[str, Tensor]:
                """Returns a fallback layer's gradients of one sample, from its rows of the output's gradient and of the
                inputs.
                """
                leaves = list(inputs)
                for j, tensor in zip(where, own, strict=True):
                    leaves[j] = tensor
                both: Any = tree_unflatten(leaves, spec)
                given, named = both[0], both[1]

                def run(values: dict[str, Tensor]) -> Tensor:
                    """Runs the fallback layer on one sample with the given parameters."""
                    with swap_parameters(module, values), hold_vectors(held), precision():
                        out: Tensor = tree_flatten(original(*given, **named))[0][number]
                    return out

                pull: Any = torch.func.vjp(run, {n: p.detach() for n, p in wanted.items()})[1]
                found: dict[str, Tensor] = pull(one)[0]
                return found

            # Bring the samples to the front, and run the leaf's vector-Jacobian product for each.
            given = _split_samples((g, *saved), (at, *layouts), size)
            shared = [layout is None for layout in (at, *layouts)]
            try:
                with keep_gathered(module.parameters()):
                    rows = _gradients_of_samples(gradient, shared, given, size)
            except RuntimeError as error:
                raise Refusal(
                    f"layer '{name}': {kind} has no rule and cannot be run one sample at a time ({error}).\n"
                    "Its parameters would have no per-sample gradients.\n"
                    "Write a rule for it (sordino.per_sample.layers.rule), move its own parameters into a small "
                    "module, or use Loop()."
                ) from error
            return {wanted[n]: lift_precision(t) for n, t in rows.items()}

        recorded.append(tape.record(y, tuple(inputs[j] for j in where), parts, rows=1))
    return tree_unflatten(recorded, outspec)
