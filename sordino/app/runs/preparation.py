"""What a run releases before its first step: bounds of columns, moments, principal directions.

    ranges       bounds of the columns that were declared without any, for the layer `Ranged`
    normalise    mean and variance of every channel, for the layer `Normalise`
    histogram    how many records each class has, for the layer `ClassWeights`, which the loss reads
    pca          principal directions of the records, for the layer `Projection` (Abadi et al. 2016, arXiv:1607.00133)

                 M̃ = Σ_i a_i a_iᵀ + noise,  a_i the record as it reaches the projection, at length 1;  x ↦ x·V_k

Each fits a layer of the model, which is fixed from then on. The layers apply in this order, and a statistic sees each
record as it reaches its layer, through the layers that were fitted before.

**Privacy:** each is one Gaussian mechanism on all records (`statistics/`), charged to the run's ledger.
`preparation_events` says what they cost before they are carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino import events
from sordino.app.runs.recipe import Recipe
from sordino.app.runs.run_device import device_of
from sordino.events import Event
from sordino.ledger.ledger import Ledger
from sordino.refusal import Refusal
from sordino.release.noise import Gaussian, Noise
from sordino.release.sensitivity import Sensitivity
from sordino.rng.streams import Rng
from sordino.statistics import PCA, Mean, Normalise, Normaliser, Projection, Ranged, Ranges, ask
from sordino.statistics.normaliser import usual_bound
from sordino.statistics.statistic import Statistic, Sum


def preparation_events(recipe: Recipe) -> list[Event]:
    """Returns the events of a run's preparation (private bounds, normalisation, class histogram and PCA), each over all
    records, as far as the recipe asks for them.
    """
    # Each is one Gaussian release over all records, without amplification.
    plan = recipe.preparation
    multipliers = (plan.ranges, plan.normalise, plan.histogram, plan.pca)
    return [events.Gaussian(noise) for noise in multipliers if noise is not None]


V = TypeVar("V")


@dataclass(frozen=True)
class _MappedSum:
    """A sum over the results of a fixed map, which is applied to each record by itself."""

    inner: Sum
    map: Callable[[Tensor], Tensor]

    @property
    def sensitivity(self) -> Sensitivity:
        """The sensitivity of the sum, which holds for any rows."""
        return self.inner.sensitivity

    @property
    def noise(self) -> Noise:
        """The noise of the sum."""
        return self.inner.noise

    def total(self, rows: Tensor) -> Tensor:
        """Returns the sum over the mapped rows."""
        with torch.no_grad():
            return self.inner.total(self.map(rows))


@dataclass(frozen=True)
class MappedStatistic(Generic[V]):
    """A statistic of records after a fixed map, which is applied to each record by itself."""

    inner: Statistic[V]
    map: Callable[[Tensor], Tensor]

    @property
    def sums(self) -> Sequence[_MappedSum]:
        """The sums of the statistic, over the mapped rows."""
        return [_MappedSum(part, self.map) for part in self.inner.sums]

    def value(self, noisy: Sequence[Tensor], records: Callable[[], float]) -> V:
        """Returns what the statistic computes from its noisy sums."""
        return self.inner.value(noisy, records)


def standardise(
    model: nn.Module, train: TensorDataset, multiplier: float, ledger: Ledger, rng: Rng, *, bound: float | None = None
) -> None:
    """Prepares a run by fitting the model's `Normalise` layer on the private records, and charges the ledger; does
    nothing without such a layer.
    """
    # The layer is found in the model, which `build` put there.
    layers = [module for module in model.modules() if isinstance(module, Normalise)]
    if not layers:
        return
    if len(layers) > 1:
        raise Refusal(f"the model has {len(layers)} Normalise layers: need one, fitted to the data as it comes in")
    (layer,) = layers
    typical = tuple(layer.typical.tolist())
    statistic = Normaliser(usual_bound(len(typical)) if bound is None else bound, Gaussian(multiplier), typical)
    # The statistic sees each record as it reaches the layer, through the fixed layers in front of it.
    earlier_layers = (
        model[: list(model).index(layer)] if isinstance(model, nn.Sequential) and layer in model else nn.Identity()
    )
    mapped = MappedStatistic(statistic, _apply_on_device(earlier_layers))
    layer.load_state_dict(ask(mapped, train, ledger=ledger, rng=rng).state_dict())


def _apply_on_device(layers: nn.Module) -> Callable[[Tensor], Tensor]:
    """Returns the fixed layers in front of one that is being prepared as a function of rows, which come back to where
    they were.
    """
    device = device_of(layers)
    return lambda rows: layers(rows.to(device)).to(rows.device)


def unfitted_projection(numbers: int, components: int) -> Projection:
    """Returns a projection that the preparation has still to fit, for records of so many numbers."""
    # There are no more directions than numbers.
    if components > numbers:
        raise ValueError(f"components={components}: the records have only {numbers} numbers each; ask for fewer")
    return Projection(torch.zeros(numbers, components), torch.zeros(numbers))


def project(model: nn.Sequential, train: TensorDataset, multiplier: float, ledger: Ledger, rng: Rng) -> None:
    """Prepares a run by fitting the model's projection, a private PCA, on the private records, and charges the ledger."""
    # The directions are those of the records as they come out of the layers in front.
    position = next(i for i, layer in enumerate(model) if isinstance(layer, Projection))
    layer, earlier_layers = model[position], model[:position]
    assert isinstance(layer, Projection)  # as was asked just now
    statistic = PCA(layer.basis.shape[1], Gaussian(multiplier))
    components = ask(MappedStatistic(statistic, _apply_on_device(earlier_layers)), train, ledger=ledger, rng=rng)
    layer.basis.copy_(components.basis)
    layer.eigenvalues.copy_(components.eigenvalues)


