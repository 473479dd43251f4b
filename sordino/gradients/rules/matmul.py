"""y_t = W a_t + b for any number T of positions: Linear, and what attention and recurrent layers are made of.

With a: input (B, T, d) and g: gradient at the output (B, T, p), sample i's gradient is Σ_t g_it a_itᵀ.

    T = 1:  ‖g_i‖²·‖a_i‖²
    Gram:   Σ_ts (a_t·a_s)(g_t·g_s)          no (p, d) matrix per sample; torch's products, or a compiled kernel
    rows:   ‖gᵀa‖²                           kept, they serve the sum as well
    sum:    one product (c·g)ᵀ a             (Lee & Kifer 2021; Bu et al. 2023, book-keeping)

Privacy: a Gram sum cancels where token gradients do, and then reads low. Samples whose squared norm is a small part
of its own diagonal Σ_t ‖a_t‖²‖g_t‖² are measured again from rows, whose error is the square root of the Gram's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sordino.gradients import tune
from sordino.gradients.flat import room
from sordino.gradients.options import PerformanceOptions
from sordino.gradients.rules.compound import joiner
from sordino.gradients.rules.part import Part, Squares, blank, per_pass, pieces, square_sum
from sordino.kernels.grams import grams, usable

_CANCELLED = 0.05
"""Below this share of its diagonal a Gram sum has lost more than a digit, and rows are computed instead."""


def diagonal_guard(squared: Tensor, diagonal: Tensor) -> Tensor:
    """Which samples' Gram sums have cancelled, as an index."""
    return (squared < _CANCELLED * diagonal).nonzero().flatten()


