"""The noise that `release` adds: Gaussian for an L2 bound, Laplace for an L1 bound.

Both are named by their multiplier: standard deviation (Gaussian) or scale (Laplace) over the sensitivity. Noise is
drawn in float32 or better, once, over all tensors of a release as one vector.

Privacy: Gaussian(σ) on a sum whose L2 norm one record moves by ≤ C, at standard deviation σC, is the Gaussian mechanism
(Dwork et al. 2006; exact curve in Balle & Wang 2018). Laplace at scale bC on an L1 bound C is (1/b)-DP.
A multiplier of 0 adds nothing, and the event says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from sordino import events, validate
from sordino.events import Event
from sordino.former_names import former_method
from sordino.release.sensitivity import EXACT, Estimate, FromProjections, Sensitivity
from sordino.release.vectors import accumulation_dtype
from sordino.rng.streams import Rng


class Noise(Protocol):
    """A distribution of noise and the event that adding it amounts to."""

    @property
    def multiplier(self) -> float:
        """The noise's scale over the sensitivity."""
        ...

    def bound_for(self, sensitivity: Sensitivity) -> float:
        """Returns the sensitivity in the norm that this noise needs; raises TypeError if it is not bounded."""
        ...

    def add_(self, value: Mapping[str, Tensor], scale: float, rng: Rng, factor: float = 1.0) -> None:
        """Adds this kind of noise at the given scale to every tensor of a release, then multiplies by a public factor,
        in place.

        Only `release` calls it.
        """
        ...

    def event(self, estimate: Estimate) -> Event:
        """Returns the event that adding this noise amounts to, given how the norms were obtained."""
        ...

    def length_of_ones(self, coordinates: int) -> float:
        """Returns the length of a vector of ones in the norm of this noise."""
        ...


@dataclass(frozen=True)
class Gaussian:
    """N(0, (multiplier × L2 sensitivity)²) on every coordinate.

    Args:
        multiplier: σ, the standard deviation over the bound. `sd.calibrate` finds it from an ε.

    Privacy:
        The event `Gaussian(σ)`. `sd.events.Gaussian` is that event; this is the noise itself. Drawn from a
        cryptographic stream.

    Examples:
        >>> import sordino as sd
        >>> sd.NoisySum(sd.Flat(0.5), sd.Gaussian(1.1))
        NoisySum(clipping=Flat(bound=0.5), noise=Gaussian(multiplier=1.1))

    """

    multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "multiplier", validate.non_negative("multiplier", self.multiplier))

    def bound_for(self, sensitivity: Sensitivity) -> float:
        """Returns the L2 sensitivity."""
        return sensitivity.l2

    bound = former_method("bound", "bound_for")

    def add_(self, value: Mapping[str, Tensor], scale: float, rng: Rng, factor: float = 1.0) -> None:
        """Adds one vector of Gaussian noise to the tensors of a release, in one pass of the compiled kernel or block by
        block while it is in cache.

        The pass can multiply by a public factor too.
        """
        # One pass of the compiled kernel, if all tensors are float32 on the host.
        if rng.add_normal_([tensor for tensor in value.values() if tensor.numel()], scale, factor):
            return
        # Otherwise block by block, with the same bits.
        targets = _flat_targets(value)
        if targets and not (_add_on_device(rng, targets, scale) or _add_from_host(rng, targets, scale)):
            _add_blocks(rng.normal_blocks(sum(map(len, targets)), scale, dtype_of_noise(targets)), targets)
        _multiply(targets, factor)

    @property
    def as_event(self) -> Event:
        """What one release with it is, so that it may stand in an event: `events.Poisson(0.01, Gaussian(1.1))`."""
        return self.event(EXACT)

    def event(self, estimate: Estimate) -> Event:
        """Returns the event that a release with Gaussian noise is charged as, `events.Gaussian(multiplier)`, or with
        estimated norms the mixture that they make of it.
        """
        if not self.multiplier:
            return event_without_noise()
        if isinstance(estimate, FromProjections):
            return events.ProjectedClip(self.multiplier, estimate.projections)
        return self._event

    def length_of_ones(self, coordinates: int) -> float:
        """Returns √d."""
        return math.sqrt(coordinates)

    @cached_property
    def _event(self) -> Event:
        return events.Gaussian(self.multiplier)


@dataclass(frozen=True)
class Laplace:
    """Lap(multiplier × L1 sensitivity) on every coordinate.

    Args:
        multiplier: the scale over the bound in L1.

    Privacy:
        The event `Laplace(multiplier)`: (1 / multiplier)-differential privacy of one release, with δ = 0.

    Examples:
        >>> import sordino as sd
        >>> sd.NoisySum(sd.FlatL1(0.5, dimension=10), sd.Laplace(2.0)).noise
        Laplace(multiplier=2.0)

    """

    multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "multiplier", validate.non_negative("multiplier", self.multiplier))

    def bound_for(self, sensitivity: Sensitivity) -> float:
        """Returns the L1 sensitivity that Laplace noise is scaled by; raises TypeError if the clipping rule bounds only
        the L2 norm.
        """
        if sensitivity.l1 is None:
            raise TypeError(
                "Laplace noise needs an L1 bound on a record's contribution, and this clipping rule promises only an L2 "
                "bound.\n"
                "Use Gaussian noise, or a clipping rule that bounds the L1 norm, such as FlatL1."
            )
        return sensitivity.l1

    bound = former_method("bound", "bound_for")

    def add_(self, value: Mapping[str, Tensor], scale: float, rng: Rng, factor: float = 1.0) -> None:
        """Adds one vector of Laplace noise to the tensors of a release."""
        if targets := _flat_targets(value):
            _add_blocks(iter([rng.laplace(sum(map(len, targets))).mul_(scale)]), targets)
            _multiply(targets, factor)

    @property
    def as_event(self) -> Event:
        """What one release with it is, so that it may stand in an event: `events.Poisson(0.01, Gaussian(1.1))`."""
        return self.event(EXACT)

    def event(self, estimate: Estimate) -> Event:
        """Returns the event that a release with Laplace noise is charged as, `events.Laplace(multiplier)`; raises
        TypeError for estimated norms.
        """
        if isinstance(estimate, FromProjections):
            raise TypeError(
                "Laplace noise with estimated norms has no theorem here: use Gaussian noise, or exact norms"
            )
        return events.Laplace(self.multiplier) if self.multiplier else event_without_noise()

    def length_of_ones(self, coordinates: int) -> float:
        """Returns d."""
        return float(coordinates)


