"""Layerwise clipping (McMahan et al. 2018, arXiv:1710.06963): a bound for every group of tensors.

    φ_k(r_k) = min(1, C_k / r_k)  for the norm r_k of the sample's gradient in group k

Privacy: one record moves group k by at most C_k, hence the whole sum by at most √(Σ C_k²) in L2; noise of that scale
goes on every coordinate, or is divided among the groups (`noise_shares.py`). Noising each group at its own σ·C_k and
reporting σ would be wrong by √(number of groups).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino import validate
from sordino.clipping.clipping_rule import Rule, State, Stateless
from sordino.clipping.flat import shorten
from sordino.clipping.noise_shares import Isotropic, LeastNoise, Share, noise_units
from sordino.per_sample.protocol import Norms
from sordino.registry import Declaration, Method, RunNumbers
from sordino.release.sensitivity import Sensitivity

Bounds = tuple[float, ...] | tuple[tuple[str, float], ...]


@dataclass(frozen=True, init=False)
class Layerwise(Stateless):
    """Clips groups of parameter tensors, each to its own bound.

    `bounds` is either a sequence, one bound per trainable tensor in the order of `named_parameters()`, or a mapping
    from the beginnings of parameter names to bounds: `{"conv": 1.0, "fc": 0.5}` makes two groups. Every trainable
    tensor must belong to exactly one group. `share` divides the noise: Isotropic(), EqualShare(), LeastNoise().

    Args:
        bounds: one per trainable tensor, or by the beginnings of parameter names.
        share: how the noise is divided among the groups; by default evenly over all coordinates.

    Privacy:
        One record moves the sum by at most the root of the sum of the squared bounds, which is what the noise is in
        proportion to.

    Examples:
        >>> import sordino as sd
        >>> query = sd.NoisySum(sd.Layerwise({"0.": 0.8, "2.": 0.6}), sd.Gaussian(1.1))
        >>> round(query.clipping.rule(None, lambda: None).sensitivity.l2, 6)
        1.0

    """

    bounds: Bounds
    share: Share

    def __init__(self, bounds: Sequence[float] | Mapping[str, float], share: Share | None = None) -> None:
        # A sequence has one bound per tensor, a mapping one per group of names.
        need = "a bound per tensor, or a mapping from name beginnings to bounds"
        if not isinstance(bounds, Mapping):
            bounds = validate.sequence("bounds", bounds, need)
        if not len(bounds):
            raise ValueError(f"bounds={bounds!r}: need {need}")
        # Bounds by name keep their order, which is that of the groups.
        checked: Bounds
        if isinstance(bounds, Mapping):
            checked = tuple((str(k), validate.positive(f"bounds[{k!r}]", c, infinite=True)) for k, c in bounds.items())
        else:
            checked = tuple(validate.positive(f"bounds[{i}]", c, infinite=True) for i, c in enumerate(bounds))
        object.__setattr__(self, "bounds", checked)
        object.__setattr__(self, "share", Isotropic() if share is None else share)
        noise_units(self.share, self.values, [1] * len(checked))  # refuses a division for another number of groups

    @property
    def values(self) -> list[float]:
        """The bound of each group."""
        return [bound[1] if isinstance(bound, tuple) else bound for bound in self.bounds]

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups: the beginnings of parameter names, or the tensors' places."""
        return tuple(bound[0] if isinstance(bound, tuple) else str(k) for k, bound in enumerate(self.bounds))

    def rule(self, state: State, lot: Callable[[], Norms]) -> Rule:
        """Returns the rule of layerwise clipping for this step. It is the same at every step, because the groups'
        bounds are constant.
        """
        values = self.values

        def weights(norms: Norms) -> Tensor:
            """Returns the weights of layerwise clipping, (B, P): each tensor's is that of its group."""
            # Norms of a group: the root of the sum of its tensors' squares, with a weight per record and tensor.
            index, squared = self.group_norms(norms)
            limit = torch.tensor(values, dtype=squared.dtype, device=squared.device)
            return shorten(squared.sqrt(), limit)[:, index]  # (B, P)

        def units_by_tensor(sizes: Mapping[str, int]) -> dict[str, float]:
            """Returns the factor of each tensor by which layerwise clipping divides the noise among its groups."""
            groups = self._group_of_names(tuple(sizes))
            # How much noise a group gets may depend on how many numbers it holds, which is public.
            group_sizes = [
                sum(n for n, g in zip(sizes.values(), groups, strict=True) if g == k) for k in range(len(values))
            ]
            unit = noise_units(self.share, values, group_sizes)
            return {name: unit[g] for name, g in zip(sizes, groups, strict=True)}

        # One record moves group k by at most C_k, so the whole sum by at most √(Σ C_k²).
        length = math.sqrt(sum(c * c for c in values))
        return Rule(
            weights, Sensitivity(l2=length, units=None if isinstance(self.share, Isotropic) else units_by_tensor)
        )

    def group_norms(self, norms: Norms) -> tuple[Tensor, Tensor]:
        """Returns the group of each tensor in layerwise clipping, (P,), and the squared norms of the groups, (B, K)."""
        index = torch.tensor(self._group_of_names(norms.names), dtype=torch.long, device=norms.squared.device)
        # The squared norm of a group is the sum of those of its tensors.
        squared = norms.squared.new_zeros(len(norms.squared), len(self.bounds))
        return index, squared.index_add_(1, index, norms.squared)

    def _group_of_names(self, names: tuple[str, ...]) -> list[int]:
        """Returns the layerwise group of each parameter name; raises ValueError for one that belongs to none or to
        several.
        """
        # Without names, bound k belongs to tensor k; a wrong number of bounds would leave tensors unclipped.
        prefixes = [bound[0] for bound in self.bounds if isinstance(bound, tuple)]
        if not prefixes:
            if len(names) not in (0, len(self.bounds)):
                raise ValueError(f"{len(self.bounds)} bounds for {len(names)} trainable tensors: {', '.join(names)}")
            return list(range(len(names)))
        # By name: each parameter must have exactly one bound, or nothing bounds its share.
        groups = []
        for name in names:
            matching = [k for k, prefix in enumerate(prefixes) if name.startswith(prefix)]
            if len(matching) != 1:
                raise ValueError(
                    f"parameter {name!r} belongs to {len(matching)} of the groups {prefixes}: "
                    "need exactly one; change the beginnings of names in `bounds`"
                )
            groups.append(matching[0])
        return groups


