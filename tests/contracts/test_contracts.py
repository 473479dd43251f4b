"""What every variant keeps, each written once and run for every row of the table and every backend."""

import json
import math

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.per_sample import Loop
from sordino.per_sample.protocol import Norms
from sordino.sampling import Informed
from sordino.state_packing import pack, unpack
from tests.contracts.chosen import rows, rows_and_backends
from tests.contracts.hunter import Scripted, network, records, squared_error
from tests.contracts.row import BACKENDS
from tests.untested import untested


@pytest.fixture(autouse=True)
def what_is_tested_here():
    """The variants: the standing test has tests of its own, and every lot here would be a first one."""
    with untested():
        yield


def every_variant(contract, **options):
    return pytest.mark.parametrize("variant", rows(contract, **options), ids=lambda v: v.name)


def every_variant_and_backend(contract, **options):
    found = rows_and_backends(contract, **options)
    return pytest.mark.parametrize(("variant", "backend"), found.values(), ids=found)


def asks(sampler) -> bool:
    """Whether a sampler asks the records."""
    return isinstance(sampler, Informed)


LOTS = ((0, 3, 5, 7), (), (1, 2), (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10))


def data(variant=None, n: int = 12) -> TensorDataset:
    """So many records, or of so many units."""
    total = n if variant is None or variant.units is None else variant.units(n)[0]
    return TensorDataset(*records(np.random.default_rng(6), total))


def unit_of(variant, n: int = 12):
    return None if variant.units is None else variant.units(n)[1]


def train(variant, backend=None, *, query=None, lots=LOTS, dataset=None, seed=3, **options):
    """Parameters and the Private after a lot each."""
    model = network()
    private = sd.Private(model, squared_error, query or variant.query(), backend=backend, seed=seed, **variant.options)
    steps = torch.optim.SGD(model.parameters(), lr=0.05)
    unit = unit_of(variant)
    for lot in private.draws(dataset or data(variant), Scripted(lots), steps=len(lots), unit=unit, **options):
        private.backward(lot)
        steps.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), private


