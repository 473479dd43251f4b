"""Global clipping group by group (Bu, Wang & Long 2021, arXiv:2106.07830).

All gradients of a group up to a public threshold are scaled by one factor:

    φ_k(r_k) = C_k / Z_k  for r_k ≤ Z_k,  0 otherwise,  for the norm r_k of the sample's gradient in group k

Below the thresholds every sample has the same factors, so that the kernel of training stays a kernel (`ntk.py`); local
layerwise clipping gives every sample its own, and may converge nowhere.

The thresholds are fixed; AdaptiveLayerwise(Z, …, clipping=partial(GlobalLayerwise, C)) has some that each follow a
quantile of their group's norms, privately.

Privacy: φ_k(r_k)·r_k ≤ C_k for every r_k, so one record moves group k by at most C_k and the whole sum by at most √(Σ
C_k²) in L2, as with `Layerwise`. The thresholds are public; a factor taken from the lot has no proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sordino.clipping.adaptive_layerwise import AdaptiveLayerwise
from sordino.clipping.clipping_rule import Rule, State, Stateless
from sordino.clipping.layerwise import Layerwise, bounds_by_layer
from sordino.clipping.noise_shares import Share
from sordino.per_sample.protocol import Norms
from sordino.registry import Declaration, Method


@dataclass(frozen=True, init=False)
class GlobalLayerwise(Stateless):
    """Scales a gradient's part in group k, if at most threshold k long, by bound k / threshold k; drops longer parts.

    `bounds` and `thresholds` name the same groups, both as `Layerwise` takes them: one number per trainable tensor, or
    a mapping from the beginnings of parameter names. `share` divides the noise.

    Args:
        bounds: one per group, as `Layerwise` takes them.
        thresholds: one per group; longer parts are dropped.
        share: how the noise is divided among the groups.

    Privacy:
        As `Layerwise`: the root of the sum of the squared bounds.

    Examples:
        >>> import sordino as sd
        >>> clipping = sd.GlobalLayerwise({"0.": 0.8, "2.": 0.6}, {"0.": 4.0, "2.": 3.0})
        >>> round(clipping.rule(None, lambda: None).sensitivity.l2, 6)
        1.0

    """

    layers: Layerwise
    thresholds: Layerwise

    def __init__(
        self,
        bounds: Sequence[float] | Mapping[str, float],
        thresholds: Sequence[float] | Mapping[str, float],
        share: Share | None = None,
    ) -> None:
        object.__setattr__(self, "layers", Layerwise(bounds, share))
        object.__setattr__(self, "thresholds", Layerwise(thresholds))
        # A group needs both numbers, in the same order, or weights and bounds would belong to different tensors.
        if self.layers.groups != self.thresholds.groups:
            raise ValueError(f"bounds={bounds!r}, thresholds={thresholds!r}: need the same groups in the same order")
        # A finite bound with an infinite threshold would weigh everybody with 0; the other way round nothing would be
        # bounded.
        for bound, threshold in zip(self.layers.values, self.thresholds.values, strict=True):
            if math.isinf(bound) != math.isinf(threshold):
                raise ValueError(f"bound={bound}, threshold={threshold}: both finite, or both infinite")

    def rule(self, state: State, lot: Callable[[], Norms]) -> Rule:
        """Returns the rule of global layerwise clipping for this step. It is the same at every step, because bounds and
        thresholds of the groups are constant.
        """
        # One factor per group, C_k / Z_k.
        pairs = zip(self.layers.values, self.thresholds.values, strict=True)
        factors = [1.0 if math.isinf(bound) else bound / threshold for bound, threshold in pairs]

        def weights(norms: Norms) -> Tensor:
            # A group that exceeds its threshold is left out of the sum; the other groups of the record stay.
            index, squared = self.thresholds.group_norms(norms)  # (P,), (B, K)
            within = squared.sqrt() <= squared.new_tensor(self.thresholds.values)
            return torch.where(within, squared.new_tensor(factors), 0)[:, index]  # (B, P)

        # φ_k(r_k)·r_k ≤ C_k for every r_k, so the sensitivity is that of layerwise clipping to the bounds C_k.
        return Rule(weights, self.layers.rule(None, lot).sensitivity)


DECLARED = Declaration(
    (GlobalLayerwise,),
    methods=(
        Method(
            "global-layerwise",
            "one factor for each layer's gradients up to a threshold, nothing above it (Bu, Wang & Long 2021)",
            clipping=lambda run, own: GlobalLayerwise(
                bounds_by_layer(run, run.bound), bounds_by_layer(run, own["threshold"])
            ),
            parameters=lambda run: {"threshold": 10 * run.bound},
            example='sd.GlobalLayerwise({"0.": 0.8, "2.": 0.6}, {"0.": 8.0, "2.": 6.0})',
        ),
        Method(
            "adaptive-global-layerwise",
            "one factor for each layer, up to a threshold that follows a quantile of its norms, privately",
            clipping=lambda run, own: AdaptiveLayerwise(
                bounds_by_layer(run, own["threshold"]),
                own["quantile"],
                own["count_noise"],
                own["learning_rate"],
                clipping=partial(GlobalLayerwise, bounds_by_layer(run, run.bound)),
            ),
            parameters=lambda run: {
                "threshold": 10 * run.bound,
                "quantile": 0.9,
                "count_noise": run.expected_lot / 20 * math.sqrt(len(bounds_by_layer(run, 1.0))),
                "learning_rate": 0.2,
            },
            example=(
                'sd.AdaptiveLayerwise({"0.": 8.0, "2.": 6.0}, quantile=0.9, count_noise=5.0, '
                'clipping=lambda z: sd.GlobalLayerwise({"0.": 0.8, "2.": 0.6}, z))'
            ),
        ),
    ),
)
