"""Any torch optimizer and scheduler: the gradient is in .grad, the rest is the user's."""

import pytest
import torch
from torch import nn

import sordino as sd
from tests.problems import cross_entropy, dpsgd, linear, network, parameters, private

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "decoupled-decay": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adam-foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam-fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "rprop": lambda p: torch.optim.Rprop(p),
    "sgd-maximize-decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1, maximize=True),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_does_what_it_does_with_the_same_gradients(make):
    model, plain = network(), network()
    p = private(model)
    ours, theirs = make(model.parameters()), make(plain.parameters())
    for lot in p.draws(linear(), sd.Poisson(0.3), steps=5):
        p.backward(lot)
        for there, here in zip(plain.parameters(), model.parameters(), strict=True):
            there.grad = here.grad.clone()
        ours.step()
        theirs.step()
    assert torch.equal(parameters(model), parameters(plain))
    assert isinstance(p.claim(1e-5), sd.Guarantee)


def test_a_scheduler_takes_effect():
    def run(gamma):
        model = network()
        p = private(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)
        for lot in p.draws(linear(), sd.Poisson(0.3), steps=4):
            p.backward(lot)
            optimizer.step()
            scheduler.step()
        return parameters(model), optimizer.param_groups[0]["lr"], p

    constant, _, _ = run(1.0)
    falling, rate, p = run(0.5)
    assert rate == pytest.approx(0.1 * 0.5**4)
    assert not torch.equal(constant, falling)
    assert isinstance(p.claim(1e-5), sd.Guarantee)


def test_several_optimizers_over_disjoint_parameters():
    model = network()
    p = private(model)
    one = torch.optim.SGD(model[0].parameters(), lr=0.1)
    two = torch.optim.Adam(model[2].parameters(), lr=0.1)
    before = [q.detach().clone() for q in model.parameters()]
    for lot in p.draws(linear(), sd.Poisson(0.3), steps=2):
        p.backward(lot)
        one.step()
        two.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert isinstance(p.claim(1e-5), sd.Guarantee)


def test_frozen_parameters_stay_and_cost_nothing():
    model = network()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    p = private(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for lot in p.draws(linear(), sd.Poisson(0.3), steps=3):
        p.backward(lot)
        optimizer.step()
    assert torch.equal(model[0].weight, before)
    assert model[0].weight.grad is None


@pytest.mark.parametrize("backend", [sd.per_sample.Loop(), sd.per_sample.Vmap()], ids=["loop", "vmap"])
def test_parameters_frozen_and_thawed_in_mid_run(backend):
    model = network()
    p = private(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    moved = []
    for lot in p.draws(linear(), sd.Poisson(0.3), steps=6):
        model[0].requires_grad_(p.steps in (1, 2, 5, 6))
        before = model[0].weight.detach().clone()
        p.backward(lot)
        optimizer.step()
        moved.append(not torch.equal(before, model[0].weight))
    assert moved == [True, True, False, False, True, True]
    assert isinstance(p.claim(1e-5), sd.Guarantee)


def test_a_parameter_thawed_later_is_watched_too():
    model = network()
    model[0].requires_grad_(False)
    p = private(model)
    p.backward(next(p.draws(linear(), sd.Poisson(0.3), steps=1)))
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)
    p.backward(next(p.draws(linear(), sd.Poisson(0.3), steps=1)))
    cross_entropy(model, *linear().tensors).sum().backward()
    assert isinstance(p.claim(1e-5), sd.NoGuarantee)


def test_the_model_stays_the_users_own():
    model = network()
    keys = list(model.state_dict())
    p = private(model)
    for lot in p.draws(linear(), sd.Poisson(0.3), steps=1):
        p.backward(lot)
    assert list(model.state_dict()) == keys
    assert type(model) is nn.Sequential
    assert not model._forward_hooks


def test_half_precision_parameters_get_gradients_of_their_own_type():
    model = network().bfloat16()
    p = sd.Private(model, lambda m, x, y: cross_entropy(m, x.bfloat16(), y), dpsgd(), seed=0)
    for lot in p.draws(linear(), sd.Poisson(0.3), steps=1):
        p.backward(lot)
    assert all(q.grad.dtype == torch.bfloat16 for q in model.parameters())


def test_a_closure_that_asks_private_is_a_step_like_any_other():
    model = network()
    p = private(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for lot in p.draws(linear(), sd.Poisson(0.3), steps=3):

        def closure(lot=lot):
            p.backward(lot)

        optimizer.step(closure)
    assert isinstance(p.claim(1e-5), sd.Guarantee)


def test_a_closure_that_writes_gradients_of_its_own_voids_the_claim():
    model = network()
    p = private(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():
        for q in model.parameters():
            q.grad = torch.ones_like(q)

    for _ in p.draws(linear(), sd.Poisson(0.3), steps=1):
        optimizer.step(closure)
    assert "by hand" in p.claim(1e-5).reason


def test_a_gradient_of_less_memory_than_its_shape_voids_the_claim():
    """Written by hand as one number, expanded: what is compared of it must not be read past its end."""
    model = nn.Linear(30, 2)
    private = sd.Private(model, lambda m, x: m(x).square().sum(1), sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), seed=0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.utils.data.TensorDataset(torch.randn(40, 30))
    for lot in private.draws(data, sd.Poisson(0.5), 2, expected_batch=20):
        private.backward(lot)
        model.weight.grad = torch.zeros(1).expand(2, 30)
        optimizer.step()
    assert "written or changed by hand" in private.claim(1e-5).reason
