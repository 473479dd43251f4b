"""What the engine does not know is refused, by a message that names the module and the cure."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sordino.per_sample import Captured
from sordino.per_sample.first_batch import verify
from sordino.per_sample.layers import rule
from sordino.per_sample.model_inventory import Inventory
from sordino.refusal import Refusal
from tests.per_sample.models import Net, mlp
from tests.per_sample.oracle import same, square


def refused(model: nn.Module, batch, loss_fn=square, *words: str) -> None:
    with pytest.raises(Refusal) as error:
        Captured().per_sample(model, loss_fn, batch)
    for word in words:
        assert word in str(error.value)


def test_a_use_that_cannot_be_recorded_is_refused_by_the_parameters_name():
    model = Net(lambda m, x: m.inner(x) * torch.stack([m.inner.bias] * len(x)), inner=nn.Linear(4, 4))
    refused(model, (torch.randn(3, 4),), square, "'inner.bias'", "need", "Loop()")


def test_mixing_samples_is_refused():
    refused(Net(lambda m, x: m.inner(x - x.mean(0)), inner=nn.Linear(4, 4)), (torch.randn(3, 4),), square, "own sample")


def test_another_loss_on_a_trusted_model_is_checked_again():
    model, x = mlp().double(), (torch.randn(4, 4).double(),)
    same(model, x)
    refused(model, x, lambda m, z: square(m, z - z.mean(0)), "own sample")


def test_reordering_samples_is_refused():
    refused(Net(lambda m, x: m.inner(x.flip(0)), inner=nn.Linear(4, 4)), (torch.randn(3, 4),), square, "own sample")


def test_samples_folded_into_rows_time_first_are_refused_even_when_equal():
    def run(m: nn.Module, x: Tensor) -> Tensor:
        return m.inner(x.transpose(0, 1).reshape(-1, 4)).view(x.shape[1], x.shape[0], 4).transpose(0, 1)

    refused(Net(run, inner=nn.Linear(4, 4)), (torch.ones(3, 5, 4),), square, "fold")


@pytest.mark.parametrize("options", [{}, {"affine": False}], ids=("affine", "affine-free"))
@pytest.mark.parametrize("frozen", [False, True])
def test_batch_norm_in_training_mode_is_refused(options, frozen: bool):
    norm = nn.BatchNorm1d(6, **options).requires_grad_(not frozen)
    refused(nn.Sequential(nn.Linear(4, 6), norm), (torch.randn(3, 4),), square, "BatchNorm1d", "GroupNorm")


def test_batch_norm_without_statistics_is_refused_in_evaluation_too():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False)).eval()
    refused(model, (torch.randn(3, 4),), square, "BatchNorm1d")


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}], ids=str)
def test_embeddings_that_look_across_records_are_refused(options):
    refused(nn.Sequential(nn.Embedding(5, 4, **options)), (torch.randint(0, 5, (3, 4)),), square, "layer '0'", "Drop")


def test_a_scalar_loss_is_refused():
    refused(mlp(), (torch.randn(3, 4),), lambda m, x: m(x).sum(), "loss")


def test_an_input_changed_after_the_layer_read_it_is_refused():
    def run(m: nn.Module, x: Tensor) -> Tensor:
        h = m.first(x)
        y = m.second(h.detach())
        h.mul_(2)  # autograd cannot see this: it saved a copy's history, not ours
        return y + h

    model = Net(run, first=nn.Linear(4, 4), second=nn.Linear(4, 4))
    with pytest.raises((Refusal, RuntimeError), match=r"in place|inplace"):
        Captured().per_sample(model, square, (torch.randn(3, 4),)).norms()


def test_a_reentrant_checkpoint_is_refused():
    def run(m: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(m.inner, m.first(x), use_reentrant=True)

    refused(Net(run, first=nn.Linear(4, 4), inner=mlp()), (torch.randn(3, 4),), square, "use_reentrant=False")


def test_a_users_rule_is_used_and_a_wrong_one_is_refused():
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.gain

    @rule(Scale)
    def scale(tape, module, x):
        tape.batch_dim(x, only=0)
        y = x * tape.leaf(module.gain, x)
        return tape.record(y, (x,), lambda saved, g: {module.gain: saved[0] * g})

    same(nn.Sequential(nn.Linear(4, 4), Scale()).double(), (torch.randn(3, 4).double(),))

    @rule(Scale)
    def wrong(tape, module, x):
        tape.batch_dim(x, only=0)
        y = x * tape.leaf(module.gain, x)
        return tape.record(y, (x,), lambda saved, g: {module.gain: 0.9 * saved[0] * g})

    refused(nn.Sequential(nn.Linear(4, 4), Scale()), (torch.randn(3, 4),), square, "'1.gain'", "hand-written")


def test_a_rule_that_does_not_ask_where_the_samples_are_is_refused():
    class Unasked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.gain

    @rule(Unasked)
    def unasked(tape, module, x):
        return tape.record(x * tape.leaf(module.gain, x), (x,), lambda saved, g: {module.gain: saved[0] * g})

    refused(nn.Sequential(nn.Linear(4, 4), Unasked()), (torch.randn(3, 4),), square, "'1'", "tape.batch_dim(x)")


def test_a_weight_rewritten_by_a_hook_is_refused():
    with pytest.warns(FutureWarning):
        layer = nn.utils.weight_norm(nn.Linear(4, 3))
    refused(nn.Sequential(layer), (torch.randn(3, 4),), square, "parametrizations")


def test_an_unbatched_sequence_is_refused():
    model = Net(lambda m, x: m.r(x.flatten(0, 1))[0].view(len(x), -1), r=nn.LSTM(4, 3))
    refused(model, (torch.randn(3, 3, 4),), square, "layer 'r'", "unbatched", "Unsqueeze")


def test_rounding_that_cannot_be_told_from_a_wrong_rule_is_named_ill_conditioning():
    class Single(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.dtype != torch.float32:
                raise KeyError("made for float32 alone")
            return x

    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:  # as if a batch rounded otherwise than a record alone
        return (model(x) * (1 + 0.01 * (len(x) > 1))).sum(1)

    refused(nn.Sequential(nn.Linear(4, 4), Single()), (torch.randn(3, 4),), loss_fn, "ill-conditioned", "double")


def test_a_model_that_float32_cannot_hold_and_float64_can_is_trained(monkeypatch):
    """sin(10⁵ y) turns by what a product rounds: a record alone and in a batch differ, and in float64 they do not."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64)), torch.randn(4, 64)

    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
        return (1e5 * model(x)).sin().sum(1)

    Captured().per_sample(model, loss_fn, (x,))
    monkeypatch.setattr(verify, "_compare_in_double", lambda *_: None)
    refused(model, (x,), loss_fn, "ill-conditioned", "model.double()")


def test_a_model_is_trusted_by_the_verdict_and_not_before():
    """A refused comparison leaves nothing trusted, so that the next batch is compared again."""
    backend = Captured()
    model = nn.Sequential(nn.Linear(3, 4), _Mixing(), nn.Linear(4, 2))
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        with pytest.raises(Refusal, match="not autograd's"):
            backend.per_sample(model, square, (x,))
        plan = backend._plans.find_or_make_plan(Inventory(model), square, [x])
        assert not plan.learned.trusted
    fine = nn.Linear(3, 2)
    backend.per_sample(fine, square, (x,))
    assert backend._plans.find_or_make_plan(Inventory(fine), square, [x]).learned.trusted


class _Mixing(nn.Module):
    def forward(self, x):
        return x - x.mean(0)
