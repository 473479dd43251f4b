"""What has no guarantee says so, with its reason, and never prints an ε."""

import pytest
import torch

import sordino as sd
from tests.problems import cross_entropy, dpsgd, linear, network, private


def one_lot(p):
    return next(p.draws(linear(), sd.Poisson(0.3), steps=1))


def reason(p) -> str:
    claim = p.claim(1e-5)
    assert isinstance(claim, sd.NoGuarantee)
    with pytest.raises(AttributeError):
        claim.epsilon  # noqa: B018
    assert "ε" not in str(claim)
    return claim.reason


def test_an_empty_ledger():
    assert "nothing was drawn" in reason(private())


def test_a_stray_backward_between_draw_and_step():
    model = network()
    p = private(model)
    p.backward(one_lot(p))
    cross_entropy(model, *linear().tensors).mean().backward()
    assert "outside private.backward" in reason(p)


def test_a_stray_backward_before_private_backward():
    model = network()
    p = private(model)
    lot = one_lot(p)
    cross_entropy(model, *linear().tensors).mean().backward()
    p.backward(lot)
    assert "outside private.backward" in reason(p)


def step(model):
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_a_gradient_scaled_by_hand():
    model = network()
    p = private(model)
    p.backward(one_lot(p))
    model[0].bias.grad.mul_(2)
    step(model)
    assert "'0.bias' was written or changed by hand" in reason(p)


def test_a_gradient_replaced_by_hand():
    model = network()
    p = private(model)
    p.backward(one_lot(p))
    model[0].weight.grad = model[0].weight.grad * 2
    step(model)
    assert "by hand" in reason(p)


def test_gradients_clipped_by_hand():
    model = network()
    p = private(model)
    p.backward(one_lot(p))
    torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)
    step(model)
    assert "by hand" in reason(p)


def test_gradients_multiplied_by_one_number_are_still_released_ones():
    model = network()
    p = private(model)
    p.backward(one_lot(p))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    step(model)
    assert isinstance(p.claim(1e-5), sd.Guarantee)


def test_gradients_multiplied_by_different_numbers():
    model = network()
    p = private(model)
    p.backward(one_lot(p))
    for k, q in enumerate(model.parameters()):
        q.grad.mul_(1 + k)
    step(model)
    assert "by hand" in reason(p)


def test_post_processing_of_gradients_and_parameters_is_declared():
    model = network()
    p = private(model)
    p.backward(one_lot(p))
    with p.post_processing("values clipped"):
        torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)
    step(model)
    with p.post_processing("projected"), torch.no_grad():
        for q in model.parameters():
            q.clamp_(-1, 1)
    said = p.claim(1e-5)
    assert isinstance(said, sd.Guarantee)
    assert any("projected" in line for line in said.rests_on)


def test_parameters_overwritten_by_hand():
    model = network()
    p = private(model)
    p.backward(one_lot(p))
    step(model)
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    assert "changed other than by an optimizer step" in reason(p)


def test_a_step_with_gradients_of_ones_own():
    model = network()
    p = private(model)
    one_lot(p)
    for q, grad in zip(
        model.parameters(),
        torch.autograd.grad(cross_entropy(model, *linear().tensors).mean(), list(model.parameters())),
        strict=True,
    ):
        q.grad = grad
    step(model)
    assert "by hand" in reason(p)


def test_a_batch_no_sampler_drew():
    model = network()
    p = private(model)
    p.backward(linear().tensors)
    assert all(q.grad is not None for q in model.parameters())
    assert "no sampler drew" in reason(p)


def test_an_exposed_value_and_its_reason():
    p = private()
    losses = p.backward(one_lot(p))
    assert losses.map(len).expose("to plot the training loss") >= 0
    assert "to plot the training loss" in reason(p)


def test_a_disclosed_value_is_listed_and_the_rest_stays_covered():
    p = private()
    p.backward(one_lot(p)).disclose("training losses")
    claim = p.claim(1e-5)
    assert isinstance(claim, sd.Guarantee)
    assert "training losses" in claim.not_covered
    assert "not covered  training losses" in str(claim)


def test_no_noise():
    p = private(query=dpsgd(multiplier=0.0))
    p.backward(one_lot(p))
    assert "multiplier is 0" in reason(p)


def test_one_step_without_a_guarantee_voids_the_run():
    p = private()
    for lot in p.draws(linear(), sd.Poisson(0.3), steps=3):
        losses = p.backward(lot)
        if p.steps == 2:
            losses.expose("curiosity")
    assert "curiosity" in reason(p)


def test_a_weigher_that_looks_at_the_lot():
    from sordino.clipping.clipping_rule import Stateless
    from sordino.clipping.flat import Flat

    class Median(Stateless):
        def rule(self, state, lot):
            norms = lot().total()
            return Flat(float(norms.median()) if len(norms) else 1.0).rule(None, lot)

    p = private(query=sd.NoisySum(Median(), sd.Gaussian(1.0)))
    p.backward(one_lot(p))
    assert "looked at the norms of the lot" in reason(p)


def test_an_event_no_accountant_knows():
    class Mute:
        name = "mute"
        is_bound = True

        def epsilon(self, event, delta):
            raise sd.accounting.Unsupported(event, "I know nothing")

    p = private(accountant=Mute())
    p.backward(one_lot(p))
    assert reason(p).startswith("the mute accountant has no theorem for Poisson(")


def test_an_accountant_that_only_approximates():
    p = private(accountant=sd.accounting.GaussianCLT())
    p.backward(one_lot(p))
    assert "approximation, not a bound" in reason(p)


def test_draws_that_speak_about_different_neighbours():
    p = private()
    for sampler in (sd.Poisson(0.3), sd.FixedSize(4)):
        for lot in p.draws(linear(), sampler, steps=1):
            p.backward(lot)
    assert "different neighbours" in reason(p)


def test_laplace_noise_with_a_weigher_that_bounds_only_the_l2_norm():
    with pytest.raises(TypeError, match=r"L1 bound(.|\n)*Use Gaussian"):
        sd.NoisySum(sd.Flat(1.0), sd.Laplace(1.0))


def test_reasons_are_said_once():
    model = network()
    p = private(model)
    for lot in p.draws(linear(), sd.Poisson(0.3), steps=3):
        p.backward(lot)
        cross_entropy(model, *linear().tensors).mean().backward()
    assert reason(p).count("outside private.backward") == 1


def test_public_steps_are_allowed_and_named():
    model = network()
    p = private(model)
    with p.public("ImageNet"):
        cross_entropy(model, *linear(seed=9).tensors).mean().backward()
        step(model)
    p.backward(one_lot(p))
    step(model)
    claim = p.claim(1e-5)
    assert isinstance(claim, sd.Guarantee)
    assert "steps on data declared public: ImageNet" in claim.not_covered


def test_another_model_is_nobodys_business():
    p = private()
    p.backward(one_lot(p))
    other = network()
    cross_entropy(other, *linear().tensors).mean().backward()
    step(other)
    assert isinstance(p.claim(1e-5), sd.Guarantee)


def test_a_private_that_is_gone_watches_no_more():
    import gc

    from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks

    gc.collect()
    before = len(hooks)
    p = private()
    assert len(hooks) == before + 1
    del p
    gc.collect()
    assert len(hooks) == before
