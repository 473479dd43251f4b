"""Options that trade speed for memory; none of them changes a result beyond rounding."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True)
class PerformanceOptions:
    """Says how `Captured` spends time and memory.

    Examples:
        >>> PerformanceOptions(two_pass=True).two_pass
        True

    """

    scratch_bytes: int = 16 * _MIB
    """Bytes for temporaries of one layer's norms; more samples are measured at once when it is larger."""
    keep_bytes: int | None = None
    """Bytes of per-sample gradients that all layers together may keep between norms and sum; None: a quarter more than
    the layers' inputs and outputs take. They may always take the place of a layer's own input and gradient."""
    measure: bool = True
    """Times the formulas a layer could use on the first batch of a shape; otherwise its shapes decide."""
    channels_last: bool | None = None
    """Memory format of convolutions; None: the faster one, measured on the first batch."""
    two_pass: bool = False
    """Forgets activations and output gradients and computes them again for the sum: less memory, twice the work."""
    layer_by_layer: bool = False
    """Gathers the parameters of one wrapped module at a time, in a model that `fully_shard` divides among ranks, and
    brings sums together one parameter at a time: less memory, and more messages."""
    verify: bool = True
    """Checks a model's first batch against autograd on three samples, and refuses a model that disagrees."""
