"""Sums on a grid of whole numbers: how far a record moves them, what noise they get, and what does not fit."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import sordino as sd
from sordino.distributed.process_group import Ranks, ranks_of
from sordino.lots.loading import cut_into_batches
from sordino.per_sample import Captured
from sordino.per_sample.performance_options import PerformanceOptions
from sordino.release.exact_sums import GRID_BITS, ROUNDING_STEPS, Grid, OnGrid, OnGridAccumulator
from sordino.release.release import release
from sordino.release.sealed import Sealed
from sordino.release.sensitivity import Sensitivity, Unproven
from sordino.rng.streams import Rng
from tests.contracts.hunter import hunt
from tests.contracts.variants import VARIANTS
from tests.problems import cross_entropy, linear, network, private

SIZE = 257


def summed(rows: torch.Tensor, records: np.ndarray, at_once: int, grid: Grid) -> torch.Tensor:
    """The sum of these rows on the grid, chunk by chunk as lots are cut."""
    total = OnGridAccumulator(grid, Ranks())
    for part in cut_into_batches(records, at_once, len(rows)) or [records]:
        total.add_chunk({"w": rows[torch.from_numpy(part)].sum(dim=0)})
    return total.total.values


@pytest.mark.parametrize("fine", [GRID_BITS, 3])  # a coarse grid, on which rounding is most of what is seen
@pytest.mark.parametrize("at_once", [4, 5])
def test_a_record_moves_the_sum_by_no_more_than_the_door_covers(fine, at_once):
    """Also where it makes a chunk too large, which is then cut in two."""
    rng = np.random.default_rng(0)
    worst, cut = 0.0, 0
    for _ in range(200):
        rows = torch.from_numpy(rng.standard_normal((12, SIZE)))
        rows /= rows.norm(dim=1, keepdim=True)
        grid = Grid(2.0**-fine)
        there = np.flatnonzero(rng.random(12) < 0.7)
        gone = rng.choice(there)
        fewer = there[there != gone]
        moved = summed(rows, there, at_once, grid) - summed(rows, fewer, at_once, grid)
        cut += len(cut_into_batches(there, at_once, 12)) > len(cut_into_batches(fewer, at_once, 12))
        worst = max(worst, float(moved.double().norm()) * grid.step)
    assert cut > 10
    assert worst <= 1 + 1.5 * math.sqrt(SIZE) * grid.step < 1 + ROUNDING_STEPS * math.sqrt(SIZE) * grid.step
    assert fine == GRID_BITS or worst > 1.2  # and it does move it further than the bound


def on_grid(values: list[int], bound: float = 1.0, factors=None) -> OnGrid:
    return OnGrid(torch.tensor(values), {"w": torch.empty(len(values))}, Grid.of(bound, factors), Ranks())


@pytest.mark.parametrize("noise", [sd.Gaussian(2.0), sd.Laplace(2.0)], ids=["gaussian", "laplace"])
def test_the_noise_is_raised_by_what_rounding_to_the_grid_adds(noise):
    values = list(range(-500, 500))
    step, promise = Grid.of(1.0).step, Sensitivity(l2=1.0, l1=1.0, rounding=0.25)
    found = release(Sealed(on_grid(values)), promise, noise, Rng.from_seed(5)).value["w"]
    length = math.sqrt(1000) if isinstance(noise, sd.Gaussian) else 1000
    scale = 2.0 * (1.25 + ROUNDING_STEPS * step * length)
    drawn = {"w": torch.zeros(1000)}
    noise.add_(drawn, scale, Rng.from_seed(5))
    wanted = ((torch.tensor(values) + (drawn["w"].double() / step).round()) * step).float()
    assert torch.equal(found, wanted)


def test_factors_of_units_are_taken_out_again():
    grid = Grid.of(1.0, {"w": 4.0})
    total = OnGridAccumulator(grid, Ranks())
    total.add_chunk({"w": torch.full((3,), 0.5)})
    assert torch.equal(total.total.gather_sum().values["w"], torch.full((3,), 0.5, dtype=torch.float64))
    tiny = release(Sealed(total.total), Sensitivity(l2=1.0), sd.Gaussian(1e-9), Rng.from_seed(0)).value["w"]
    assert torch.allclose(tiny, torch.full((3,), 0.5))


def test_what_does_not_fit_into_64_bits_is_seen():
    total = OnGridAccumulator(Grid.of(1.0), Ranks(), step_limit=2.0**62)
    total.add_chunk({"w": torch.tensor([1.0, 2.0**29])})
    assert total.has_overflowed
    total = OnGridAccumulator(Grid.of(1.0), Ranks(), step_limit=2.0**62)
    total.add_chunk({"w": torch.tensor([float("nan")])})
    assert total.has_overflowed


class Unbounded(sd.Flat):
    """Adds up gradients as they are, and has no proof."""

    def rule(self, state, lot):
        from sordino.clipping.clipping_rule import Rule

        return Rule(lambda norms: torch.full((len(norms.squared), 1), 2.0**90), Unproven("none", 1.0))


def test_a_sum_that_is_too_long_is_refused():
    run = private(query=sd.NoisySum(Unbounded(1.0), sd.Gaussian(1.0)), mesh=Ranks())
    lot = next(run.draws(linear(), sd.Poisson(0.5), 1))
    with pytest.raises(sd.Refusal, match="too long for whole numbers of 64 bits"):
        run.backward(lot)


def test_a_bound_of_infinity_is_refused():
    run = private(query=sd.NoisySum(sd.Flat(float("inf")), sd.Gaussian(0.0)), mesh=Ranks())
    lot = next(run.draws(linear(), sd.Poisson(0.5), 1))
    with pytest.raises(sd.Refusal, match="the rule bounds nothing"):
        run.backward(lot)


HUNTED = ("flat", "layerwise", "layerwise-equal-share", "adaptive-quantile", "with-loss-adaptive", "noisy-lookahead")


@pytest.mark.parametrize("row", [row for row in VARIANTS if row.name in HUNTED], ids=lambda row: row.name)
def test_the_neighbour_hunter_finds_nothing_on_the_grid(row):
    backend = Captured(PerformanceOptions(measure=False))
    catch = hunt(row.query, backend, trials=8, options={"mesh": Ranks(), **row.options})
    assert not catch.broken
    assert catch.worst > 0.5  # it did look


def test_a_group_of_one_is_a_mesh_and_other_things_are_not():
    assert ranks_of(None) is None
    assert ranks_of(alone := Ranks()) is alone
    assert ranks_of("single").size == 1
    with pytest.raises(TypeError, match="must be a torch DeviceMesh of one dimension, a process group, or 'single'"):
        ranks_of("cpu")


def test_a_stopwatch_is_refused_where_ranks_would_choose_apart():
    with pytest.raises(sd.Refusal, match="measures which formula is fastest"):
        private(backend=Captured(), mesh=Ranks())


def test_a_batch_that_nobody_drew_is_refused_among_ranks():
    run = private(mesh=Ranks())
    with pytest.raises(sd.Refusal, match="cannot be divided among ranks"):
        run.backward(tuple(linear(4).tensors))


def test_the_grid_changes_training_by_rounding_only():
    """Beside the run without ranks, which draws other noise of the same law: at no noise to speak of, the same steps."""

    def trained(mesh: Ranks | None) -> torch.Tensor:
        model = network()
        run = sd.Private(model, cross_entropy, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1e-7)), seed=2, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for lot in run.draws(linear(), sd.Poisson(0.3), 5, physical_batch=4):
            run.backward(lot)
            optimizer.step()
        return nn.utils.parameters_to_vector(model.parameters()).detach()

    assert torch.allclose(trained(None), trained(Ranks()), atol=1e-5)


@pytest.mark.parametrize("bound", [0.3, 1.0, 1.9, 2.0, 700.0])
def test_the_step_is_the_power_of_two_below_the_bound_divided_by_a_fixed_number(bound):
    """A coarser step would round rows more than the sensitivity allows for."""
    assert Grid.of(bound).step == 2.0 ** (math.floor(math.log2(bound)) - GRID_BITS)


@pytest.mark.parametrize(
    ("dtypes", "wanted"),
    [
        ([torch.float32, torch.float32], torch.float32),
        ([torch.float64, torch.float64], torch.float64),
        ([torch.float32, torch.float64], torch.float32),
    ],
)
def test_rounding_is_charged_by_the_narrowest_type_of_a_chunk(dtypes, wanted):
    total = OnGridAccumulator(Grid.of(1.0), Ranks())
    total.add_chunk({str(place): torch.full((3,), 0.25, dtype=dtype) for place, dtype in enumerate(dtypes)})
    assert total.dtype is wanted
