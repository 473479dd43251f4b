"""Rules for layers that scale each feature: normalisations, BatchNorm in evaluation, and PReLU.

y = γ x̂ + β with x̂ the normalised input, so sample i's gradients are Σ_t x̂·g for γ and Σ_t g for β: small enough to
be written out.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from sordino.per_sample.formulas.gradient_part import Part, is_autocasting, lift_precision
from sordino.per_sample.formulas.workspace import Workspace
from sordino.per_sample.layers.layer_registry import rule
from sordino.per_sample.recording.tape import Tape
from sordino.refusal import Refusal

_WARM = 1 << 18
"""Elements worked on at once: they should stay in the cache."""


def _detach_or_none(p: Tensor | None) -> Tensor | None:
    """Returns a parameter detached from the graph, or None."""
    return None if p is None else p.detach()


def _as_tuple(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Returns its arguments as a tuple."""
    return tensors


def _sum_over_positions(x: Tensor, size: int, shape: torch.Size) -> Tensor:
    """Returns (B, …, *shape) summed to (B, *shape)."""
    rows = x.reshape(size, -1, *shape)
    return rows[:, 0] if rows.shape[1] == 1 else rows.sum(1)


def _move_samples_first(x: Tensor, dim: int) -> Tensor:
    """Returns x with the samples' dimension first."""
    return x.movedim(dim, 0) if dim else x


@rule(nn.LayerNorm)
def run_layer_norm(tape: Tape, module: nn.LayerNorm, input: Tensor) -> Tensor:
    """Normalises over the last dimensions."""
    dim, shape = tape.batch_dim(input), torch.Size(module.normalized_shape)
    return record_layer_norm(tape, input, dim, shape, module.weight, module.bias, module.eps)


