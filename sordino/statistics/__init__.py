"""Statistics of the data, released with noise into the same ledger as the training."""

from sordino.statistics.clipped_sum import ClippedSum
from sordino.statistics.mean import Count, Mean
from sordino.statistics.mean_rules import (
    binary_error,
    binary_mean,
    scalar_bound,
    scalar_error,
    scalar_mean,
    vector_bound,
    vector_error,
    vector_mean,
)
from sordino.statistics.normaliser import Normalise, Normaliser
from sordino.statistics.pca import PCA, Gram, Projection
from sordino.statistics.ranges import Ranged, Ranges
from sordino.statistics.sensitivities import (
    EXAMPLE_QUERIES,
    ExampleQuery,
    global_sensitivity,
    local_sensitivity,
)
from sordino.statistics.statistic import Statistic, Sum, ask, dry_ask

__all__ = [
    "EXAMPLE_QUERIES",
    "PCA",
    "ClippedSum",
    "Count",
    "ExampleQuery",
    "Gram",
    "Mean",
    "Normalise",
    "Normaliser",
    "Projection",
    "Ranged",
    "Ranges",
    "Statistic",
    "Sum",
    "ask",
    "binary_error",
    "binary_mean",
    "dry_ask",
    "global_sensitivity",
    "local_sensitivity",
    "scalar_bound",
    "scalar_error",
    "scalar_mean",
    "vector_bound",
    "vector_error",
    "vector_mean",
]