@every_variant_and_backend("plain")
def test_without_bound_and_noise_it_is_plain_sgd(variant, backend):
    dataset = data()
    private, _ = train(variant, backend, query=variant.unclipped(), dataset=dataset, expected_batch=5.0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for lot in LOTS:
        x, y = (column[list(lot)] for column in dataset.tensors)
        optimizer.zero_grad()
        names = [name for name, _ in model.named_parameters()]
        penalty = variant.options["penalty"].strengths_for(names) if variant.options else {}
        each = sum(penalty.get(name, 0.0) / 2 * p.square().sum() for name, p in model.named_parameters())
        ((squared_error(model, x, y) + each).sum() / 5.0).backward()
        optimizer.step()
    plain = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(private, plain, rtol=1e-6, atol=1e-6)  # 1e9 is not quite infinity


@every_variant_and_backend("order")
def test_the_order_within_a_lot_changes_nothing(variant, backend):
    one, _ = train(variant, backend)
    other, _ = train(variant, backend, lots=tuple(lot[::-1] for lot in LOTS))
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@every_variant_and_backend("empty")
def test_an_empty_lot_is_a_step_with_noise_and_cost(variant, backend):
    before = torch.cat([p.detach().flatten() for p in network().parameters()])
    after, private = train(variant, backend, lots=((),))
    assert (after != before).all()
    assert private.event == sd.dry_run(variant.query(), Scripted(((),)), 12, 1, backend=backend)


@every_variant_and_backend("chunked")
@pytest.mark.parametrize("physical_batch", [1, 3])
def test_chunked_is_whole(variant, backend, physical_batch):
    whole, _ = train(variant, backend, physical_batch=100)
    parts, _ = train(variant, backend, physical_batch=physical_batch)
    torch.testing.assert_close(parts, whole, rtol=1e-10, atol=1e-10)


@every_variant_and_backend("oracle")
def test_every_backend_is_the_loop(variant, backend):
    oracle, _ = train(variant, Loop())
    other, _ = train(variant, backend)
    torch.testing.assert_close(other, oracle, rtol=1e-10, atol=1e-10)


EVERY_SAMPLER = tuple(made for row in rows("event", scripted=False) if row.sampler and not asks(made := row.sampler()))
"""Of the rows: every sampler that any method can have."""
SOME_SAMPLERS = (sd.Poisson(0.3), sd.Shuffle(5), sd.BallsInBins(3))
"""One with independent draws, one with passes, one with bins; the others resume in their own rows."""


def with_samplers(found, samplers):
    """Each row with each of the samplers, or with its own if it is one."""
    for name, row in found.items():
        for sampler in [row[0].sampler()] if row[0].sampler else samplers:
            yield pytest.param(*row, sampler, id=f"{name}-{type(sampler).__name__}")


@pytest.mark.parametrize(
    ("variant", "sampler"),
    list(with_samplers({row.name: (row,) for row in rows("event", scripted=False)}, EVERY_SAMPLER)),
)
def test_the_event_of_a_dry_run_is_that_of_the_real_run(variant, sampler):
    model, backend = network(), BACKENDS[variant.backends[-1]]
    private = sd.Private(model, squared_error, variant.query(), backend=backend, seed=0, **variant.options)
    for lot in private.draws(data(variant), sampler, steps=7, unit=unit_of(variant)):
        private.backward(lot)
    assert private.event == sd.dry_run(variant.query(), sampler, dataset_size=12, steps=7, backend=backend)


def through_a_file(state):
    """As a checkpoint keeps it: JSON, and tensors by name."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(pack(state, "", tensors))
    return unpack(json.loads(text), {name: tensor.clone() for name, tensor in tensors.items()})


@pytest.mark.parametrize(
    ("variant", "backend", "sampler"),
    list(with_samplers(rows_and_backends("resume", scripted=False), SOME_SAMPLERS)),
)
def test_a_run_resumed_half_way_ends_bit_equal_with_an_equal_ledger(variant, backend, sampler):
    def begun(model, seed):
        return sd.Private(model, squared_error, variant.query(), backend=backend, seed=seed, **variant.options)

    def run(stop):
        model = network()
        private = begun(model, 5)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for lot in private.draws(data(variant), sampler, steps=8, unit=unit_of(variant)):
            private.backward(lot)
            optimizer.step()
            if private.steps == stop:
                break
        return model, private, optimizer

    straight, whole, _ = run(8)
    model, private, optimizer = run(4)
    whole.secret_state()
    secret = through_a_file(private.secret_state())
    saved = through_a_file(private.state_dict())
    fresh = network()
    fresh.load_state_dict(model.state_dict())
    resumed = begun(fresh, 999)
    resumed.load_state_dict(saved, replay=sd.Replay("a test", entered=True, secret=secret))
    again = torch.optim.Adam(fresh.parameters(), lr=0.01)
    again.load_state_dict(optimizer.state_dict())
    for lot in resumed.draws(data(variant), sampler, steps=8 - resumed.steps, unit=unit_of(variant)):
        resumed.backward(lot)
        again.step()
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), fresh.parameters(), strict=True))
    assert resumed.event == whole.event
    ours, theirs = ({}, {}), ({}, {})
    for found, of in ((ours, resumed), (theirs, whole)):
        found[0]["json"] = pack(of.state_dict(), "", found[1])
    assert ours[0] == theirs[0]
    torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=0)


@every_variant("noise")
def test_noise_has_the_declared_scale_in_every_tensor_and_no_memory(variant):
    """15,000 values and more a tensor: 2 % is over 3.4 standard errors of the scale, 4 % over 4.9 of a correlation."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(150, 40), torch.nn.Identity(), torch.nn.Linear(40, 100))
    clipping, sizes = variant.clipping(), {name: p.numel() for name, p in model.named_parameters()}
    private = sd.Private(model, lambda m, x: m(x).sum(1), sd.NoisySum(clipping, sd.Gaussian(2.0)), seed=8)
    dataset = TensorDataset(torch.zeros(1, 150))
    drawn: dict[str, list[torch.Tensor]] = {name: [] for name, _ in model.named_parameters()}
    for lot in private.draws(dataset, Scripted(((),)), steps=400):
        declared = clipping.rule(private.state_dict()["state"], list).sensitivity
        units = declared.units(sizes) if declared.units else dict.fromkeys(sizes, 1.0)
        private.backward(lot)
        for name, p in model.named_parameters():
            scale = 2.0 * declared.l2 / units[name]
            drawn[name].append(p.grad.flatten() * lot.expected_batch / scale)
    for name, values in drawn.items():
        z = torch.stack(values).double()  # (steps, d)
        assert z.numel() >= 15_000
        assert z.std().item() == pytest.approx(1.0, abs=0.02), name
        assert abs((z[1:] * z[:-1]).mean().item()) < 0.04, f"{name}: from step to step"
        assert abs((z[:, 1:] * z[:, :-1]).mean().item()) < 0.04, f"{name}: from value to value"


@every_variant_and_backend("divisor")
def test_the_divisor_is_public_whatever_the_size_of_the_lot(variant, backend):
    dataset = data()
    for lot in LOTS:
        model = network()
        private = sd.Private(model, squared_error, variant.query(0.0), backend=backend, seed=0, **variant.options)
        clipping = variant.clipping()
        rule = clipping.rule(clipping.init(), list)
        grads = Loop().per_sample(model, squared_error, tuple(column[list(lot)] for column in dataset.tensors))
        if variant.options:
            grads = variant.options["penalty"].add_to(grads, dict(model.named_parameters()))
        clipped = grads.weighted_sum(rule.weights(grads.norms()))
        for drawn in private.draws(dataset, Scripted((lot,)), steps=1, expected_batch=7.0):
            private.backward(drawn)
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.grad * 7.0, clipped[name], rtol=1e-9, atol=1e-12)


