"""Layer rules for function calls such as `F.linear(x, w)`, `x @ w`, `F.conv2d` and `table[ids]`.

Whoever calls such a function, it is a layer's computation and gets the layer's formulas; its weights may themselves be
computed from parameters (`F.linear(x, w)`, `x @ w`, `torch.addmm(b, x, w)`, `F.conv2d`, `F.layer_norm`, `F.embedding`,
`table[ids]`). Each rule returns None where the call is of another form; the call then runs under vmap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from sordino.per_sample.formulas.convolution_geometry import Geometry
from sordino.per_sample.formulas.gradient_part import GradientRows, Part
from sordino.per_sample.formulas.matrix_product import Matmul, run_linear_map
from sordino.per_sample.formulas.output_gradient import prepare_factors, sum_over_positions
from sordino.per_sample.layers.conv import record_convolution
from sordino.per_sample.layers.embedding import record_lookup
from sordino.per_sample.layers.linear import move_samples_first, record_affine
from sordino.per_sample.layers.norm import record_group_norm, record_layer_norm, record_rms_norm
from sordino.per_sample.recording.sample_layout import Layout


class Call(Protocol):
    """A function call, as `shared_tensor_uses.GivenArgument` holds it."""

    args: Any
    kwargs: Any
    find: Callable[[Any], Any]
    layouts: Any


def _find_sample_layout(tape: Any, call: Call, x: Any) -> Layout | None:
    """Returns where the input x of a functional layer has its samples if it is a batch, and None otherwise."""
    layout: Layout | None = call.layouts.get(id(x)) if isinstance(x, Tensor) else None
    if layout is not None:
        tape.check_length(x, layout)
    return layout


def _are_shared(call: Call, *weights: Any) -> bool:
    """Returns whether these tensors are the same for all samples, or not there."""
    return all(not isinstance(w, Tensor) or call.find(w) is not None or call.layouts[id(w)] is None for w in weights)


def _run_linear(tape: Any, call: Call) -> Tensor | None:
    """Applies the layer rule of the functional `F.linear`; returns None where the weight or the samples are not where
    it needs them.
    """
    # The rule needs a matrix that all samples share, and samples in another dimension than the features.
    x, weight, bias = _bind_arguments(call, ("input", None), ("weight", None), ("bias", None))
    where = _find_sample_layout(tape, call, x)
    if where is None or not _are_shared(call, weight, bias) or weight.dim() != 2 or where.dim == x.dim() - 1:
        return None
    return record_affine(tape, x, weight, bias, where.dim)


def _run_product(tape: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dim: int) -> Tensor:
    """Computes x w + b for w (d, p), as functional layers `F.linear` and `x @ w` do, and records the use."""
    lead, size = x.shape[:-1], tape.size
    added = None if bias is None else bias.detach()
    # The forward pass runs on the transposed weight, as a linear map.
    y = run_linear_map(x.reshape(-1, x.shape[-1]), tape.leaf(weight, x).t(), added, size, tape.workspace)

    def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
        """Returns the parts of weight and bias of a functional linear layer from the gradient at the output."""
        rows, parts_by_parameter = move_samples_first(g.view(*lead, -1), dim, size), dict[Tensor, Part | Tensor]()
        if tape.wants(weight):  # (d, p): the roles are exchanged
            inputs, rows = prepare_factors(move_samples_first(saved[0], dim, size), rows)
            parts_by_parameter[weight] = Matmul(rows, inputs, workspace=tape.workspace)
        if tape.wants(bias):
            assert bias is not None, "nothing is not wanted"
            parts_by_parameter[bias] = GradientRows(sum_over_positions(rows))
        return parts_by_parameter

    recorded: Tensor = tape.record(y, (x,), parts, rows=1)
    return recorded if x.dim() == 2 else recorded.view(*lead, -1)


def _run_matmul(tape: Any, call: Call) -> Tensor | None:
    """Applies the layer rule of the functional form `x @ w`; returns None where w is not a matrix shared by all
    samples.
    """
    x, weight = _bind_arguments(call, ("input", None), ("other", None))
    where = _find_sample_layout(tape, call, x)
    if where is None or not _are_shared(call, weight) or weight.dim() != 2 or x.dim() < 2 or where.dim == x.dim() - 1:
        return None
    return _run_product(tape, x, weight, None, where.dim)


def _run_addmm(tape: Any, call: Call) -> Tensor | None:
    """Applies the layer rule of the functional `torch.addmm(b, x, w)`; returns None with other factors than 1 or a bias
    that is no vector.
    """
    bias, x, weight, beta, alpha = _bind_arguments(
        call, ("input", None), ("mat1", None), ("mat2", None), ("beta", 1), ("alpha", 1)
    )
    where = _find_sample_layout(tape, call, x)
    # Other factors would scale the gradients as well, which the formula of the product does not.
    if where is None or where.dim or not _are_shared(call, bias, weight) or (beta, alpha) != (1, 1) or bias.dim() != 1:
        return None
    return _run_product(tape, x, weight, bias, 0)


def _make_convolution_rule(rank: int) -> Callable[[Any, Call], Tensor | None]:
    """Returns the layer rule of the functional `F.conv1d`, `F.conv2d` or `F.conv3d`, by the number of spatial
    dimensions.
    """

    def run_convolution(tape: Any, call: Call) -> Tensor | None:
        """Applies the layer rule of a functional convolution; returns None for calls it does not cover, such as
        `padding="same"`.
        """
        x, weight, bias, *options = _bind_arguments(
            call,
            ("input", None),
            ("weight", None),
            ("bias", None),
            ("stride", 1),
            ("padding", 0),
            ("dilation", 1),
            ("groups", 1),
        )
        # A rule applies if the batch is the first dimension and the weight is shared by all samples; other uses are
        # followed operation by operation.
        where = _find_sample_layout(tape, call, x)
        if where is None or where.dim or x.dim() != rank + 2 or not _are_shared(call, weight, bias):
            return None
        # Bring the options into the form of a layer's; a padding that depends on the input is left to vmap.
        stride, padding, dilation = (_per_dimension(n, rank) for n in options[:3])
        if padding is None or stride is None or dilation is None:
            return None
        geometry = Geometry(tuple(weight.shape[2:]), stride, padding, dilation, options[3])
        return record_convolution(tape, x, weight, bias, geometry, where.rows)

    return run_convolution


def _per_dimension(number: Any, rank: int) -> tuple[int, ...] | None:
    """Returns an argument of a functional convolution as one number for each spatial dimension; None for a padding that
    is not known before the call.
    """
    if isinstance(number, str):
        return (0,) * rank if number == "valid" else None
    if isinstance(number, int):
        return (number,) * rank
    return tuple(number) * rank if len(number) == 1 else tuple(number)


def _run_layer_norm(tape: Any, call: Call) -> Tensor | None:
    """Applies the layer rule of the functional `F.layer_norm`; returns None where the samples' dimension is normalised
    too.
    """
    x, shape, weight, bias, eps = _bind_arguments(
        call, ("input", None), ("normalized_shape", None), ("weight", None), ("bias", None), ("eps", 1e-5)
    )
    where = _find_sample_layout(tape, call, x)
    # Normalising over the samples would mix them, and no record would have a gradient of its own.
    if where is None or not _are_shared(call, weight, bias) or where.dim >= x.dim() - len(shape):
        return None
    return record_layer_norm(tape, x, where.dim, torch.Size(shape), weight, bias, eps)


def _run_rms_norm(tape: Any, call: Call) -> Tensor | None:
    """Applies the layer rule of the functional `F.rms_norm`; returns None where the samples' dimension is normalised
    too.
    """
    x, shape, weight, eps = _bind_arguments(
        call, ("input", None), ("normalized_shape", None), ("weight", None), ("eps", None)
    )
    where = _find_sample_layout(tape, call, x)
    if where is None or not _are_shared(call, weight) or where.dim >= x.dim() - len(shape):
        return None
    return record_rms_norm(tape, x, where.dim, torch.Size(shape), weight, eps)


def _run_group_norm(tape: Any, call: Call) -> Tensor | None:
    """Applies the layer rule of the functional `F.group_norm`; returns None where samples are not in the first
    dimension.
    """
    x, groups, weight, bias, eps = _bind_arguments(
        call, ("input", None), ("num_groups", None), ("weight", None), ("bias", None), ("eps", 1e-5)
    )
    where = _find_sample_layout(tape, call, x)
    if where is None or where.dim or not _are_shared(call, weight, bias):
        return None
    return record_group_norm(tape, x, groups, weight, bias, eps, where.rows)


def _run_embedding(tape: Any, call: Call) -> Tensor | None:
    """Applies the layer rule of the functional `F.embedding`; returns None for options that change the table or couple
    the samples.
    """
    ids, weight, padding, longest, _, by_frequency = _bind_arguments(
        call,
        ("input", None),
        ("weight", None),
        ("padding_idx", None),
        ("max_norm", None),
        ("norm_type", 2.0),
        ("scale_grad_by_freq", False),
    )
    # A table that is renormalised, or gradients scaled by counts over the batch, would couple the samples.
    where = _find_sample_layout(tape, call, ids)
    if where is None or longest is not None or by_frequency or call.find(weight) is None:
        return None
    return record_lookup(tape, weight, None if padding is None else padding % len(weight), ids, where.dim)


def _run_table_lookup(tape: Any, call: Call) -> Tensor | None:
    """Applies the layer rule of the functional form `table[ids]`; returns None where the table is no parameter or the
    ids are no batch.
    """
    weight, ids = call.args
    where = _find_sample_layout(tape, call, ids)
    if where is None or ids.dtype != torch.long or call.find(weight) is None or weight.dim() != 2:
        return None
    # Indexing counts negative ids from the end of the table, which the formulas do not.
    return record_lookup(tape, weight, None, ids % len(weight), where.dim)


def _bind_arguments(call: Call, *names: tuple[str, Any]) -> list[Any]:
    """Returns the arguments of a functional layer's call in order, each by place, by name or by default."""
    return [
        call.args[j] if j < len(call.args) else call.kwargs.get(name, default)
        for j, (name, default) in enumerate(names)
    ]


FUNCTIONS: dict[Any, Callable[[Any, Any], Tensor | None]] = {
    F.linear: _run_linear,
    torch.matmul: _run_matmul,
    Tensor.matmul: _run_matmul,
    Tensor.__matmul__: _run_matmul,
    torch.mm: _run_matmul,
    Tensor.mm: _run_matmul,
    torch.addmm: _run_addmm,
    F.conv1d: _make_convolution_rule(1),
    F.conv2d: _make_convolution_rule(2),
    F.conv3d: _make_convolution_rule(3),
    F.layer_norm: _run_layer_norm,
    F.rms_norm: _run_rms_norm,
    F.group_norm: _run_group_norm,
    F.embedding: _run_embedding,
    Tensor.__getitem__: _run_table_lookup,
}
