"""Rule for nn.Linear, with any number of middle dimensions."""

from __future__ import annotations

from torch import Tensor, nn

from sordino.per_sample.formulas.compound_parts import Block
from sordino.per_sample.formulas.gradient_part import GradientRows, Part, Squares, lift_precision
from sordino.per_sample.formulas.matrix_product import Matmul, run_linear_map
from sordino.per_sample.formulas.output_gradient import prepare_factors, sum_over_positions
from sordino.per_sample.formulas.parameter_product import ParameterProduct
from sordino.per_sample.layers.layer_registry import rule
from sordino.per_sample.recording.tape import Tape


def move_samples_first(x: Tensor, dim: int, size: int) -> Tensor:
    """Returns the input (…, B, …, d) of a linear layer as (B, T, d); k rows per sample become positions."""
    if dim:
        x = x.movedim(dim, 0)
    return x.reshape(size, -1, x.shape[-1])


def _parts_at_one_position(
    tape: Tape, a: Tensor, g: Tensor, weight: Tensor, bias: Tensor | None
) -> dict[Tensor, Part | Tensor]:
    """Returns the parts of a linear layer y_i = W a_i + b, whose norms both contain ‖g_i‖²."""
    squares = Squares(g)
    found: dict[Tensor, Part | Tensor] = {}
    if tape.wants(weight):
        found[weight] = Matmul(a, g, None, squares, workspace=tape.workspace)
    if bias is not None and tape.wants(bias):
        found[bias] = GradientRows(g, squares)
    return found


def record_affine(
    tape: Tape,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dim: int,
    block: tuple[int, int] | None = None,
) -> Tensor:
    """Computes y = x Wᵀ + b of a linear layer and records it; `block` takes some rows of both."""
    # The weight is detached from the graph: its gradient is made here, and autograd only passes through to the input.
    w = tape.leaf(weight, x)
    b = None if bias is None else tape.leaf(bias, x)
    if block is not None:
        w = w[slice(*block)]
        b = None if b is None else b[slice(*block)]
    # On the CPU a Linear on more than two dimensions returns a view, and in-place operations bypass a view's node in the
    # graph. So the recorded value is the two-dimensional product, which every later in-place operation goes through.
    lead, size = x.shape[:-1], tape.size
    y = run_linear_map(x if x.dim() == 2 else x.reshape(-1, x.shape[-1]), w, b, size, tape.workspace)
    plain = x.dim() == 2 and lead[0] == size and block is None  # one position each: nothing to arrange

    def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
        """Returns the parts of a linear layer's weight and bias from the gradient at the output."""
        if plain:
            return _parts_at_one_position(tape, lift_precision(saved[0], g), lift_precision(g), weight, bias)
        # Any number of positions per sample, with the samples first.
        rows = move_samples_first(g.view(*lead, -1), dim, size)  # (B, T, p)
        found: dict[Tensor, Part] = {}
        if tape.wants(weight):
            inputs, rows = prepare_factors(move_samples_first(saved[0], dim, size), rows)
            found[weight] = Matmul(inputs, rows, workspace=tape.workspace)
        if bias is not None and tape.wants(bias):
            found[bias] = GradientRows(sum_over_positions(rows))
        if block is None:
            return dict(found)
        return {p: Block(part, *block, p.shape) for p, part in found.items()}

    # ⟨g_i, θ⟩ follows from the output, if the tape holds outputs.
    product = None
    if tape.outputs:

        def rows(g: Tensor, y: Tensor) -> Tensor:
            """Returns Σ δ·y of each sample."""
            return move_samples_first((g * y).sum(1).view(*lead, 1), dim, size).flatten(1).sum(1)

        product = ParameterProduct((weight, bias), rows)
    y = tape.record(y, (x,), parts, rows=1, product=product)
    return y if x.dim() == 2 else y.view(*lead, -1)


@rule(nn.Linear)
def run_linear(tape: Tape, module: nn.Linear, input: Tensor) -> Tensor:
    """Runs a Linear layer as a recorded matrix product."""
    return record_affine(tape, input, module.weight, module.bias, tape.batch_dim(input))
