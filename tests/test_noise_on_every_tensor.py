"""Every number that is released has noise of its own, whatever its tensor's shape and however it is summed."""

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import sordino as sd
from sordino.release.noise import Gaussian, Laplace
from sordino.rng.streams import Rng

SHAPES = [(), (1,), (1, 1), (2,), (3, 1), (0, 4), (7, 5)]
ALPHA = 1e-6


class OfAllShapes(nn.Module):
    """Parameters of all shapes, with no gradient at all: what is released is noise and nothing else."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        shapes = [shape for shape in SHAPES if 0 not in shape]
        self.all = nn.ParameterList([nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes])

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x)) + sum((p * 0).sum() for p in self.all)


ROADS = {
    "one chunk": {"physical_batch": 64},
    "several chunks": {"physical_batch": 4},
    "the grid of ranks": {"physical_batch": 4, "mesh": "single"},
}


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_released_gradient_has_noise_in_every_coordinate(road, dtype):
    options = dict(ROADS[road])
    mesh, sigma = options.pop("mesh", None), 2.0
    model = OfAllShapes(dtype)
    query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(sigma))
    private = sd.Private(model, lambda m, x: m(x), query, seed=0, mesh=mesh)
    data = torch.utils.data.TensorDataset(torch.randn(20, 2, dtype=dtype))
    released = []
    for lot in private.draws(data, sd.Poisson(0.5), 60, expected_batch=10, **options):
        private.backward(lot)
        released.append([p.grad.double().flatten() * 10 for p in model.all])
    for each in zip(*released, strict=True):
        values = torch.stack(each)  # (steps, coordinates)
        assert (values != 0).all()
        assert len(values.unique()) == values.numel()
        squares = float(values.square().sum()) / sigma**2
        assert ALPHA / 2 < stats.chi2.cdf(squares, values.numel()) < 1 - ALPHA / 2


@pytest.mark.parametrize("noise", [Gaussian(1.0), Laplace(1.0)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_noise_reaches_every_coordinate_of_a_list_of_tensors(noise, dtype):
    values = {str(shape): torch.zeros(shape, dtype=dtype) for shape in SHAPES}
    noise.add_(values, 3.0, Rng.from_seed(1))
    assert all(bool((tensor != 0).all()) for tensor in values.values())
