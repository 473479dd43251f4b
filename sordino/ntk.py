"""The neural tangent kernel of a small model, and what clipping makes of it.

The kernel is that of Jacot et al. 2018 (arXiv:1806.07572), its clipped form that of Bu, Wang & Long 2021
(arXiv:2106.07830).

For a model of one output f and losses ℓ_i, small steps on Σ_i w_ip ∇_p ℓ_i, tensor by tensor p, change the outputs by

    ḟ_j = −Σ_i K_ji ∂ℓ_i/∂f_i,     K_ji = Σ_p w_ip ⟨∇_p f_j, ∇_p f_i⟩

Without weights K is the tangent kernel, symmetric and with no eigenvalue below 0: the sum of squares falls. Weights of
its own for every record (local clipping) make it another matrix, which may have some; weights common to all (global
clipping below its threshold) make it a multiple of the kernel, tensor by tensor.

Privacy: none, and none is claimed: kernels are exact functions of the records they are given. For public or made-up
ones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sordino.clipping.clipping_rule import ClippingRule
from sordino.former_names import former_keyword
from sordino.per_sample.loop_backend import Loop
from sordino.per_sample.protocol import LossFn, Norms, trainable_parameters
from sordino.refusal import Refusal


def kernels(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Returns the parts of the neural tangent kernel (NTK), ⟨∇_p f(x_j), ∇_p f(x_i)⟩, (n, n) in float64, by trainable
    tensor p; their sum is the kernel.

    >>> model = nn.Linear(2, 1)
    >>> found = kernels(model, torch.tensor([[1.0, 1.0], [1.0, 2.0]]))
    >>> found["weight"].tolist(), found["bias"].tolist()
    ([[2.0, 3.0], [3.0, 5.0]], [[1.0, 1.0], [1.0, 1.0]])
    """
    parameters = trainable_parameters(model)
    rows: dict[str, list[Tensor]] = {name: [] for name in parameters}
    # One record and one backward pass at a time: the kernel needs whole gradients, and models here are small.
    for i in range(len(x)):
        output = model(x[i : i + 1])
        if output.numel() != 1:
            raise Refusal(
                f"the model says {output.numel()} numbers about a record.\n"
                "The tangent kernel here is of one number.\n"
                "Give a model of one output."
            )
        gradients = torch.autograd.grad(output.sum(), list(parameters.values()), allow_unused=True)
        for (name, p), gradient in zip(parameters.items(), gradients, strict=True):
            rows[name].append((torch.zeros_like(p) if gradient is None else gradient).detach().flatten().double())
    return {name: (j := torch.stack(each)) @ j.T for name, each in rows.items()}


@former_keyword("weigher", "clipping")
def clipped_kernel(model: nn.Module, loss_fn: LossFn, x: Tensor, y: Tensor, clipping: ClippingRule) -> Tensor:
    """Returns the neural tangent kernel (NTK) of clipped training, (n, n): with the weights that a clipping rule gives
    the records' gradients at its first step.

    Args:
        model: at the point where the kernel is taken.
        loss_fn: one loss per record.
        x: inputs.
        y: targets.
        clipping: the clipping rule that gives the weights.

    Returns:
        K, (n, n).

    Privacy:
        A study of public data: nothing is noised.

    Examples:
        >>> import sordino as sd
        >>> model = nn.Linear(2, 1)
        >>> x, y = torch.ones(3, 2), torch.zeros(3)
        >>> clipped_kernel(model, lambda m, x, y: (m(x)[:, 0] - y).square(), x, y, sd.Flat(1.0)).shape
        torch.Size([3, 3])

    """
    norms = Loop().per_sample(model, loss_fn, (x, y)).norms()
    lot_norms: Callable[[], Norms] = lambda: norms  # noqa: E731 (typed)
    weights = clipping.rule(clipping.init(), lot_norms).weights(norms).double()  # (n, 1) or (n, P)
    by_parameter = kernels(model, x)
    by_tensor = weights.expand(-1, len(by_parameter)).T  # (P, n)
    return torch.stack([kernel * w for kernel, w in zip(by_parameter.values(), by_tensor, strict=True)]).sum(0)


def least_eigenvalue(kernel: Tensor) -> float:
    """Returns the least eigenvalue of the symmetric part of a neural tangent kernel (NTK); if it is below 0, the sum of
    squares can rise.

    >>> round(least_eigenvalue(torch.tensor([[2.0, 3.0], [3.0, 5.0]])), 3)
    0.146
    """
    matrix = kernel.double()
    return float(torch.linalg.eigvalsh((matrix + matrix.T) / 2)[0])
