"""Where other libraries fail their users: each of these breaks has happened, and cannot here.

Rows that have their test among the contracts are there: sums that move too far (test_hunter), chunks dropped or noised
twice (test_contracts), layer options with wrong norms (gradients/test_backends).
"""

import json

import pytest
import torch
from torch import nn

import sordino as sd
from sordino.release.release import tap_releases
from sordino.schedules import Linear
from tests.contracts.broken import BROKEN
from tests.contracts.hunter import SLACK, hunt
from tests.problems import Rows, cross_entropy, dpsgd, linear, network, parameters, private


def run(p, sampler=None, steps=3, dataset=None):
    for lot in p.draws(dataset or linear(), sampler or sd.Poisson(0.3), steps=steps):
        p.backward(lot)
    return p


def test_row_1_an_adaptive_bound_that_does_not_clip_is_held_to_what_it_promised():
    """It moved a sum by more than 100 bounds; the rows are held to the bound whatever a clipping rule says."""
    assert hunt(BROKEN["no_clip"], sd.per_sample.Vmap(), trials=10).worst <= 1 + SLACK


def test_row_2_clip_and_noise_follow_the_schedule_together():
    """The sum of one giant gradient has length C_t, and the noise is σ·C_t, at every step of the schedule."""
    schedule = Linear(1.0, 100.0, 4)
    dataset = torch.utils.data.TensorDataset(torch.ones(1, 6))
    for multiplier in (0.0, 1.0):
        model = nn.Linear(6, 2000)
        query = sd.NoisySum(sd.Scheduled(schedule), sd.Gaussian(multiplier))
        p = sd.Private(model, lambda m, x: 1e4 * m(x).sum(1), query, seed=0)
        for t, lot in enumerate(p.draws(dataset, sd.Full(), steps=5, expected_batch=1)):
            p.backward(lot)
            grad = torch.cat([q.grad.flatten() for q in model.parameters()])
            measured = grad.std() if multiplier else grad.norm()
            assert measured.item() == pytest.approx(schedule(t), rel=0.05 if multiplier else 1e-4)


def contribution(model, loss, x):
    """The length of what one record adds to the sum, at bound 1 and without noise."""
    p = sd.Private(model, loss, dpsgd(multiplier=0.0), seed=0)
    for lot in p.draws(torch.utils.data.TensorDataset(x), sd.Full(), steps=1, expected_batch=1):
        p.backward(lot)
    return torch.cat([q.grad.flatten() for q in model.parameters()]).norm().item()


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_row_3_padding_of_every_mode_keeps_the_bound(mode):
    model = nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode)
    x = 100 * torch.randn(1, 2, 5, 5)
    assert contribution(model, lambda m, x: m(x).square().sum((1, 2, 3)), x) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("make", [lambda: nn.EmbeddingBag(9, 4, mode="sum"), lambda: nn.Embedding(9, 4, padding_idx=7)])
def test_row_4_repeated_and_padding_ids_keep_the_bound(make):
    model = make()
    ids = torch.tensor([[3] * 50 + [7] * 5])
    assert contribution(model, lambda m, x: 100 * m(x).flatten(1).square().sum(1), ids) == pytest.approx(1.0, rel=1e-4)


def test_row_5_tied_weights_and_layers_called_twice_are_grouped_by_identity():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(6, 6, bias=False)
            self.inner = nn.Linear(6, 6, bias=False)
            self.inner.weight = self.out.weight

        def forward(self, x):
            return self.out(torch.tanh(self.inner(torch.tanh(self.inner(x)))))

    torch.manual_seed(0)
    model = Tied()
    x = 100 * torch.randn(1, 6)
    p = sd.Private(model, lambda m, x: (1e3 * m(x)).sum(1), sd.NoisySum(sd.Flat(1.0), sd.Gaussian(0.0)), seed=0)
    for lot in p.draws(torch.utils.data.TensorDataset(x), sd.Full(), steps=1, expected_batch=1):
        p.backward(lot)
    assert model.out.weight.grad.norm().item() == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("affine", [True, False])
