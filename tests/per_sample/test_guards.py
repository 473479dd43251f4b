"""Things that go wrong elsewhere: each is the loop's answer here."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from sordino.per_sample import Captured, Loop, PerformanceOptions
from sordino.release.vectors import common_buffer
from tests.per_sample.models import Net, mlp
from tests.per_sample.oracle import same, square
from tests.per_sample.zoo import Tied, Vit


def test_as_many_samples_as_positions_is_not_mistaken_for_a_batch():
    same(Tied(), (torch.randint(0, 10, (6, 6)),))
    same(Vit(), (torch.randn(6, 6, 4),))


def test_another_batch_size_later_is_as_exact():
    model, backend = Vit().double(), Captured()
    for b in (4, 1, 7, 2):
        same(model, (torch.randn(b, 6, 4).double(),), backend=backend)


def test_another_length_later_is_as_exact():
    model = Tied().double()
    for t in (6, 3, 10):
        same(model, (torch.randint(0, 10, (t, t)),))


def test_a_penalty_on_parameters_in_the_loss_is_not_dropped():
    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
        return square(model, x) + 0.1 * sum(p.square().sum() for p in model.parameters())

    same(mlp().double(), (torch.randn(4, 4).double(),), loss_fn)


def test_a_checkpoint_is_exact_and_forgets_activations():
    def run(m: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(m.inner, m.first(x), use_reentrant=False)

    model = Net(run, first=nn.Linear(4, 4), inner=nn.Sequential(nn.Linear(4, 8), nn.ReLU(True), nn.Linear(8, 4)))
    same(model.double(), (torch.randn(5, 4).double(),))


def test_a_checkpoint_with_dropout_sums_what_it_measured():
    def run(m: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(m.inner, m.first(x), use_reentrant=False)

    model = Net(
        run, first=nn.Linear(4, 4), inner=nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    ).double()
    grads = Captured().per_sample(model, square, (torch.randn(1, 4).double(),))
    total = grads.weighted_sum(torch.ones(1, 1).double())
    assert sum(t.square().sum() for t in total.values()).sqrt() == pytest.approx(
        float(grads.norms().total()), rel=1e-10
    )


def test_dropout_sums_what_it_measured():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4)).double()
    grads = Captured().per_sample(model, square, (torch.randn(1, 4).double(),))
    total = grads.weighted_sum(torch.ones(1, 1).double())
    assert sum(t.square().sum() for t in total.values()).sqrt() == pytest.approx(
        float(grads.norms().total()), rel=1e-10
    )


def test_evaluation_under_no_grad_between_forward_and_use_changes_nothing():
    model, x = mlp().double(), torch.randn(4, 4).double()
    grads = Captured().per_sample(model, square, (x,))
    with torch.no_grad():
        model(torch.randn(9, 4).double())
    assert torch.allclose(grads.norms().squared, Loop().per_sample(model, square, (x,)).norms().squared)


def test_a_teacher_under_no_grad_inside_the_loss_counts_for_nothing():
    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = model(x + 1)
        return (model(x) - target).square().sum(1)

    same(mlp().double(), (torch.randn(4, 4).double(),), loss_fn)


def test_two_batches_may_be_open_at_once():
    model = mlp().double()
    xs = [torch.randn(4, 4).double(), torch.randn(3, 4).double()]
    open_ = [Captured().per_sample(model, square, (x,)) for x in xs]
    for grads, x in zip(open_, xs, strict=True):
        assert torch.allclose(grads.norms().squared, Loop().per_sample(model, square, (x,)).norms().squared)


def test_two_forwards_in_one_loss_count_together():
    same(mlp().double(), (torch.randn(4, 4).double(),), lambda m, x: square(m, x) * square(m, x + 1))


def test_freezing_in_mid_training_is_seen():
    model, x = mlp().double(), (torch.randn(4, 4).double(),)
    same(model, x)
    model[0].requires_grad_(False)
    same(model, x)
    assert Captured().per_sample(model, square, x).norms().names == ("2.weight", "2.bias")
    model[0].weight.requires_grad_(True)
    same(model, x)


def test_a_token_mean_loss_per_sample_is_exact():
    def loss_fn(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).transpose(1, 2), ids, reduction="none").mean(1)

    same(Tied().double(), (torch.randint(0, 10, (4, 6)),), loss_fn)


def test_rows_that_are_not_finite_contribute_nothing_at_weight_zero():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)).double()
    x = torch.randn(4, 2, 4, 4).double()
    x[1, 0, 2, 2] = torch.nan
    x[2] = torch.inf
    for options in (PerformanceOptions(), PerformanceOptions(two_pass=True)):
        grads = Captured(options).per_sample(model, square, (x,))
        finite = grads.norms().squared.isfinite().all(1)
        assert finite.tolist() == [True, False, False, True]
        total = grads.weighted_sum(finite.double()[:, None])
        expected = Loop().per_sample(model, square, (x[[0, 3]],)).weighted_sum(torch.ones(2, 1).double())
        for name, t in expected.items():
            assert torch.allclose(total[name], t, rtol=1e-10)


def test_token_gradients_that_cancel_do_not_read_low():
    # Σ_t g_t = 0 up to 1e-3 of its parts: a float32 Gram sum would be mostly rounding.
    torch.manual_seed(0)
    t = 64
    sign = torch.ones(t)
    sign[1::2] = -1

    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) * sign[:, None]).sum((1, 2))

    x = torch.randn(4, 1, 8).expand(4, t, 8) + 1e-3 * torch.randn(4, t, 8)
    model = nn.Linear(8, 300, bias=False)
    found = Captured(PerformanceOptions(measure=False)).per_sample(model, loss_fn, (x,)).norms().total()
    true = Loop().per_sample(model.double(), lambda m, z: loss_fn(m, z), (x.double(),)).norms().total()
    assert ((found - true).abs() / true).max() < 1e-4
    assert found.min() > 0


def test_autocast_measures_in_float32_what_it_sums():
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    x = torch.randn(1, 8, 16)
    with torch.autocast("cpu", torch.bfloat16):
        grads = Captured().per_sample(model, lambda m, z: m(z).float().square().sum((1, 2)), (x,))
    norms = grads.norms()
    assert norms.squared.dtype == torch.float32
    total = grads.weighted_sum(torch.ones(1, 1))
    assert all(t.dtype == torch.float32 for t in total.values())
    summed = torch.stack([t.square().sum() for t in total.values()])
    assert torch.allclose(norms.squared[0], summed, rtol=1e-5)


def test_half_precision_parameters_are_measured_in_float32():
    model = mlp().bfloat16()
    grads = Captured().per_sample(model, lambda m, x: square(m, x).float(), (torch.randn(3, 4).bfloat16(),))
    assert grads.norms().squared.dtype == torch.float32
    assert all(t.dtype == torch.float32 for t in grads.weighted_sum(torch.ones(3, 1)).values())


def test_a_failing_forward_leaves_the_model_as_found():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4))
    before = [set(m.__dict__) for m in model.modules()]
    with pytest.raises(RuntimeError):
        Captured().per_sample(model, square, (torch.randn(3, 4),))
    assert [set(m.__dict__) for m in model.modules()] == before


def test_the_users_own_hooks_still_run():
    model, seen = mlp().double(), []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    model[0].register_forward_pre_hook(lambda _, args: (args[0] * 2,))
    same(model, (torch.randn(4, 4).double(),))
    assert seen


def test_random_numbers_and_training_mode_are_put_back():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0), nn.Linear(4, 4))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    Captured().per_sample(model, square, (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(m.training for m in model.modules())


def test_a_model_is_not_kept_alive():
    model = nn.Linear(4, 3)
    Captured().per_sample(model, square, (torch.randn(3, 4),)).norms()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_no_samples_are_a_sum_of_zeros():
    model = mlp()
    grads = Captured().per_sample(model, square, (torch.zeros(0, 4),))
    assert grads.norms().squared.shape == (0, 4)
    assert all(not t.any() for t in grads.weighted_sum(torch.zeros(0, 1)).values())


def test_the_sum_lies_in_one_buffer_that_is_not_reused_while_held():
    model, x = nn.Linear(4, 1 << 18), (torch.randn(3, 4),)  # a small one has a tensor for each parameter
    backend = Captured()
    first = backend.per_sample(model, square, x).weighted_sum(torch.ones(3, 1))
    buffer = common_buffer(first)
    assert buffer is not None
    kept = {name: t.clone() for name, t in first.items()}
    backend.per_sample(model, square, x).weighted_sum(torch.zeros(3, 1))
    assert all(torch.equal(first[name], t) for name, t in kept.items())
    address = buffer.data_ptr()
    del first, buffer
    again = backend.per_sample(model, square, x).weighted_sum(torch.zeros(3, 1))
    assert common_buffer(again).data_ptr() == address
    assert not any(t.any() for t in again.values())


def test_a_small_sum_that_is_held_is_not_written_over():
    model, x = mlp(), (torch.randn(3, 4),)
    first = Captured().per_sample(model, square, x).weighted_sum(torch.ones(3, 1))
    kept = {name: t.clone() for name, t in first.items()}
    Captured().per_sample(model, square, x).weighted_sum(torch.zeros(3, 1))
    assert all(torch.equal(first[name], t) for name, t in kept.items())


def test_chunks_may_be_added_into_one_sum():
    model, x = mlp().double(), torch.randn(6, 4).double()
    whole = Captured().per_sample(model, square, (x,)).weighted_sum(torch.ones(6, 1).double())
    total = None
    for part in x.split(2):
        total = Captured().per_sample(model, square, (part,)).weighted_sum(torch.ones(2, 1).double(), into=total)
    assert all(torch.allclose(total[name], t) for name, t in whole.items())


def test_a_norms_only_pass_streams_over_a_dataset():
    model, x = mlp().double(), torch.randn(10, 4).double()
    found = Captured().norms(model, square, TensorDataset(x), chunk=4)
    assert torch.allclose(found.squared, Loop().per_sample(model, square, (x,)).norms().squared)
