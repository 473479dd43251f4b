"""The `Replay` permission, by which a loaded state may use its noise again.

Privacy: a run's secret file holds the key of its noise, and a saved state a position. Whatever was released after the
state was saved used the values from there on. Used again on the same sums, bit by bit, they repeat a release, which
tells nobody anything new; used again on any other sum, they give away the difference of the two sums, without any
noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Replay:
    """Permission to use a saved state's noise again, given to `private.load_state_dict(state, replay=…)`.

    Without it a loaded state goes on with a new key, which is always right. With it you promise that whatever was
    released after the state was saved is computed again from the same parameters, data, settings, code and machine, or
    was never released at all. The claim lists that promise as not covered, unless it was `entered`: `sordino resume`
    keeps it, by a write-ahead ledger and by comparing every field of the configuration.

    A state can be replayed if the run's key was saved before it. From then on the run measures nothing: which formula
    computes a gradient, and how many records are processed at once, follows from shapes alone, in the run and in its
    replay.

    Args:
        because: why every bit will be the same; printed with the claim.
        secret: where `private.save_secret(folder)` wrote the run's key, or what `private.secret_state()` returned. It
            may be left out where the `Private` has that key already, as one with the same `seed` does.
        entered: for `sordino resume` alone.

    Privacy:
        A promise of yours. If it is broken, one noise hides two sums, and their difference is bare.

    Examples:
        >>> import sordino as sd
        >>> sd.Replay("nothing was released after the state was saved").because
        'nothing was released after the state was saved'

    """

    because: str
    entered: bool = False
    secret: str | Path | Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.because, str) or not self.because.strip():
            raise ValueError(f"because={self.because!r}: say in words why every bit will be the same")