def test_row_6_batchnorm_frozen_or_without_parameters_is_refused(affine):
    with pytest.raises(sd.Refusal, match="GroupNorm"):
        private(nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2, affine=affine).requires_grad_(False)))


def test_row_7_only_the_given_records_are_drawn():
    seen = set()

    class Watched(Rows):
        def __getitem__(self, i):
            seen.add(i)
            return super().__getitem__(i)

    subset = torch.utils.data.Subset(Watched(), range(40))
    run(private(), sd.Poisson(0.5), steps=30, dataset=subset)
    assert seen == set(range(40))


def test_row_7_a_batch_of_unknown_origin_voids_the_claim():
    p = run(private())
    p.backward(linear().tensors)
    assert isinstance(p.claim(1e-5), sd.NoGuarantee)


def test_row_8_shuffled_batches_are_not_accounted_as_poisson():
    poisson = run(private(), sd.Poisson(0.25), steps=8).claim(1e-5)
    shuffled = run(private(), sd.Shuffle(16), steps=8).claim(1e-5)
    assert shuffled.epsilon > poisson.epsilon
    assert shuffled.relation != poisson.relation


def test_row_9_a_lot_left_half_way_never_joins_the_next():
    def last_gradient(leave: bool):
        model = network()
        p = private(model, query=dpsgd(multiplier=0.0))
        for lot in p.draws(linear(), sd.Poisson(0.5), steps=2, physical_batch=4):
            if leave and p.steps == 1:
                for _ in zip(lot.loads(), range(2), strict=False):
                    pass
                continue
            p.backward(lot)
        return torch.cat([q.grad.flatten() for q in model.parameters()])

    assert torch.equal(last_gradient(True), last_gradient(False))


def test_row_11_misspelt_keywords_raise():
    with pytest.raises(TypeError, match="multipler"):
        sd.Gaussian(multipler=1.0)
    with pytest.raises(TypeError, match="expected_bach"):
        private().draws(linear(), sd.Poisson(0.1), 1, expected_bach=3)


def test_row_12_another_sigma_does_not_make_the_ledger_forget():
    p = run(private(query=dpsgd(multiplier=0.5)), steps=5)
    q = private(query=dpsgd(multiplier=5.0))
    q.load_state_dict(json.loads(json.dumps(p.state_dict())))
    run(q, steps=2)
    steps = [sd.events.Repeat(sd.events.Poisson(0.3, sd.events.Gaussian(s)), k) for s, k in ((0.5, 5), (5.0, 2))]
    assert q.event == sd.events.Together(*steps)
    assert q.claim(1e-5).epsilon > p.claim(1e-5).epsilon


def test_row_13_no_chunk_of_a_lot_is_dropped():
    def gradient(physical_batch):
        model = network()
        p = private(model, query=dpsgd(multiplier=0.0))
        for lot in p.draws(linear(), sd.Full(), steps=1, physical_batch=physical_batch):
            p.backward(lot)
        return torch.cat([q.grad.flatten() for q in model.parameters()])

    torch.testing.assert_close(gradient(5), gradient(64))


def test_row_14_the_realised_size_of_a_lot_never_divides():
    """A record whose gradient is zero changes the size of the lot and nothing else."""
    x, _ = linear().tensors
    grads = []
    for size in (10, 11):
        model = nn.Linear(6, 2)
        nn.init.ones_(model.weight)
        nn.init.zeros_(model.bias)
        data = torch.utils.data.TensorDataset(torch.cat([x[:10], torch.zeros(1, 6)])[:size], torch.zeros(size))
        p = sd.Private(model, lambda m, x, y: m(x).sum(1) * x.abs().sum(1), dpsgd(multiplier=0.0), seed=0)
        for lot in p.draws(data, sd.Poisson(1.0), steps=1, expected_batch=10):
            p.backward(lot)
        grads.append(model.weight.grad)
    torch.testing.assert_close(*grads)


