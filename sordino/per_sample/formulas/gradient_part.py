"""Defines `Part`: the gradients of B samples for one parameter, through one use of it.

A layer rule hands over one part per trainable parameter. `measure_squared_norms`, `dot` and `add_to` are what a training
step needs; `rows` is the plain per-sample gradient, from which the other three follow and against which they are tested.
`compound_parts` joins the parts of a parameter that is used more than once.

    squared_i = ‖Σ_uses g_i‖²    dot_i = Σ_uses ⟨g_i, u⟩    add_to: out += Σ_i w_i Σ_uses g_i

Only the norm has cross terms, so only the norm needs the uses together.

Privacy: a norm that reads low breaks the bound, so what rounding may hide is added to it. Squares below 2⁻¹²⁶ vanish,
and every element counts as if one had (`square_sum`). Terms that cancel leave a short gradient, and while they are
added up the others are rounded to their size: a sample counts as at least 1/64 of what its terms come to without
cancelling (`measure_part`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from sordino.per_sample.performance_options import PerformanceOptions
from sordino.per_sample.row_arithmetic import vanished_squares
from sordino.reduced_precision import FullPrecisionProducts
from sordino.release.vectors import accumulation_dtype

CANCELLED = 64.0
"""How many times a gradient's length its terms may come to before they count; √T for T random ones, up to 57 in the
models of `bench`. While such a sample is added up, roundings are those of numbers 64 times as long."""
RUN = 1024
"""Elements the fused norm takes at once; its error there is below 3e-7."""


class Part(Protocol):
    """The gradients of B samples with respect to one parameter, through one use of it."""

    def measure_squared_norms(self, options: PerformanceOptions) -> Tensor:
        """Returns ‖g_i‖², shape (B,)."""
        ...

    def bound_squared_terms(self, options: PerformanceOptions) -> Tensor | None:
        """Returns at least (Σ ‖term‖)², shape (B,), over the terms that a gradient part's `add_to` adds for a sample.

        Returns None after `measure_squared_norms` where the sum is made of the very rows that were measured.
        """
        ...

    def dot(self, u: Tensor) -> Tensor:
        """Returns ⟨g_i, u⟩, shape (B,), for u of the parameter's shape."""
        ...

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Sets out = β out + Σ_i w_i g_i, for weights of shape (B,); β = 0 overwrites whatever was there."""
        ...

    def rows(self, where: slice | Tensor) -> Tensor:
        """Returns the gradients of some samples, (b, *shape)."""
        ...

    def mask_samples(self, mask: Tensor) -> Part:
        """Returns the part with the samples of this mask (B,) set to zero, whatever they held."""
        ...


_AS_IT_IS = nullcontext()
_any_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)  # a quick no; not promised to stay there


def is_autocasting(device: torch.device) -> bool:
    """Returns whether autocast is on."""
    return bool(_any_autocast()) and torch.is_autocast_enabled(device.type)


def is_autocast_on() -> bool:
    """Returns whether autocast, which gradient parts are kept out of, is on for the CPU or for the accelerator,
    whichever kind it is.
    """
    return any(map(torch.is_autocast_enabled, list_autocast_kinds()))


def list_autocast_kinds() -> tuple[str, ...]:
    """Returns the kinds of devices whose autocast a pass may be under: the CPU and this process's accelerator."""
    accelerator = torch.accelerator.current_accelerator()
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Switches autocast and TF32 off for gradient parts: under them the products of the norms would be rounded too far,
    and read wrong.
    """
    # On an accelerator TF32 has to go as well; on the CPU there is only autocast to switch off.
    if device.type != "cpu":
        return _full_precision_on_device(device)
    if is_autocasting(device):
        return torch.autocast(device.type, enabled=False)
    return _AS_IT_IS


@contextmanager
def _full_precision_on_device(device: torch.device) -> Iterator[None]:
    autocast = torch.autocast(device.type, enabled=False) if is_autocasting(device) else _AS_IT_IS
    with autocast, FullPrecisionProducts():
        yield


class PlainArithmetic:
    """Switches off autograd's recording, autocast and TF32: `torch.no_grad` and `full_precision`, at half the price."""

    __slots__ = ("_device", "_precision", "_recording")

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> None:
        """Switches both off, and remembers how they were."""
        self._recording = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        self._precision: AbstractContextManager[Any] | None = None
        if self._device.type != "cpu" or _any_autocast():
            self._precision = full_precision(self._device)
            self._precision.__enter__()

    def __exit__(self, *error: object) -> None:
        """Puts both back."""
        try:
            if self._precision is not None:
                self._precision.__exit__(None, None, None)
        finally:
            # Also where leaving the precision raised: else autograd would stay off for the caller.
            torch._C._set_grad_enabled(self._recording)