@every_variant("bound")
def test_weight_times_norm_never_exceeds_the_declared_bound(variant):
    """φ(r)·r ≤ C for every r from 1e-8 to 1e8, spread over the tensors in every way."""
    clipping = variant.clipping()
    rule = clipping.rule(clipping.init(), list)
    names = tuple(name for name, _ in network().named_parameters())
    shares = torch.from_numpy(np.random.default_rng(0).dirichlet([0.3] * len(names), size=2000))
    r = torch.logspace(-8, 8, 2000, dtype=torch.float64).unsqueeze(1)
    squared = torch.cat([shares * r**2, torch.zeros(1, len(names)), torch.eye(len(names), dtype=torch.float64)])
    weights = rule.weights(Norms(squared, names))
    assert (weights >= 0).all()
    units = rule.sensitivity.units
    if units is not None:
        factors = units({name: p.numel() for name, p in network().named_parameters()})
        weights = weights * torch.tensor([factors[name] for name in names], dtype=torch.float64)
    moved = (weights.square() * squared).sum(dim=1).sqrt()
    assert moved.max() <= rule.sensitivity.l2 * (1 + 1e-12)


@every_variant_and_backend("poison")
@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e200])
def test_a_record_whose_gradient_is_not_finite_contributes_nothing(variant, backend, poison):
    x, y = (column.clone() for column in data(variant).tensors)
    y[3] = poison
    poisoned, _ = train(variant, backend, dataset=TensorDataset(x, y), lots=((0, 3, 5), (3,)))
    without, _ = train(variant, backend, dataset=TensorDataset(x, y), lots=((0, 5), ()))
    torch.testing.assert_close(poisoned, without, rtol=1e-10, atol=1e-10)
