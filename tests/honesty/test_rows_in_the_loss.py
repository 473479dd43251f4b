"""A loss or a model that reads the dataset is found, one that reads a record's own row is not, and what memory shows of a
run is named.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Subset, TensorDataset

import sordino as sd
from tests.honesty.attacks.model import far
from tests.honesty.data import cross_entropy, network

BOUND, N, CLASSES = 0.2, 300, 3


def records(seed):
    """Points of three classes that are far apart, several times as many as those of the other tests."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(N) % CLASSES
    return torch.randn(N, 6, generator=generator) + 3 * torch.randn(CLASSES, 6, generator=generator)[y], y


class Anchors(nn.Module):
    """Compares its inputs with points that it holds."""

    def __init__(self, points):
        super().__init__()
        self.points, self.head = points, nn.Linear(len(points), CLASSES)

    def forward(self, x):
        return self.head(torch.exp(-torch.cdist(x, self.points).square() / 20))


class Closed(Dataset):
    """Reads rows of tensors that it has from the function around it."""

    def __init__(self, read, n=N):
        self.read, self.n = read, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.read(i)


class Table(Dataset):
    """Holds arrays of numpy, and gives a record's number beside it."""

    def __init__(self, x, y):
        self.x, self.y = x.numpy().copy(), y.numpy().copy()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.from_numpy(self.x[i]), int(self.y[i])


def the_mean_output_of_the_training_set(x, y):
    return network(), lambda m, xb, yb: cross_entropy(m, xb, yb) + (m(xb) - m(x).mean(0)).square().sum(1), None


def class_means_of_the_training_set(x, y):
    def loss(m, xb, yb):
        means = torch.stack([x[y == c].mean(0) for c in range(CLASSES)])
        return F.cross_entropy(-torch.cdist(m(xb), m(means)), yb, reduction="none")

    return network(), loss, None


def class_frequencies_of_the_dataset(x, y):
    data = TensorDataset(x, y)

    def loss(m, xb, yb):
        counts = torch.bincount(data.tensors[1], minlength=CLASSES).float()
        return cross_entropy(lambda given: m(given) + counts - counts.mean(), xb, yb)

    return network(), loss, data


def anchors_of_the_model_are_the_training_set(x, y):
    return Anchors(x), cross_entropy, None


