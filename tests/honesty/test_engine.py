"""Per-record code that the engine must measure as it is, or refuse: the sum moves by no more than the bound.

Here the stranger's model and loss are honest: a record's loss is its own. What was wrong were the norms.
"""

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import sordino as sd
from tests.honesty.data import CLASSES, INPUTS, Listed, cross_entropy, padded, sentences, vectors
from tests.honesty.door import moved, released

ROUNDED = 1.001
SEEDS = range(4)


def neighbours(data: TensorDataset, n: int = 12) -> tuple[TensorDataset, TensorDataset]:
    """The first records, and the same without the last of them."""
    return TensorDataset(*(t[:n] for t in data.tensors)), TensorDataset(*(t[: n - 1] for t in data.tensors))


def uneven(seed: int) -> TensorDataset:
    """Records of unlike size; the first three, which a check would take, happen to lie in order."""
    data = vectors(seed)
    x = data.tensors[0]
    x.mul_(torch.logspace(-1, 1.5, 64)[torch.randperm(64, generator=torch.Generator().manual_seed(seed))][:, None])
    x[:3, 0] = torch.tensor([3.0, 2.0, 1.0])
    return data


def within(found: float | None, what: str) -> None:
    assert found is None or found < ROUNDED, f"{what}: one record moved the sum by {found:.3g} times the bound"


class Sorting(nn.Module):
    """Sorts the batch between its layers, as packed sequences are run, and restores the order."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(INPUTS, 8), inner, nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort(descending=True)
        return self.last(self.inner(self.first(x).tanh()[order])[order.argsort()])


class Grouping(nn.Module):
    """Runs each expert on its own records alone and puts the results back: routing without a limit."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(INPUTS, CLASSES) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        chosen, out = (x[:, 0] > 0).long(), x.new_zeros(len(x), CLASSES)
        for k, expert in enumerate(self.experts):
            mine = (chosen == k).nonzero().squeeze(1)
            out = out.index_copy(0, mine, expert(x[mine]))
        return out


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, CLASSES))


MODELS = {
    "sorts its batch": lambda: Sorting(nn.Linear(8, 8)),
    "sorts and normalises": lambda: Sorting(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))),
    "sends records to experts": Grouping,
    "reverses its batch": lambda: nn.Sequential(two_layers(), nn.Tanh(), _Flip(), nn.Linear(CLASSES, CLASSES), _Flip()),
}