def lift_precision(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """Returns a tensor of a gradient part in the precision of accumulation; `like` first rounds to the precision the
    layer computed in.

    The two differ under autocast.
    """
    if like is not None and tensor.dtype != like.dtype:
        tensor = tensor.to(like.dtype)
    dtype = accumulation_dtype(tensor.dtype)
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _l2_norms(x: Tensor, dim: int) -> Tensor:
    """Returns the L2 norms along a dimension."""
    found: Tensor = torch.linalg.vector_norm(x, dim=dim)
    return found


def split_rows(x: Tensor, n: int) -> tuple[Tensor, ...]:
    """Returns consecutive stretches of n rows; none of an empty tensor."""
    return torch.split(x, n) if len(x) else ()


def two_dimensional(rows: Tensor) -> Tensor:
    """Returns (B, …) as (B, n); the gradient of a scalar has n = 1."""
    return rows.unsqueeze(1) if rows.dim() == 1 else rows.flatten(1)


def square_sum(rows: Tensor) -> Tensor:
    """Returns Σ x² per row of (B, …) of a gradient part, with one read and no copy.

    The fused norm reads low over long rows (1e-5 at 2.4M elements), so they go in short runs whose squares are added.
    """
    flat = rows if rows.dim() == 2 else two_dimensional(rows)
    n = flat.shape[1]
    if n <= RUN:
        # Squares below 2⁻¹²⁶ vanish; what they may have come to is added, so that no norm reads low.
        return _l2_norms(flat, 1).square_().add_(vanished_squares(flat))
    # Longer rows are taken in runs, because the error of one fused norm grows with the elements that it adds.
    whole = n // RUN * RUN
    runs = flat[:, :whole].view(flat.shape[0], -1, RUN)
    total = _l2_norms(runs, 2).square_().sum(1).add_(vanished_squares(flat))
    return total if whole == n else total + _l2_norms(flat[:, whole:], 1).square_()


def estimate_square_sum(x: Tensor, floor: float) -> Tensor:
    """Returns Σ x² of each sample of (B, …), a factor of a gradient part, to a few digits, for any strides, at least
    `floor` for each element.
    """
    each = tuple(range(1, x.dim()))
    found: Tensor = torch.linalg.vector_norm(x, dim=each)
    return found.square_().add_(math.prod(x.shape[1:]) * floor)


def estimate_lengths(x: Tensor, floor: float) -> Tensor:
    """Returns ‖x_t‖ of each position of (B, T, n) to a few digits, its square at least `floor` for each element."""
    return _l2_norms(x, 2).square_().add_(x.shape[2] * floor).sqrt_()


def estimate_lengths_above(x: Tensor, floor: float) -> Tensor:
    """Returns at least what `estimate_lengths` does of (B, T, n), in two launches of a device."""
    return _l2_norms(x, 2).add_(math.sqrt(x.shape[2] * floor))


_COMPARED = threading.local()


@contextmanager
def leave_norms_as_computed() -> Iterator[None]:
    """Leaves the norms of gradient parts as their formulas give them inside the context.

    It is for a comparison with autograd, which knows nothing of terms.
    """
    _COMPARED.now = True
    try:
        yield
    finally:
        _COMPARED.now = False


def raise_cancelled_norms(squared: Tensor, uncancelled: Tensor) -> Tensor:
    """Returns the squared norms of a gradient part, none below what terms that cancel leave of accuracy."""
    if getattr(_COMPARED, "now", False):
        return squared
    # Raised, never lowered: a norm that reads low lets a record contribute more than the bound.
    return torch.maximum(squared, uncancelled.mul(CANCELLED**-2))


def measure_part(part: Part, options: PerformanceOptions) -> Tensor:
    """Returns ‖g_i‖², (B,), of a gradient part, never too low: the one way to measure a part that is summed."""
    squared = part.measure_squared_norms(options)
    terms = part.bound_squared_terms(options)
    # None says that what was measured is what will be added, so nothing can cancel in between.
    return squared if terms is None else raise_cancelled_norms(squared, terms)


def squared_terms(part: Part, options: PerformanceOptions) -> Tensor:
    """Returns (Σ ‖term‖)² of a part within a larger one."""
    found = part.bound_squared_terms(options)
    return part.measure_squared_norms(options) if found is None else found


_TOGETHER = 320


def add_rows(out: Tensor, rows: Tensor, weights: Tensor, beta: int) -> None:
    """Adds the weighted rows of a gradient part, 320 at a time: sets out (n,) = β out + Σ_i w_i rows_i for rows (B, n).

    torch's own product runs through all of them in float32, whose roundings would add up.
    """
    if rows.shape[0] <= _TOGETHER:
        out.addmv_(rows.t(), weights, beta=beta)
        return
    # Roundings grow with the rows of one product, so products of a few hundred are added; only the first may overwrite.
    for some, w in zip(rows.split(_TOGETHER), weights.split(_TOGETHER), strict=True):
        out.addmv_(some.t(), w, beta=beta) if not beta else out.add_(torch.mv(some.t(), w))
        beta = 1


def add_outer(out: Tensor, left: Tensor, right: Tensor, beta: int) -> None:
    """Adds the outer products of a gradient part, 320 at a time: sets out (p, d) = β out + Σ_k left_k right_kᵀ for (K,
    p) and (K, d).

    How long a run a library adds up in float32 differs by processor and by shape; here none is longer.
    """
    if left.shape[0] <= _TOGETHER:
        out.addmm_(left.t(), right, beta=beta)
        return
    # β says what becomes of `out` before the first product; all later ones add to it.
    for x, y in zip(left.split(_TOGETHER), right.split(_TOGETHER), strict=True):
        out.addmm_(x.t(), y, beta=beta)
        beta = 1


class Squares:
    """Computes Σ x² per row once for all parameters whose norms contain it."""

    __slots__ = ("found", "rows")

    def __init__(self, rows: Tensor) -> None:
        """Takes rows (B, …)."""
        self.rows = rows
        self.found: Tensor | None = None

    def __call__(self) -> Tensor:
        """Returns the sums, (B,)."""
        if self.found is None:
            self.found = square_sum(self.rows)
        return self.found


def zero_masked_rows(tensor: Tensor, gone: Tensor) -> Tensor:
    """Returns the tensor with the rows of the mask set to zero, which multiplying by 0 would not do for nan."""
    return tensor.masked_fill(gone.view(-1, *[1] * (tensor.dim() - 1)), 0)


def samples_per_pass(sample_elements: int, options: PerformanceOptions, itemsize: int = 4) -> int:
    """Returns how many samples fit the scratch memory, at least one."""
    return max(1, options.scratch_bytes // max(1, sample_elements * itemsize))


_LARGEST = 4
"""How many times as large as a layer's input and gradient rows may be; larger ones cost more in memory than they save
in the sum."""


NEVER = -1
"""Bytes of rows that may be kept, for a pass that sums nothing."""


def may_keep_rows(rows: int, own_elements: int, b: int, options: PerformanceOptions, itemsize: int) -> bool:
    """Returns whether a gradient part may keep the rows of b samples until the sum; `rows` and `own_elements` are
    elements of one sample.

    Rows no larger than the layer's input and output gradient are always kept: they take their place.
    """
    if options.keep_bytes == NEVER:
        return False
    return rows <= own_elements or (
        rows <= _LARGEST * own_elements and b * rows * itemsize <= (options.keep_bytes or 0)
    )


class GradientRows:
    """Holds gradients in full: biases, norm layers, small or unusual parameters."""

    __slots__ = ("grads", "squares")

    def __init__(self, grads: Tensor, squares: Squares | None = None) -> None:
        """Takes (B, *shape), and its squared norms, where another parameter needs them too."""
        self.grads = grads
        self.squares = squares

    def measure_squared_norms(self, options: PerformanceOptions) -> Tensor:
        """Returns the sums of squares of the rows."""
        return square_sum(self.grads) if self.squares is None else self.squares()

    def bound_squared_terms(self, options: PerformanceOptions) -> None:
        """Returns None, because the rows that were measured are those that are added."""
        return

    def dot(self, u: Tensor) -> Tensor:
        """Returns the rows times a vector."""
        flat = two_dimensional(self.grads)
        return (flat * u.flatten().to(flat.dtype)).sum(1)

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Adds the weights times the rows."""
        flat = two_dimensional(self.grads)
        add_rows(out.view(-1), flat, weights.to(flat.dtype), beta)

    def rows(self, where: slice | Tensor) -> Tensor:
        """Returns the rows as they are held."""
        return self.grads[where]

    def mask_samples(self, mask: Tensor) -> GradientRows:
        """Returns the part with the samples of the mask set to zero."""
        return GradientRows(zero_masked_rows(self.grads, mask))
