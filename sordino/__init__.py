"""sordino: differentially private training in which a privacy statement can be printed only when it is true."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sordino.version import __version__

if TYPE_CHECKING:
    from sordino import (
        accounting,
        algorithms,
        diagnostics,
        events,
        gradients,
        nn,
        optim,
        runs,
        sampling,
        schedules,
        statistics,
        weigh,
    )
    from sordino.algorithms import (
        ByCoin,
        ByPosition,
        Microbatches,
        NoisyLookahead,
        NoisySum,
        OptimisticLookahead,
        PrivateQuantile,
        Projected,
    )
    from sordino.algorithms.dry_run import dry_run
    from sordino.door.claims import Claim, Guarantee, NoGuarantee
    from sordino.door.diverged import Diverged
    from sordino.door.ledger import Ledger
    from sordino.door.noise import Gaussian, Laplace
    from sordino.door.sealed import Sealed
    from sordino.lot import Lot
    from sordino.penalty import L2
    from sordino.private import Private
    from sordino.refusal import Refusal
    from sordino.runs.fit import fit
    from sordino.sampling import BallsInBins, ByLength, FixedSize, Full, Poisson, Shuffle, Sorted, Threshold
    from sordino.statistics import ask, dry_ask
    from sordino.weigh import (
        PSAC,
        AdaptiveLayerwise,
        AdaptiveQuantile,
        Automatic,
        BandPass,
        BatchStatistic,
        EqualShare,
        Flat,
        FlatL1,
        Global,
        GlobalAdapt,
        Layerwise,
        LeastNoise,
        Normalised,
        Scheduled,
    )

# Resolved on first use: `import sordino.events` and the accountants must not pull torch in.
_HOME = {
    "ByCoin": "algorithms",
    "ByPosition": "algorithms",
    "Microbatches": "algorithms",
    "NoisyLookahead": "algorithms",
    "NoisySum": "algorithms",
    "OptimisticLookahead": "algorithms",
    "Projected": "algorithms",
    "PrivateQuantile": "algorithms",
    "Diverged": "door.diverged",
    "Claim": "door.claims",
    "Guarantee": "door.claims",
    "NoGuarantee": "door.claims",
    "Gaussian": "door.noise",
    "Laplace": "door.noise",
    "L2": "penalty",
    "dry_run": "algorithms.dry_run",
    "fit": "runs.fit",
    "Ledger": "door.ledger",
    "Lot": "lot",
    "Private": "private",
    "Refusal": "refusal",
    "BallsInBins": "sampling",
    "ByLength": "sampling",
    "FixedSize": "sampling",
    "Full": "sampling",
    "Poisson": "sampling",
    "Shuffle": "sampling",
    "Sorted": "sampling",
    "Threshold": "sampling",
    "Sealed": "door.sealed",
    "ask": "statistics",
    "dry_ask": "statistics",
    "AdaptiveQuantile": "weigh",
    "Automatic": "weigh",
    "BatchStatistic": "weigh",
    "Flat": "weigh",
    "FlatL1": "weigh",
    "Global": "weigh",
    "Layerwise": "weigh",
    "PSAC": "weigh",
    "AdaptiveLayerwise": "weigh",
    "BandPass": "weigh",
    "EqualShare": "weigh",
    "GlobalAdapt": "weigh",
    "LeastNoise": "weigh",
    "Normalised": "weigh",
    "Scheduled": "weigh",
}
_MODULES = (
    "accounting",
    "algorithms",
    "diagnostics",
    "events",
    "gradients",
    "nn",
    "optim",
    "runs",
    "sampling",
    "schedules",
    "statistics",
    "weigh",
)

__all__ = [
    "L2",
    "PSAC",
    "AdaptiveLayerwise",
    "AdaptiveQuantile",
    "Automatic",
    "BallsInBins",
    "BandPass",
    "BatchStatistic",
    "ByCoin",
    "ByLength",
    "ByPosition",
    "Claim",
    "Diverged",
    "EqualShare",
    "FixedSize",
    "Flat",
    "FlatL1",
    "Full",
    "Gaussian",
    "Global",
    "GlobalAdapt",
    "Guarantee",
    "Laplace",
    "Layerwise",
    "LeastNoise",
    "Ledger",
    "Lot",
    "Microbatches",
    "NoGuarantee",
    "NoisyLookahead",
    "NoisySum",
    "Normalised",
    "OptimisticLookahead",
    "Poisson",
    "Private",
    "PrivateQuantile",
    "Projected",
    "Refusal",
    "Scheduled",
    "Sealed",
    "Shuffle",
    "Sorted",
    "Threshold",
    "__version__",
    "accounting",
    "algorithms",
    "ask",
    "diagnostics",
    "dry_ask",
    "dry_run",
    "events",
    "fit",
    "gradients",
    "nn",
    "optim",
    "runs",
    "sampling",
    "schedules",
    "statistics",
    "weigh",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"sordino.{_HOME[name]}"), name)
    if name in _MODULES:
        return import_module(f"sordino.{name}")
    raise AttributeError(f"module 'sordino' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
