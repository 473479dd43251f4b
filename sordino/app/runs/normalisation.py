"""The private normalisation before the first step: fits the model's `Normalise` layer once.

**Privacy:** one release on the whole data (`statistics/normaliser.py`); the ledger is charged with it.
"""

from __future__ import annotations

from torch import nn
from torch.utils.data import TensorDataset

from sordino.app.runs.mapped import MappedStatistic
from sordino.ledger.ledger import Ledger
from sordino.refusal import Refusal
from sordino.release.noise import Gaussian
from sordino.rng.streams import Rng
from sordino.statistics import Normalise, Normaliser, ask
from sordino.statistics.normaliser import usual_bound


def standardise(
    model: nn.Module, train: TensorDataset, multiplier: float, ledger: Ledger, rng: Rng, *, bound: float | None = None
) -> None:
    """Fits the model's `Normalise` layer on the private records and charges the ledger; does nothing without such a
    layer.
    """
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
    layer.load_state_dict(ask(MappedStatistic(statistic, earlier_layers), train, ledger=ledger, rng=rng).state_dict())