def record_layer_norm(
    tape: Tape, input: Tensor, dim: int, shape: torch.Size, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Computes the norm layer `F.layer_norm` and records it."""
    size = tape.size
    # The statistics are kept where the operation returns them, so that the backward pass need not compute them again.
    if is_autocasting(input.device):  # autocast knows layer_norm, not the operation below it
        y, kept = (
            nn.functional.layer_norm(input, list(shape), _detach_or_none(weight), _detach_or_none(bias), eps),
            _as_tuple(input),
        )
    else:
        y, mean, scale = torch.native_layer_norm(
            input, list(shape), _detach_or_none(weight), _detach_or_none(bias), eps
        )
        kept = (input, mean, scale)

    def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
        """Returns the parts of a LayerNorm's γ and β, from the statistics of the forward pass where it kept them."""
        x = lift_precision(saved[0])
        mu, r = saved[1:] if len(saved) > 1 else torch.native_layer_norm(x, list(shape), None, None, eps)[1:]
        g32, found = lift_precision(g), dict[Tensor, Part | Tensor]()
        # ∂ℓ/∂γ = Σ_t x̂_t g_t and ∂ℓ/∂β = Σ_t g_t, over the positions of each sample.
        if weight is not None and tape.wants(weight):
            found[weight] = _sum_over_positions(_move_samples_first((x - mu).mul_(r).mul_(g32), dim), size, shape)
        if bias is not None and tape.wants(bias):
            found[bias] = _sum_over_positions(_move_samples_first(g32, dim), size, shape)
        return found

    return tape.record(y, kept, parts, rows=1)


@rule(nn.RMSNorm)
def run_rms_norm(tape: Tape, module: nn.RMSNorm, input: Tensor) -> Tensor:
    """Divides by the root mean square over the last dimensions."""
    dim = tape.batch_dim(input)
    return record_rms_norm(tape, input, dim, torch.Size(module.normalized_shape), module.weight, module.eps)


def record_rms_norm(
    tape: Tape, input: Tensor, dim: int, shape: torch.Size, weight: Tensor, eps: float | None
) -> Tensor:
    """Computes the norm layer `F.rms_norm` and records it."""
    size = tape.size
    y = nn.functional.rms_norm(input, list(shape), _detach_or_none(weight), eps)

    def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
        """Returns the part of the weight."""
        unit = lift_precision(nn.functional.rms_norm(saved[0], list(shape), None, eps))
        return {weight: _sum_over_positions(_move_samples_first(unit * lift_precision(g), dim), size, shape)}

    # The product with the weight is part of the same operation, whose backward pass may need its output unchanged; the
    # tape marks what it records as changed, so where there is no gradient path yet it gets a copy.
    return tape.record(y if y.requires_grad else y.clone(), (input,), parts, rows=1)


def _sum_per_channel(x: Tensor) -> Tensor:
    """Returns (B, C, …) summed to (B, C)."""
    return x if x.dim() == 2 else x.flatten(2).sum(2)


def _correlate_with_gradient(x: Tensor, mean: Tensor, g: Tensor, groups: int, workspace: Workspace) -> Tensor:
    """Returns Σ_t (x − mean) g per channel of a norm layer, (B, C), a few samples at a time so that they stay in the
    cache.
    """
    n, c = x.shape[:2]
    # On a device there is no cache to stay in, and each operation is a launch.
    if not x.is_cpu and x.is_contiguous():
        centred = x.view(n, groups, -1) - mean.view(n, groups, 1)
        return _sum_per_channel(centred.view(x.shape).mul_(g))
    spread = (n, c, *[1] * (x.dim() - 2))
    # The mean of a group is repeated for each of its channels.
    centre = mean.repeat_interleave(c // groups, 1).view(spread)
    step = max(1, _WARM // max(1, x[:1].numel()))
    found = x.new_empty((n, c))
    for i in range(0, n, step):
        inputs = x[i : i + step]
        dense = _is_dense(inputs)
        room = (
            workspace.allocate_temporary((inputs.numel(),), inputs).as_strided(inputs.shape, inputs.stride())
            if dense
            else torch.empty_like(inputs)
        )
        torch.sub(inputs, centre[i : i + step], out=room)
        found[i : i + step] = _sum_per_channel(room.mul_(g[i : i + step]))
    return found


def _is_dense(x: Tensor) -> bool:
    """Returns whether a tensor fills its memory without gaps, in either memory format."""
    return x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))


@rule(nn.GroupNorm)
def run_group_norm(tape: Tape, module: nn.GroupNorm, input: Tensor) -> Tensor:
    """Normalises over the channels of a group and all positions."""
    tape.batch_dim(input, only=0)
    return record_group_norm(tape, input, module.num_groups, module.weight, module.bias, module.eps)


def record_group_norm(
    tape: Tape,
    input: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rows: int | None = None,
) -> Tensor:
    """Computes the norm layer `F.group_norm` and records it; `rows` of the input belong to one sample, by default as
    its layout says.
    """
    n, c, positions = input.shape[0], input.shape[1], prod(input.shape[2:])
    x = input if input.is_contiguous() or input.dim() == 4 else input.contiguous()
    # Under autocast only the function itself is known; otherwise its statistics are kept for the gradients.
    if is_autocasting(x.device):
        y, kept = nn.functional.group_norm(x, groups, _detach_or_none(weight), _detach_or_none(bias), eps), _as_tuple(x)
    else:
        y, mean, scale = torch.native_group_norm(
            x, _detach_or_none(weight), _detach_or_none(bias), n, c, positions, groups, eps
        )
        kept = (x, mean, scale)

    def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
        """Returns the parts of a GroupNorm's γ and β, from the statistics of the forward pass where it kept them."""
        held = lift_precision(saved[0])
        mu, r = (
            saved[1:] if len(saved) > 1 else torch.native_group_norm(held, None, None, n, c, positions, groups, eps)[1:]
        )
        g32, found = lift_precision(g), dict[Tensor, Part | Tensor]()
        if weight is not None and tape.wants(weight):
            # x̂ = (x − μ) r with one r for each sample and group, so r is multiplied in after the sum over positions.
            products = _correlate_with_gradient(held, mu, g32, groups, tape.workspace)  # (n, C)
            if held.is_cpu:
                found[weight] = products * r.repeat_interleave(c // groups, 1)
            else:  # the same without a copy of r
                found[weight] = (products.view(n, groups, -1) * r.view(n, groups, 1)).view(n, c)
        if bias is not None and tape.wants(bias):
            found[bias] = _sum_per_channel(g32)
        return found

    return tape.record(y, kept, parts, rows=rows)


def _record_channel_affine(tape: Tape, module: nn.modules.batchnorm._NormBase, unit: Tensor) -> Tensor:
    """Scales and shifts the normalised input of a norm layer by channel, and records it."""
    weight, bias = module.weight, module.bias
    # One number per channel, spread over all positions.
    spread = (1, -1, *[1] * (unit.dim() - 2))
    y = unit if weight is None else unit * weight.detach().view(spread)
    y = y if bias is None else y + bias.detach().view(spread)

    def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
        """Returns the parts of γ and β of a norm layer that scales and shifts by channel."""
        g32, found = lift_precision(g), dict[Tensor, Part | Tensor]()
        if tape.wants(weight):
            found[weight] = _sum_per_channel(lift_precision(saved[0]) * g32)
        if tape.wants(bias):
            found[bias] = _sum_per_channel(g32)
        return found

    return tape.record(y, (unit,), parts)


@rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def run_instance_norm(tape: Tape, module: nn.InstanceNorm2d, input: Tensor) -> Tensor:
    """Runs the rule of InstanceNorm: normalises over the positions of a channel, or by stored statistics in evaluation."""
    tape.batch_dim(input, only=0)
    module._check_input_dim(input)
    if module.track_running_stats and not module.training:
        unit = nn.functional.instance_norm(
            input, module.running_mean, module.running_var, use_input_stats=False, eps=module.eps
        )
    else:
        unit = nn.functional.instance_norm(input, eps=module.eps)
    return _record_channel_affine(tape, module, unit)


@rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
def run_batch_norm(tape: Tape, module: nn.BatchNorm2d, input: Tensor) -> Tensor:
    """Runs the rule of BatchNorm: scales by stored statistics, in evaluation only; refuses training mode, which mixes
    the samples.
    """
    if module.training or module.running_mean is None:
        raise Refusal(
            f"layer '{tape.name}': BatchNorm mixes the samples of a batch.\n"
            "No bound on one record's contribution would hold.\n"
            "Use GroupNorm, or module.eval()."
        )
    tape.batch_dim(input, only=0)
    unit = nn.functional.batch_norm(input, module.running_mean, module.running_var, eps=module.eps)
    return _record_channel_affine(tape, module, unit)


@rule(nn.PReLU)
def run_prelu(tape: Tape, module: nn.PReLU, input: Tensor) -> Tensor:
    """Runs the rule of PReLU, which scales features as norm layers do: computes y = max(x, 0) + γ min(x, 0) and records
    it.
    """
    weight = module.weight
    shared = weight.numel() == 1
    dim, size = tape.batch_dim(input, only=None if shared else 0, several=shared), tape.size
    y = nn.functional.prelu(input, weight.detach())

    def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
        # ∂y/∂γ = min(x, 0)
        share = _move_samples_first(lift_precision(saved[0]).clamp(max=0) * lift_precision(g), dim)
        return {weight: share.reshape(size, -1).sum(1, keepdim=True) if shared else _sum_per_channel(share)}

    return tape.record(y, (input,), parts, rows=1)