def carry_out_preparation(recipe: Recipe, train: TensorDataset, model: nn.Module, ledger: Ledger, rng: Rng) -> None:
    """Carries out every preparation that the recipe asks for before the first step, in the order in which the layers
    apply.
    """
    # Each has a stream of random numbers of its own, so that adding one leaves the noise of the others as it is.
    if recipe.ranges is not None:
        find_ranges(model, train, recipe.ranges, ledger, rng.child("ranges"))
    if recipe.normalise is not None:
        standardise(model, train, recipe.normalise, ledger, rng)
    if recipe.histogram is not None:
        balance_classes(model, train, recipe.histogram, ledger, rng.child("histogram"))
    # The projection sees records as they come out of the layers before it, so these are fitted by then.
    if recipe.pca is not None:
        assert isinstance(model, nn.Sequential)  # as `build` makes it
        project(model, train, recipe.pca, ledger, rng.child("pca"))


class ClassWeights(nn.Module):
    """Passes records on as they are, and holds how much each class counts in the loss; 1 until it is fitted."""

    weights: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("weights", torch.ones(classes))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the records."""
        return x


def balance_classes(model: nn.Module, train: TensorDataset, multiplier: float, ledger: Ledger, rng: Rng) -> None:
    """Prepares a run by fitting the model's `ClassWeights` on a noisy histogram of the classes, and charges the ledger.

        weight(c) = min n / n_c        n_c: noisy count of class c, no less than three deviations of its noise

    The rarest class has weight 1 and the others less. Weights above 1 would be undone: a record's gradient is clipped
    after the weight is applied, so the frequent classes must become lighter rather than the rare one heavier.
    A record adds 1 to one count, so the histogram has sensitivity 1. The records themselves are handed over beside their
    classes, so that one that is in the data several times is charged as often.
    """
    # The counts are released with noise; the weights are computed from the noisy counts alone.
    layer = next(module for module in model.modules() if isinstance(module, ClassWeights))
    classes = len(layer.weights)
    x, y = train.tensors

    def count_once(rows: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(rows[:, 0], classes).float()

    statistic = MappedStatistic(Mean(1.0, Gaussian(multiplier)), count_once)
    noisy = ask(statistic, TensorDataset(y.unsqueeze(1), x), ledger=ledger, expected_batch=1.0, rng=rng)
    # A count below its noise would give a weight beyond reason.
    counts = noisy.clamp(min=max(1.0, 3 * multiplier))
    with torch.no_grad():
        layer.weights.copy_(counts.min() / counts)


def find_ranges(model: nn.Module, train: TensorDataset, multiplier: float, ledger: Ledger, rng: Rng) -> None:
    """Prepares a run by fitting the model's `Ranged` layer, which is its first, on the private records, and charges the
    ledger.
    """
    layer = next(module for module in model.modules() if isinstance(module, Ranged))
    # The bounds come from a noisy histogram, and the layer keeps them from here on.
    bounds = ask(Ranges(len(layer.low), Gaussian(multiplier)), train, ledger=ledger, rng=rng)
    with torch.no_grad():
        layer.low.copy_(bounds[0])
        layer.high.copy_(bounds[1])