def test_row_15_the_count_of_an_adaptive_bound_is_charged_at_its_own_sensitivity():
    query = sd.NoisySum(sd.AdaptiveQuantile(1.0, quantile=0.5, count_noise=2.0), sd.Gaussian(1.1))
    p = run(private(query=query), steps=1)
    both = sd.events.Together(sd.events.Gaussian(1.1), sd.events.Gaussian(4.0))  # noise 2 over sensitivity ½
    assert p.event == sd.events.Poisson(0.3, both)


def test_row_16_training_past_the_library_prints_no_epsilon():
    model = network()
    p = private(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cross_entropy(model, *linear().tensors).mean().backward()
    optimizer.step()
    assert isinstance(p.claim(1e-5), sd.NoGuarantee)


def test_row_17_a_resumed_run_does_not_replay_its_noise():
    p = run(private(), steps=3)
    first = parameters_of_noise(p, steps=1)
    q = private()
    q.load_state_dict(p.state_dict())
    assert not torch.equal(first, parameters_of_noise(q, steps=1))


def parameters_of_noise(p, steps):
    for lot in p.draws(
        torch.utils.data.TensorDataset(torch.zeros(1, 6), torch.zeros(1).long()), sd.Poisson(1e-9), steps
    ):
        p.backward(lot)
    return torch.cat([q.grad.flatten() for q in p._model.parameters()])


def test_row_18_a_checkpoint_is_json_and_runs_no_code():
    state = run(private()).state_dict()
    assert json.loads(json.dumps(state)) == {**state, "source": list(state["source"])}  # nothing but JSON in it
    q = private()
    q.load_state_dict(json.loads(json.dumps(state)))
    assert q.steps == 3


@pytest.mark.parametrize("per_token", [True, False])
def test_row_19_a_mean_over_the_tokens_of_a_batch_is_refused(per_token):
    def loss(model, x, mask):
        losses = (model(x).squeeze(-1).square() * mask).sum(1)
        return losses / mask.sum() if not per_token else losses.sum() / mask.sum()

    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(8, 5, generator=generator) < 0.6).float()
    dataset = torch.utils.data.TensorDataset(torch.randn(8, 5, 3, generator=generator), mask)
    with pytest.raises(sd.Refusal, match=r"coupled|scalar"):
        sd.Private(nn.Linear(3, 1), loss, dpsgd()).draws(dataset, sd.Poisson(0.5), steps=1)


def test_row_20_noise_and_norms_are_float32_in_a_bfloat16_model():
    model = nn.Linear(6, 500).bfloat16()
    p = sd.Private(model, lambda m, x, y: m(x.bfloat16()).sum(1), dpsgd(multiplier=1.0), seed=0)
    seen = []

    def tap(value, sensitivity, noise):
        seen.extend(tensor.dtype for tensor in value.values())

    with tap_releases(tap):
        run(p, steps=1)
    assert set(seen) == {torch.float32}


@pytest.mark.parametrize("event", [sd.events.Laplace(3.0), sd.events.Exponential(0.3), sd.events.Gaussian(3.0)])
def test_row_21_many_at_once_cost_what_they_cost_one_by_one(event):
    pld = sd.accounting.PLD()
    at_once = pld.epsilon(sd.events.Repeat(event, 5), 1e-6)
    one_by_one = pld.epsilon(sd.events.Together(*[event] * 4, sd.events.Repeat(event, 1)), 1e-6)
    assert at_once == pytest.approx(one_by_one, rel=1e-6)
    assert at_once > 2 * pld.epsilon(event, 1e-6)


def test_users_keep_asking_the_state_dict_has_no_prefix():
    model = network()
    run(private(model))
    assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_users_keep_asking_empty_lots_are_fine():
    model = network()
    before = parameters(model)
    p = private(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for lot in p.draws(linear(), sd.Poisson(1e-9), steps=2):
        p.backward(lot)
        optimizer.step()
    assert not torch.equal(before, parameters(model))
    assert isinstance(p.claim(1e-5), sd.Guarantee)