def equal_bounds(run: RunNumbers) -> list[float]:
    """Returns one equal bound for every tensor; together they make the bound of the run."""
    return [run.bound / math.sqrt(run.tensors)] * run.tensors


def bounds_by_layer(run: RunNumbers, total: float) -> dict[str, float]:
    """Returns bounds for layerwise clipping: one equal bound for every layer, which is all tensors of one module;
    together they make `total`.
    """
    # The dot at the end keeps layer 1 apart from layer 10, whose name begins alike.
    layers = dict.fromkeys(f"{layer}." if (layer := name.rpartition(".")[0]) else name for name in run.names)
    # K bounds of C/√K give √(Σ C_k²) = C.
    return {layer: total / math.sqrt(len(layers)) for layer in layers}


DECLARED = Declaration(
    (Layerwise,),
    methods=(
        Method(
            "layerwise",
            "every tensor has its own bound, together they make the bound (McMahan et al. 2018)",
            clipping=lambda run, own: Layerwise(equal_bounds(run)),
            example='sd.Layerwise({"0.": 0.8, "2.": 0.6})',
        ),
        Method(
            "layerwise-by-layer",
            "every layer, weight and bias together, has its own bound (McMahan et al. 2018)",
            clipping=lambda run, own: Layerwise(bounds_by_layer(run, run.bound)),
        ),
        Method(
            "layerwise-least-noise",
            "every tensor has its own bound, and the noise is divided so that its total is least",
            clipping=lambda run, own: Layerwise(equal_bounds(run), LeastNoise()),
            example='sd.Layerwise({"0.": 0.8, "2.": 0.6}, sd.LeastNoise())',
        ),
    ),
)
