"""Replaces BatchNorm by GroupNorm.

BatchNorm lets every record of a batch act on every other's gradient, so no clip bounds what one record does; GroupNorm
(Wu & He 2018, arXiv:1803.08494) normalises each record by itself.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from sordino import validate
from sordino.refusal import Refusal

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def replace_batchnorm(model: nn.Module, groups: int = 32) -> nn.Module:
    """Returns a copy of the model with GroupNorm where it had BatchNorm; the model is left as it was.

    There are at most `groups` groups, of two channels or more; one group where a record may have only one number a
    channel (BatchNorm1d): a group of one number would always be 0. Scale and shift are kept, running means and
    variances dropped. A layer used in several places stays one layer. A subclass that runs layers of its own after
    normalising, such as an activation, keeps them; one that does something else besides is refused by name. ReLU
    modules that work in place are told not to: what they overwrite may be needed for per-sample gradients.

    >>> from torch import nn
    >>> replace_batchnorm(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1].num_groups
    24
    """
    validate.count("groups", groups)
    validate.instance("model", model, nn.Module, "a torch module")
    # The copy has parameters of its own: an optimizer made before would go on training the old ones.
    model = copy.deepcopy(model)
    if isinstance(model, _BATCH_NORMS):
        return _replace_norm("", model, groups)
    # A layer that occurs under several names is replaced once, and stays one layer.
    made: dict[int, nn.Module] = {}
    for prefix, parent in list(model.named_modules()):
        for name, child in list(parent._modules.items()):  # named_children() leaves out a layer's second name
            if isinstance(child, _BATCH_NORMS):
                if id(child) not in made:
                    made[id(child)] = _replace_norm(f"{prefix}.{name}".lstrip("."), child, groups)
                setattr(parent, name, made[id(child)])
    # What an in-place activation overwrites may be needed for per-sample gradients.
    for module in model.modules():
        if getattr(module, "inplace", None) is True:
            module.inplace = False  # type: ignore[assignment]
    return model


def _replace_norm(name: str, norm: nn.Module, groups: int) -> nn.Module:
    """Returns the GroupNorm that replaces a BatchNorm, and after it whatever a subclass of BatchNorm runs after
    normalising.
    """
    # A subclass may run further layers after normalising, such as an activation; those are kept.
    group_norm = _make_group_norm(norm, groups)
    kept = list(norm.children())
    if kept or type(norm) not in _BATCH_NORMS or "forward" in norm.__dict__:
        if not _only_runs_layers(norm, kept):
            raise Refusal(
                f"{type(norm).__name__} {name!r} does something else than normalise and run its own layers.\n"
                "It is not known what is to be kept of it.\n"
                "Replace it by hand, with nn.GroupNorm and what it does besides."
            )
        return nn.Sequential(group_norm, *kept) if kept else group_norm
    return group_norm


def _only_runs_layers(norm: nn.Module, kept: list[nn.Module]) -> bool:
    """Returns whether a subclass of BatchNorm, on made-up numbers in evaluation, is BatchNorm and then the kept layers."""
    assert isinstance(norm, _BATCH_NORMS)
    # Compare the subclass with plain BatchNorm followed by its own layers, on made-up numbers.
    twin, after = copy.deepcopy(norm).eval(), nn.Sequential(*copy.deepcopy(kept)).eval()
    dims = 1 if isinstance(norm, nn.BatchNorm1d) else 3 if isinstance(norm, nn.BatchNorm3d) else 2
    # Made-up numbers on the device and in the type of the norm, of both signs, so that an activation after it shows.
    reference = next(iter(norm.state_dict().values()), torch.zeros(()))
    x = torch.linspace(-3, 3, 2 * norm.num_features * 3**dims).view(2, norm.num_features, *[3] * dims).to(reference)
    # Evaluation mode uses the running statistics, where there are any, and changes none of them.
    with torch.no_grad():
        plain = nn.functional.batch_norm(
            x, twin.running_mean, twin.running_var, twin.weight, twin.bias, twin.running_mean is None, 0.0, twin.eps
        )
        found, wanted = twin(x), after(plain)
    return isinstance(found, Tensor) and found.shape == wanted.shape and torch.allclose(found, wanted)


def _make_group_norm(norm: nn.Module, groups: int) -> nn.GroupNorm:
    """Returns the GroupNorm that takes a BatchNorm's place, with the BatchNorm's scale and shift."""
    assert isinstance(norm, _BATCH_NORMS)
    channels = norm.num_features
    # At least two channels in a group, and a number of groups that divides the channels.
    max_groups = 1 if isinstance(norm, nn.BatchNorm1d) else max(1, min(groups, channels // 2))
    count = next(n for n in range(max_groups, 0, -1) if channels % n == 0)
    made = nn.GroupNorm(count, channels, eps=norm.eps, affine=norm.affine)
    made.train(norm.training)
    # Scale and shift are taken over from the BatchNorm.
    if norm.affine:
        made.weight, made.bias = norm.weight, norm.bias
    return made.to(norm.weight.device, norm.weight.dtype) if norm.affine else made