class _Flip(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flip(0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_reorders_its_batch_is_exact_or_refused(name, seed):
    def make() -> nn.Module:
        torch.manual_seed(seed)
        return MODELS[name]()

    within(moved(make, cross_entropy, *neighbours(uneven(seed)), bound=0.5), name)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_model_that_reorders_its_batch_contributes_what_was_measured(seed):
    """Against a loop over single records: the whole sum is the one of clipped gradients."""
    for name, build in MODELS.items():

        def make(build=build) -> nn.Module:
            torch.manual_seed(seed)
            return build()

        data = neighbours(uneven(seed))[0]
        nothing = TensorDataset(*(t[:1] * 0 for t in data.tensors))
        silent = released(make, lambda m, x, y: cross_entropy(m, x, y) * 0, nothing, bound=0.5)  # the noise itself
        found = released(make, cross_entropy, data, bound=0.5)
        if found is None or silent is None:
            continue
        model, total = make(), torch.zeros(())
        for x, y in zip(*data.tensors, strict=True):
            like = list(model.parameters())
            one = torch.autograd.grad(cross_entropy(model, x[None], y[None])[0], like, allow_unused=True)
            flat = torch.cat([(p * 0 if g is None else g).detach().flatten() for g, p in zip(one, like, strict=True)])
            total = total + flat * min(1.0, 0.5 / float(flat.norm()))
        off = float((found - silent - total.double()).norm()) / 0.5
        assert off < 0.01, f"{name}: the sum is off by {off:.2f} times the bound"


class Noisy(nn.Module):
    """Drops features by another library's random numbers, below a checkpoint that runs it twice."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.first, self.last, self.source = nn.Linear(INPUTS, 8), nn.Linear(8, CLASSES), source

    def drop(self, x: Tensor) -> Tensor:
        if self.source == "numpy":
            scale = torch.from_numpy(np.random.lognormal(0.0, 2.0, tuple(x.shape))).to(x)
        elif self.source == "python":
            scale = torch.tensor([[random.lognormvariate(0.0, 2.0) for _ in row] for row in x]).to(x)
        else:
            scale = torch.randn_like(x).mul(2).exp()
        return x * scale

    def forward(self, x: Tensor) -> Tensor:
        def inner(z: Tensor) -> Tensor:
            return self.first(self.drop(z) if self.training else z).tanh()

        return self.last(checkpoint(inner, x, use_reentrant=False))


@pytest.mark.parametrize("source", ["numpy", "python", "torch"])
@pytest.mark.parametrize("seed", SEEDS)
def test_two_passes_see_the_same_random_numbers(source, seed):
    """One record alone: its norm comes from the first pass and what is summed from the second."""

    def make() -> nn.Module:
        torch.manual_seed(seed)
        return Noisy(source)

    data = vectors(seed)
    one = TensorDataset(*(t[:1] for t in data.tensors))
    np.random.seed(seed)
    random.seed(seed)

    def scaled(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return 100 * cross_entropy(model, x, y)

    for _ in range(5):
        silent = released(make, lambda m, x, y: scaled(m, x, y) * 0, one)
        found = released(make, scaled, one)
        if found is None or silent is None:
            return
        within(float((found - silent).norm()), f"checkpoint with {source}")


def factory(transposed: bool, times: float):
    """Losses by one line of code: what the first was checked for, the second is not."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        if transposed:
            return times * model(x.transpose(0, 1)).tanh().square().sum((0, 2))
        return times * model(x).tanh().square().sum((1, 2))

    return loss


@pytest.mark.parametrize("length", [4, 5])
def test_a_plan_of_one_loss_is_not_used_for_another_of_the_same_factory(length):
    """The same layer, once with records first and once with time first, as many records as places."""
    g = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(length, length, 6, generator=g) * torch.logspace(-2, 1, length)[:, None, None])
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    start = {name: p.clone() for name, p in model.state_dict().items()}

    def make() -> nn.Module:
        model.load_state_dict(start)
        return model

    fresh = released(lambda: _copy(start), factory(True, 5.0), data, bound=0.5)
    released(make, factory(False, 5.0), data, bound=0.5)
    after = released(make, factory(True, 5.0), data, bound=0.5)
    if fresh is None or after is None:
        return
    off = float((fresh - after).norm()) / 0.5
    assert off < 0.01, f"the second loss of a factory was summed with the first one's plan: off by {off:.2f} bounds"


def _copy(start: dict[str, Tensor]) -> nn.Module:
    model = nn.Linear(6, 4)
    model.load_state_dict(start)
    return model


class MaskedMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        there = (ids > 0).unsqueeze(2)
        return self.head((self.words(ids) * there).sum(1) / there.sum(1))


@pytest.mark.parametrize("seed", SEEDS)
def test_microbatches_follow_their_records_through_a_collate_that_sorts(seed):
    """A record's group is its own coin; rows that were sorted are other records' rows."""

    def collate(records):
        return padded(sorted(records, key=lambda record: -len(record[0])))

    def make() -> nn.Module:
        torch.manual_seed(seed)
        return MaskedMean()

    def loss(model: nn.Module, ids: Tensor, y: Tensor) -> Tensor:
        return 10 * F.cross_entropy(model(ids), y, reduction="none")

    records = sentences(seed)[:24]
    records[-1] = (torch.arange(30) % 19 + 1, 0)  # the longest: it comes first, and all the others move
    query = sd.Microbatches(sd.Flat(0.3), sd.Gaussian(2.0), sd.ByCoin(20))
    # Private divides by the expected groups, 20, and expected_batch is 1; the reach of a group is twice the bound.
    found = moved(make, loss, Listed(records), Listed(records[:-1]), bound=0.3, query=query, collate=collate)
    within(None if found is None else found * 20 / 2, "microbatches of sorted rows")