def event_without_noise() -> Event:
    """Returns the event of a release to which no noise was added."""
    return events.NonPrivate("the noise multiplier is 0: sums of private gradients were released as they are")


def dtype_of_noise(targets: Sequence[Tensor]) -> torch.dtype:
    """Returns the type in which noise is drawn: float64 if a tensor has it, else float32."""
    wide = any(tensor.dtype == torch.float64 for tensor in targets)
    return torch.float64 if wide else torch.float32


def _flat_targets(value: Mapping[str, Tensor]) -> list[Tensor]:
    return [_flatten_dense(tensor) for tensor in value.values() if tensor.numel()]


def _multiply(targets: list[Tensor], factor: float) -> None:
    if targets and factor != 1.0:
        torch._foreach_mul_(targets, factor)


def _add_on_device(rng: Rng, targets: Sequence[Tensor], scale: float) -> bool:
    """Adds Gaussian noise that the device of a release's tensors makes; returns False, with nothing drawn, where it
    cannot.

    The values are those that `normal_blocks` gives on the CPU for the same stream, bit by bit.
    """
    place = targets[0].device
    if any(t.dtype is not torch.float32 or t.device != place for t in targets):
        return False
    sizes = [len(tensor) for tensor in targets]
    values = rng.make_normals_on(place, sum(sizes), scale)
    if values is None:
        return False
    torch._foreach_add_(list(targets), list(values.split(sizes)))
    return True


def _add_from_host(rng: Rng, targets: Sequence[Tensor], scale: float) -> bool:
    """Adds Gaussian noise from the host to the tensors of a release on a device, by one copy that nobody waits for;
    returns False where it cannot be so.

    The compiled kernel makes the values on the host, in memory that the device can read by itself, so that the host goes on
    while they are copied. They are those that `normal_blocks` gives, bit by bit.
    """
    # float32 only: the kernel's bits are defined for it, and they must be those of the same run on the host.
    place = targets[0].device
    if place.type == "cpu" or any(t.dtype is not torch.float32 or t.device != place for t in targets):
        return False
    # All values are drawn on the host in one stream; the device then adds exactly these numbers.
    # They may have been made while the device was computing (`rng/prepared_normals.py`).
    sizes = [len(tensor) for tensor in targets]
    values = rng.make_normals_for_copy(sum(sizes), scale, _zeros_for_copy)
    # None has drawn nothing from the stream, so the caller can take the slow way with the same bits.
    if values is None:
        return False
    torch._foreach_add_(list(targets), list(values.to(place, non_blocking=True).split(sizes)))
    return True


def _zeros_for_copy(n: int) -> Tensor:
    """Returns zeros on the host for noise that a device copies by itself, where PyTorch has such memory for it."""
    try:
        return torch.zeros(n, pin_memory=True)
    except RuntimeError:  # a device for which PyTorch has no pinned memory
        return torch.zeros(n)


def _add_blocks(blocks: Iterator[Tensor], targets: Sequence[Tensor]) -> None:
    """Adds consecutive blocks of noise to consecutive tensors; the values are independent, so the order is free."""
    current, filled = 0, 0
    for block in blocks:
        pieces, noise, used = [], [], 0
        # A block may end in the middle of a tensor, and a tensor in the middle of a block.
        while used < len(block):
            piece = min(len(block) - used, len(targets[current]) - filled)
            pieces.append(targets[current][filled : filled + piece])
            noise.append(block[used : used + piece].to(pieces[-1]))
            used, filled = used + piece, filled + piece
            if filled == len(targets[current]):
                current, filled = current + 1, 0
        torch._foreach_add_(pieces, noise)


def make_dense(tensor: Tensor) -> Tensor:
    """Returns the tensor in float32 or better, in a layout that noise can be added to; itself if it is that already."""
    if tensor.dtype is torch.float32 and tensor.is_contiguous():
        return tensor
    tensor = tensor.to(accumulation_dtype(tensor.dtype))
    return tensor if _is_dense(tensor) else tensor.contiguous()


_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


def _is_dense(tensor: Tensor) -> bool:
    layout = _LAYOUTS.get(tensor.dim())
    return tensor.is_contiguous() or (layout is not None and tensor.is_contiguous(memory_format=layout))


def _flatten_dense(tensor: Tensor) -> Tensor:
    """Returns the elements of a dense tensor in the order of its memory, which it shares."""
    assert _is_dense(tensor), "release makes its sums dense before it adds noise"
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
