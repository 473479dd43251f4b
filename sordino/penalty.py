"""The L2 penalty of the loss, which joins every per-sample gradient before it is clipped.

    g_i = ∇ℓ(θ, x_i) + λθ,  then clipped, then summed, then noise

Not decoupled weight decay, θ ← (1 − ηλ)θ − ηg̃, which torch.optim has and which needs nothing here. The two differ:
with ℓ = ½(θ − θ*)², θ* = 3.8, bound 1 and λ = 0.5, decoupled decay rests at 1/λ = 2, this at θ*/(1 + λ) = 2.5333.

Privacy: θ is public at every step, so the proof of the clipping rule holds for g_i + λθ as it does for g_i, and the
event is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from sordino import validate
from sordino.per_sample import penalised
from sordino.per_sample.penalised import Shifted
from sordino.per_sample.protocol import Backend, PerSample, trainable_parameters


@dataclass(frozen=True, init=False)
class L2:
    """An L2 penalty with one λ for all parameters, or with a λ by the beginnings of parameter names.

    Parameters under none of these beginnings have λ = 0.

    Privacy:
        A record's share of the penalty is clipped with its gradient, so the cost is the same.

    Examples:
        >>> L2({"conv": 0.1, "fc": 0.01}).strengths_for(["conv.weight", "fc.weight", "norm.weight"])
        {'conv.weight': 0.1, 'fc.weight': 0.01}

    """

    strength: tuple[tuple[str, float], ...]

    def __init__(self, strength: float | Mapping[str, float]) -> None:
        if isinstance(strength, Mapping):
            if not strength:
                raise ValueError("strength={}: need at least one beginning of a parameter name")
            checked = tuple((str(k), validate.non_negative(f"strength[{k!r}]", v)) for k, v in strength.items())
        else:
            checked = (("", validate.non_negative("strength", strength)),)
        object.__setattr__(self, "strength", checked)

    def strengths_for(self, names: list[str]) -> dict[str, float]:
        """Returns the strength λ of the L2 penalty by parameter name, where it is not 0."""
        # A prefix that matches nothing is probably misspelt, so it is refused.
        for prefix, _ in self.strength:
            if not any(name.startswith(prefix) for name in names):
                raise ValueError(
                    f"strength[{prefix!r}]: no trainable parameter begins so; there are {', '.join(names)}"
                )
        # Each parameter may fall under one prefix only.
        strengths = {}
        for name in names:
            matching = [(prefix, strength) for prefix, strength in self.strength if name.startswith(prefix)]
            if len(matching) > 1:
                raise ValueError(f"parameter {name!r} begins with {len(matching)} of the keys of `strength`: need one")
            if matching and matching[0][1]:
                strengths[name] = matching[0][1]
        return strengths

    def add_to(self, grads: PerSample, parameters: Mapping[str, Tensor]) -> PerSample:
        """Returns the gradients with the penalty's gradient λθ added to each."""
        factors = self.strengths_for(list(parameters))
        return Shifted(grads, parameters, factors) if factors else grads


def prepare_backend(backend: Backend, penalty: L2 | None, model: nn.Module) -> Backend:
    """Returns the backend that also measures what the L2 penalty needs; names that the model does not have are refused."""
    if penalty is None:
        return backend
    if not isinstance(penalty, L2):
        raise TypeError(f"penalty={penalty!r}: must be a penalty, such as L2(0.01)")
    penalty.strengths_for(list(trainable_parameters(model)))
    return penalised.prepare_backend(backend)