def gram_of(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_ts (a_t·a_s)(g_t·g_s) and its diagonal part, each (b,)."""
    return _met(a, torch.bmm(g, g.transpose(1, 2)))


def _met(a: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    product = torch.bmm(a, a.transpose(1, 2)).mul_(gram)  # (b, T, T)
    return product.sum(2).sum(1), product.diagonal(dim1=1, dim2=2).sum(1)


class Output:
    """The gradient at an output, and what weights that share it, as a recurrent layer's two, compute of it once."""

    __slots__ = ("g", "gram", "inputs", "sums")

    def __init__(self, g: Tensor) -> None:
        """Take g (B, T, p)."""
        self.g = g
        self.inputs: list[Tensor] = []
        self.gram: Tensor | None = None
        self.sums: Tensor | None = None

    def joins(self, a: Tensor) -> int:
        """One more input, (B, T, d); its number."""
        self.inputs.append(a)
        return len(self.inputs) - 1

    def product(self) -> Tensor:
        """ggᵀ of every sample, (B, T, T)."""
        if self.gram is None:
            self.gram = torch.bmm(self.g, self.g.transpose(1, 2))
        return self.gram

    def compiled(self, number: int) -> tuple[Tensor, Tensor]:
        """The Gram sums of one input and their diagonal parts, each (B,), by the compiled kernel."""
        if self.sums is None:
            kernel = grams()
            assert kernel is not None, "it was chosen"
            self.sums = kernel(self.g, self.inputs, torch.get_num_threads()).to(self.g.dtype)
        squared, diagonal = self.sums[:, number].unbind(1)
        return squared.clone(), diagonal


class Matmul:
    """The weight of a linear map."""

    __slots__ = ("a", "g", "kept", "number", "output", "squares")

    def __init__(self, a: Tensor, g: Tensor, output: Output | None = None, squares: Squares | None = None) -> None:
        """Take a (B, T, d) and g (B, T, p); T = 1 may be left out of both, and then `squares` may give ‖g‖².

        `output` is given where other weights share g.
        """
        if a.dim() == 3 and a.shape[1] == 1:
            a, g = a[:, 0], g[:, 0]
        self.a = a
        self.g = g
        self.output = output if a.dim() == 3 else None
        self.number = 0 if self.output is None else self.output.joins(a)
        self.squares = squares
        self.kept: Tensor | None = None  # (B, p, d), in place of a and g once it exists

    def squared(self, options: PerformanceOptions) -> Tensor:
        """By whichever formula was fastest for this shape."""
        if self.kept is not None:
            return square_sum(self.kept)
        if self.a.dim() == 2:
            return square_sum(self.a) * (square_sum(self.g) if self.squares is None else self.squares())
        b, t, d = self.a.shape
        p = self.g.shape[2]
        if not b or not t:
            return self.a.new_zeros(b)
        keep = p * d <= t * (p + d) or b * p * d * self.a.element_size() <= (options.keep_bytes or 0)
        choice = self._choice(options, keep)
        if choice == "compiled":
            output = self.output
            if output is None:
                output = Output(self.g)
                output.joins(self.a)
            return self._guarded(*output.compiled(self.number), options)
        if choice == "gram":
            return self._gram(per_pass(2 * t * t, options, self.a.element_size()), options)
        if keep:
            self.kept = torch.bmm(self.g.transpose(1, 2), self.a, out=room((b, p, d), self.a))
            self.a = self.g = self.kept[:, 0]  # freed: the rows say it all
            return square_sum(self.kept)
        step = per_pass(p * d, options, self.a.element_size())
        return torch.cat([square_sum(self.rows(slice(i, i + step))) for i in range(0, b, step)])

    def _choice(self, options: PerformanceOptions, keep: bool) -> str:
        _, t, d = self.a.shape
        p = self.g.shape[2]
        kernel = grams() if usable(self.a, self.g) else None
        if not options.measure:
            if t * (d + p) >= p * d:
                return "rows"
            return "gram" if kernel is None or not kernel.level else "compiled"
        others = 1 if self.output is None else len(self.output.inputs)
        key = ("matmul", t, d, p, self.a.dtype, self.a.device, torch.get_num_threads(), keep, others, kernel is None)
        choice = tune.known(key)
        if choice is None:
            few = tune.samples(p * d)
            a, g = self.a[:few], self.g[:few]
            share = g[: -(-len(g) // others)]  # the other weights pay for the rest of what they share
            w = torch.ones(a.shape[0], device=a.device, dtype=a.dtype)

            def total() -> None:
                self._product(a, g, w, a.new_empty(p, d), 0)

            def gram() -> None:
                _met(a, torch.bmm(share, share.transpose(1, 2)).repeat(others, 1, 1)[: len(a)])
                total()

            def compiled() -> None:
                inputs = [self.a] if self.output is None else self.output.inputs
                assert kernel is not None, "else it is no candidate"
                kernel(share, [x[: len(share)] for x in inputs], torch.get_num_threads())
                total()

            def rows() -> None:
                held = torch.bmm(g.transpose(1, 2), a, out=room((len(a), p, d), a))
                square_sum(held)
                if keep:
                    held.flatten(1).t() @ w
                else:
                    total()

            candidates = {"gram": gram, "rows": rows} | ({} if kernel is None else {"compiled": compiled})
            choice = tune.fastest(key, a.device, candidates)
        return choice

    def _gram(self, step: int, options: PerformanceOptions) -> Tensor:
        b, t, _ = self.a.shape
        if self.output is not None and b * t * t * self.a.element_size() <= (options.keep_bytes or 0):
            shared = pieces(self.output.product(), step)
            found = [_met(a, gram) for a, gram in zip(pieces(self.a, step), shared, strict=True)]
        else:  # passes small enough for the cache
            found = [gram_of(a, g) for a, g in zip(pieces(self.a, step), pieces(self.g, step), strict=True)]
        return self._guarded(torch.cat([s for s, _ in found]), torch.cat([d for _, d in found]), options)

    def _guarded(self, squared: Tensor, diagonal: Tensor, options: PerformanceOptions) -> Tensor:
        again = diagonal_guard(squared, diagonal)
        step = per_pass(self.a.shape[2] * self.g.shape[2], options, self.a.element_size())
        for index in pieces(again, step):
            squared[index] = square_sum(self.rows(index))
        return squared

    def dot(self, u: Tensor) -> Tensor:
        """Σ_t g_t · (U a_t): the layer's own forward product, with U in place of the weight."""
        if self.kept is not None:
            return (self.kept.flatten(1) * u.flatten().to(self.kept.dtype)).sum(1)
        return (torch.nn.functional.linear(self.a, u.to(self.a.dtype)) * self.g).flatten(1).sum(1)

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """One product over all samples and positions."""
        w = weights.to(out.dtype)
        if self.kept is not None:
            out.view(-1).addmv_(self.kept.flatten(1).t(), w, beta=beta)
        else:
            self._product(self.a, self.g, w, out, beta)

    @staticmethod
    def _product(a: Tensor, g: Tensor, w: Tensor, out: Tensor, beta: int) -> None:
        """Out = β out + Σ_it w_i g_it a_itᵀ."""
        spread = w.unsqueeze(1)
        if a.dim() == 3:
            if a.stride(0) < a.stride(1) and g.stride(0) < g.stride(1):  # positions come first in memory
                a, g = a.transpose(0, 1), g.transpose(0, 1)
            else:
                spread = spread.unsqueeze(2)
        a, g = (a * spread, g) if a.shape[-1] < g.shape[-1] else (a, g * spread)  # scale the narrower factor
        out.addmm_(g.flatten(0, -2).t(), a.flatten(0, -2), beta=beta)

    def rows(self, where: slice | Tensor) -> Tensor:
        """gᵀa per sample."""
        if self.kept is not None:
            return self.kept[where]
        a, g = self.a[where], self.g[where]
        return g.unsqueeze(2) * a.unsqueeze(1) if a.dim() == 2 else torch.bmm(g.transpose(1, 2), a)

    def without(self, gone: Tensor) -> Matmul:
        """Masked in both factors."""
        masked = Matmul(blank(self.a, gone), blank(self.g, gone))
        masked.kept = None if self.kept is None else blank(self.kept, gone)
        return masked


def _positions(tensor: Tensor) -> Tensor:
    return tensor.unsqueeze(1) if tensor.dim() == 2 else tensor


@joiner
def _along_positions(parts: Sequence[Part]) -> Part | None:
    """A layer used twice is a layer with more positions."""
    same = [part for part in parts if isinstance(part, Matmul)]
    if len(same) < len(parts):
        return None
    return Matmul(
        torch.cat([_positions(part.a) for part in same], 1), torch.cat([_positions(part.g) for part in same], 1)
    )