def anchors_of_the_model_are_a_view(x, y):
    return Anchors(x[: N // 2]), cross_entropy, None


def an_array_that_the_loss_holds(x, y):
    data = Table(x, y)

    def loss(m, xb, yb):
        return (m(xb) - m(torch.from_numpy(data.x.mean(0)))).square().sum(1)

    return network(), loss, data


def a_subset_and_the_whole_tensor(x, y):
    data = Subset(TensorDataset(x, y), list(range(0, N, 2)))
    return network(), lambda m, xb, yb: (m(xb) - m(x).mean(0)).square().sum(1), data


def a_copy_of_the_training_set(x, y):
    held = x.clone()
    return network(), lambda m, xb, yb: (m(xb) - m(held).mean(0)).square().sum(1), None


MADE = {
    make.__name__.replace("_", " "): make
    for make in (
        the_mean_output_of_the_training_set,
        class_means_of_the_training_set,
        class_frequencies_of_the_dataset,
        anchors_of_the_model_are_the_training_set,
        anchors_of_the_model_are_a_view,
        an_array_that_the_loss_holds,
        a_subset_and_the_whole_tensor,
        a_copy_of_the_training_set,
    )
}


def clipped_sum(make, x, y, kept):
    """The clipped sum over some records of the dataset that `make` gives, at weights that are always the same."""
    torch.manual_seed(0)
    model, loss, _ = make(x, y)
    total = torch.zeros(sum(p.numel() for p in model.parameters()))
    for one in loss(model, x[kept], y[kept]):
        found = torch.autograd.grad(one, list(model.parameters()), retain_graph=True, allow_unused=True)
        pairs = zip(found, model.parameters(), strict=True)
        g = torch.cat([(torch.zeros_like(p) if each is None else each).flatten() for each, p in pairs])
        total += g * min(1.0, BOUND / float(g.norm()))
    return total


@pytest.mark.parametrize("name", MADE)
def test_one_row_moves_the_sum_of_the_other_records(name):
    """Records that are not exchanged move by more than half the bound, on top of what the row's own record may move."""
    x, y = records(0)
    worst = 0.0
    for row in (2, 20, 64):
        other, classes = x.clone(), y.clone()
        other[row] = 400 * torch.randn(6, generator=torch.Generator().manual_seed(1))
        classes[row] = (y[row] + 1) % CLASSES
        kept = [k for k in range(N) if k != row]
        moved = clipped_sum(MADE[name], x, y, kept) - clipped_sum(MADE[name], other, classes, kept)
        worst = max(worst, float(moved.norm()) / BOUND)
    assert worst > 0.5, f"{name}: the others move by {worst:.2f} times the bound"


def train(model, loss, data, seed, lots=8, body=None, **options):
    private = sd.Private(model, loss, sd.NoisySum(sd.Flat(BOUND), sd.Gaussian(2.0)), seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for k, lot in enumerate(private.draws(data, sd.Poisson(0.1), steps=lots, expected_batch=30, **options)):
        private.backward(lot)
        optimizer.step()
        if body is not None:
            body(k)
    return private.claim(1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MADE)
def test_a_loss_made_of_other_rows_is_refused(name, seed):
    x, y = records(seed)
    torch.manual_seed(seed)
    model, loss, data = MADE[name](x, y)
    with pytest.raises(sd.Refusal, match="reads the dataset"):
        train(model, loss, data or TensorDataset(x, y), seed)


def test_a_loss_that_begins_to_read_the_dataset_later_loses_the_claim():
    x, y = records(0)
    step = [0]

    def loss(m, xb, yb):
        losses = cross_entropy(m, xb, yb)
        return losses if step[0] < 5 else losses + (m(xb) - m(x).mean(0)).square().sum(1)

    with pytest.warns(sd.ClaimVoidedWarning):
        claim = train(network(), loss, TensorDataset(x, y), 0, 20, lambda k: step.__setitem__(0, k))
    assert isinstance(claim, sd.NoGuarantee)
    assert "reads the dataset" in str(claim)


def its_own_label(x, y):
    return network(), lambda m, xb, i: cross_entropy(m, xb, y[i]), Closed(lambda i: (x[i], i))


def its_own_weight_in_a_table(x, y):
    weights = torch.rand(N)
    return network(), lambda m, xb, yb, i: cross_entropy(m, xb, yb) * weights[i], TensorDataset(x, y, torch.arange(N))


def its_own_row_of_the_whole_table_under_a_split(x, y):
    data = Subset(TensorDataset(x, y, torch.arange(N)), list(range(1, N, 3)))
    return network(), lambda m, xb, yb, i: cross_entropy(m, x[i], yb), data


def the_shape_of_the_training_set(x, y):
    return network(), lambda m, xb, yb: cross_entropy(m, xb, yb) / x.shape[1], None


def public_anchors(x, y):
    return Anchors(torch.randn(20, 6)), cross_entropy, None


def a_frozen_network_beside_it(x, y):
    teacher = network().requires_grad_(False)
    return network(), lambda m, xb, yb: (m(xb) - teacher(xb)).square().sum(1), Table(x, y)


HONEST = {
    make.__name__.replace("_", " "): make
    for make in (
        its_own_label,
        its_own_weight_in_a_table,
        its_own_row_of_the_whole_table_under_a_split,
        the_shape_of_the_training_set,
        public_anchors,
        a_frozen_network_beside_it,
    )
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", HONEST)
def test_a_loss_made_of_its_own_row_keeps_its_claim(name, seed):
    x, y = records(seed)
    torch.manual_seed(seed)
    model, loss, data = HONEST[name](x, y)
    claim = train(model, loss, data or TensorDataset(x, y), seed)
    assert isinstance(claim, sd.Guarantee)
    assert claim.not_covered == ("seed",)
    assert not [line for line in claim.rests_on if "the loss" in line or "written to" in line]


def test_the_dataset_is_as_it_was_after_a_test():
    x, y = records(0)
    before = x.clone(), x._version
    with pytest.raises(sd.Refusal):
        train(*the_mean_output_of_the_training_set(x, y)[:2], TensorDataset(x, y), 0)
    assert torch.equal(x, before[0])
    assert x._version == before[1]


def test_something_else_with_as_many_rows_is_named():
    y = records(0)[1]
    graph = (torch.rand(N, N) < 0.05).float()
    values = torch.randn(N, 6)
    claim = train(network(), lambda m, i, yb: cross_entropy(m, (graph @ values)[i], yb), Closed(lambda i: (i, y[i])), 0)
    assert any("as many rows as there are records" in line for line in claim.rests_on)


@pytest.mark.parametrize("as_parameter", [True, False])
def test_records_that_the_model_holds_are_named(as_parameter):
    x, y = records(0)
    model = Anchors(x[:10].clone())
    points = model.points
    del model.points
    if as_parameter:
        model.points = nn.Parameter(points)
    else:
        model.register_buffer("points", points)
    claim = train(model, cross_entropy, TensorDataset(x, y), 0)
    assert any("'points' of the model" in line for line in claim.not_covered)


def test_a_table_that_was_standardised_by_itself_is_named():
    x, y = records(0)
    data = TensorDataset((x - x.mean(0)) / x.std(0), y)
    claim = train(network(), cross_entropy, data, 0)
    assert any("fitted on these records" in line for line in claim.not_covered)


@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_records_that_are_written_to_during_the_run_are_named(kind):
    x, y = records(0)
    if kind == "tensor":
        data = TensorDataset(x, y)
        claim = train(network(), cross_entropy, data, 0, body=lambda k: k == 3 and x.sub_(x.mean(0)))
    else:
        data = Table(x, y)
        claim = train(network(), cross_entropy, data, 0, body=lambda k: k == 3 and np.subtract(data.x, 1, out=data.x))
    assert any("written to in memory" in line for line in claim.rests_on)


def test_a_teacher_that_was_trained_before_is_named():
    x, y = records(0)
    teacher = network()
    optimizer = torch.optim.SGD(teacher.parameters(), lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        cross_entropy(teacher, x, y).mean().backward()
        optimizer.step()
    claim = train(network(), lambda m, xb, yb: (m(xb) - teacher(xb).detach()).square().sum(1), TensorDataset(x, y), 0)
    assert any("modules that the loss refers to" in line for line in claim.not_covered)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_parameters_are_refused(register):
    x, y = far(0).tensors
    model = network()
    getattr(next(model.parameters()), register)(lambda g: None)
    with pytest.raises(sd.Refusal, match="hook on its gradient"):
        train(model, cross_entropy, TensorDataset(x, y), 0)


def test_a_hook_on_a_parameter_that_comes_later_is_refused():
    x, y = records(0)
    model = network()

    def body(k):
        if k == 2:
            next(model.parameters()).register_hook(lambda g: g / g.norm())

    with pytest.raises(sd.Refusal, match="hook on its gradient"):
        train(model, cross_entropy, TensorDataset(x, y), 0, body=body)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_units_without_an_id_are_refused(missing):
    x, y = records(0)
    owners = [missing if i % 10 == 0 else float(i // 3) for i in range(N)]
    with pytest.raises(sd.Refusal, match="id of a record is missing"):
        train(network(), cross_entropy, TensorDataset(x, y), 0, unit=sd.Unit(owners, records=4, name="person"))


@pytest.mark.parametrize("place", ["loss", "model"])
def test_isolation_refuses_a_view_of_the_dataset(place):
    x, y = records(0)
    half = x[:50]
    model = Anchors(half) if place == "model" else network()

    def loss(m, xb, yb):
        return cross_entropy(m, xb, yb) + (m(xb) - m(half).mean(0)).square().sum(1)

    private = sd.Private(
        model,
        loss if place == "loss" else cross_entropy,
        sd.NoisySum(sd.Flat(BOUND), sd.Gaussian(2.0)),
        isolate=True,
    )
    lot = next(private.draws(TensorDataset(x, y), sd.Poisson(0.1), steps=1))
    with pytest.raises(sd.Refusal, match="in memory of the dataset"):
        private.backward(lot)


def test_points_that_a_module_holds_in_an_attribute_are_named():
    x, y = records(0)
    claim = train(Anchors(x[:10].clone()), cross_entropy, TensorDataset(x, y), 0)
    assert any("'points' of the model" in line for line in claim.not_covered)


def test_a_delta_that_repeated_records_use_up_is_explained():
    words = torch.randint(0, 50, (N,), generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Embedding(50, 6), nn.Linear(6, 2))
    claim = train(model, cross_entropy, TensorDataset(words, (words > 25).long()), 0)
    assert isinstance(claim, sd.NoGuarantee)
    assert "several times" in str(claim)
