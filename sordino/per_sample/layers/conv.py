"""Rules for convolutions and transposed convolutions, with every padding and memory format."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sordino.per_sample.formulas.compound_parts import Window
from sordino.per_sample.formulas.convolution_geometry import Geometry, find_live_taps
from sordino.per_sample.formulas.convolution_pass import convolve
from sordino.per_sample.formulas.convolution_weight import Convolution
from sordino.per_sample.formulas.gradient_part import Part, lift_precision
from sordino.per_sample.formulas.parameter_product import ParameterProduct, sum_products_by_row
from sordino.per_sample.layers.layer_registry import rule
from sordino.per_sample.recording.tape import Tape


def _to_channels_last(x: Tensor) -> Tensor:
    """Returns the input x of a convolution with channels last in memory, as the rule of nn.Conv2d wants it, by a copy
    where its strides do not say so.

    With one channel both formats look alike, and the choice would silently be lost.
    """
    if x.shape[1] == 1 and x.stride(1) != 1:
        return x.clone(memory_format=torch.channels_last)
    return x.contiguous(memory_format=torch.channels_last)


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def run_convolution(tape: Tape, module: nn.Conv2d, input: Tensor) -> Tensor:
    """Runs the rule of a convolution layer as torch does; padding other than zeros comes first, as its own operation."""
    tape.batch_dim(input, only=0)
    x, weight, bias, rank = input, module.weight, module.bias, len(module.kernel_size)
    # Every padding becomes a number of zeros, or an operation before the convolution.
    padding = module.padding
    if module.padding_mode != "zeros":
        x = nn.functional.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
        padding = (0,) * rank
    elif padding == "valid":
        padding = (0,) * rank
    elif isinstance(padding, str):  # "same", possibly uneven
        x = nn.functional.pad(x, module._reversed_padding_repeated_twice)
        padding = (0,) * rank
    geometry = Geometry(
        tuple(module.kernel_size), tuple(module.stride), tuple(padding), tuple(module.dilation), module.groups
    )
    return record_convolution(tape, x, weight, bias, geometry)


def record_convolution(
    tape: Tape, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, rows: int | None = None
) -> Tensor:
    """Records a convolution for the rules of nn.Conv1d, nn.Conv2d and nn.Conv3d; `rows` of x belong to one sample, by
    default as its layout says.
    """
    rank = len(geometry.stride)
    w, taps = tape.leaf(weight, x), None
    # Taps that read nothing but padding are left out; their gradient is zero.
    live_taps = find_live_taps(geometry, tuple(x.shape[2:]))
    if live_taps is not None:
        taps, geometry = live_taps
        w = w[taps]
    b = None if bias is None else bias.detach()
    # Run the convolution in the memory format of the plan.
    if tape.channels_last and rank == 2 and not tape.shapes_only:
        x = _to_channels_last(x)
        w = _to_channels_last(w.detach()).requires_grad_(w.requires_grad)
        y = convolve(x, w, b, geometry, tape.workspace)
    else:
        plain = (torch.conv1d, torch.conv2d, torch.conv3d)[rank - 1]
        y = plain(x, w, b, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)

    def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
        """Returns the parts of weight and bias of a convolution layer, nn.Conv1d to nn.Conv3d, from the gradient at the
        output.
        """
        found: dict[Tensor, Part | Tensor] = {}
        g32 = lift_precision(g)
        if tape.wants(weight):
            own = Convolution(lift_precision(saved[0], g), g32, geometry, tape.workspace)
            found[weight] = own if taps is None else Window(own, taps, weight.shape)
        if bias is not None and tape.wants(bias):
            found[bias] = g32.flatten(2).sum(2)
        return found

    product = ParameterProduct((weight, bias), partial(sum_products_by_row, tape.workspace))
    return tape.record(y, (x,), parts, rows=rows, product=product)


@rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def run_transposed_convolution(
    tape: Tape,
    module: nn.ConvTranspose2d,
    input: Tensor,
    output_size: list[int] | None = None,
) -> Tensor:
    """Runs the rule of a transposed convolution layer, which is a convolution with input and output gradient exchanged."""
    tape.batch_dim(input, only=0)
    rank = len(module.kernel_size)
    weight, bias = module.weight, module.bias
    # Run it as torch does, on a detached weight.
    padding: Any = module.padding  # a transposed convolution knows no other than numbers
    extra = module._output_padding(
        input,
        output_size,
        list(module.stride),
        list(padding),
        list(module.kernel_size),
        rank,
        list(module.dilation),
    )
    # The weight of a transposed convolution has the gradient of a convolution's weight with input and output exchanged.
    geometry = Geometry(
        tuple(module.kernel_size), tuple(module.stride), tuple(padding), tuple(module.dilation), module.groups
    )
    convolve = (nn.functional.conv_transpose1d, nn.functional.conv_transpose2d, nn.functional.conv_transpose3d)[
        rank - 1
    ]
    b = None if bias is None else bias.detach()
    y = convolve(
        input,
        tape.leaf(weight, input),
        b,
        geometry.stride,
        geometry.padding,
        tuple(extra),
        module.groups,
        geometry.dilation,
    )

    def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
        """Returns the parts of weight and bias of nn.ConvTranspose1d to 3d, with the roles of input and output gradient
        exchanged.
        """
        found: dict[Tensor, Part | Tensor] = {}
        g32 = lift_precision(g)
        if tape.wants(weight):
            found[weight] = Convolution(g32, lift_precision(saved[0], g), geometry, tape.workspace)
        if bias is not None and tape.wants(bias):
            found[bias] = g32.flatten(2).sum(2)
        return found

    return tape.record(
        y, (input,), parts, product=ParameterProduct((weight, bias), partial(sum_products_by_row, tape.workspace))
    )
