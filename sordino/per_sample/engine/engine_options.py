"""What may be traded for speed or memory. None of it changes a result beyond rounding."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True)
class PerformanceOptions:
    """How `Captured` spends time and memory.

    Examples:
        >>> PerformanceOptions(two_pass=True).two_pass
        True

    """

    scratch_bytes: int = 16 * _MIB
    """Temporaries of one layer's norms; more samples are measured at once when it is larger."""
    keep_bytes: int | None = None
    """Per-sample gradients all layers together may keep between norms and sum; None: a quarter
    more than the layers' inputs and outputs take. They may always take the place of a layer's own input and gradient."""
    measure: bool = True
    """Time the formulas a layer could use on the first batch of a shape; otherwise its shapes decide."""
    channels_last: bool | None = None
    """Memory format of convolutions; None: the faster one, measured on the first batch."""
    two_pass: bool = False
    """Forget activations and output gradients and compute them again for the sum: less memory, twice the work."""
    layer_by_layer: bool = False
    """Of a model that `fully_shard` divides among ranks, gather one wrapped module's parameters at a time, and bring sums
    together one parameter at a time: less memory, and more messages."""
    verify: bool = True
    """Check a model's first batch against autograd on three samples, and refuse a model that disagrees."""
