"""Virtual steps: the published method to the letter, the noisy one at DP-SGD's price, the optimistic one at no price."""

import math

import pytest
import torch
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.accounting import PLD
from sordino.events import Gaussian, Poisson, Repeat
from sordino.ledger import claims
from sordino.per_sample import Captured, Loop, PerformanceOptions, Vmap
from sordino.per_sample.displaced_model import displace_model
from sordino.per_sample.protocol import move_gradients
from sordino.queries.dry_run import no_gradients
from sordino.queries.virtual_steps import part_weights
from sordino.release.sensitivity import Exact
from sordino.rng.streams import Rng
from sordino.schedules import Cosine
from tests.contracts.hunter import Scripted, network, squared_error
from tests.contracts.variants import VARIANTS

FLAT, SIGMA = sd.Flat(1.0), sd.Gaussian(1.1)
LOTS = ((0, 1, 2, 3, 4), (2,), (), (5, 6, 7))


def data(n=8):
    generator = torch.Generator().manual_seed(4)
    return TensorDataset(*(torch.randn(n, d, generator=generator, dtype=torch.float64) for d in (5, 3)))


def trained(query, backend=None, *, lr=0.3, physical_batch=2, **options):
    model = network()
    private = sd.Private(model, squared_error, query, backend=backend, seed=0, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for lot in private.draws(data(), Scripted(LOTS), steps=len(LOTS), physical_batch=physical_batch):
        private.backward(lot)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def by_hand(parts, *, clip=math.inf, lr=0.3, expected=4.0):
    """The method as one would write it in a notebook: a copy of the net, one sample at a time."""
    model = network()
    for lot in LOTS:
        start = [p.detach().clone() for p in model.parameters()]
        update = [torch.zeros_like(p) for p in start]
        for weight in parts:
            mean = [torch.zeros_like(p) for p in start]
            for i in lot:
                x, y = (column[i : i + 1] for column in data().tensors)
                grads = torch.autograd.grad(squared_error(model, x, y).sum(), list(model.parameters()))
                norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
                for total, g in zip(mean, grads, strict=True):
                    total += g * min(1.0, clip / norm) / expected
            with torch.no_grad():
                for p, s, u, m in zip(model.parameters(), start, update, mean, strict=True):
                    u += weight * m
                    p.copy_(s - lr * u)  # the virtual step; after the last part, the real one
    return torch.cat([p.detach().flatten() for p in model.parameters()])


TWO_PASS = Captured(PerformanceOptions(two_pass=True))


@pytest.mark.parametrize(
    "backend", [Loop(), Vmap(), Captured(), TWO_PASS], ids=["loop", "vmap", "captured", "streamed"]
)
@pytest.mark.parametrize(("rho", "rounds"), [(2.0, 1), (4.0, 1), (1.5, 2), (1.0, 1), (math.inf, 1)])
def test_projected_sgd_is_the_loop_written_by_hand(rho, rounds, backend):
    query = sd.Projected(sd.Flat(math.inf), sd.Gaussian(0.0), learning_rate=0.3, rho=rho, rounds=rounds)
    expected = by_hand(part_weights(rho, rounds))
    torch.testing.assert_close(trained(query, backend), expected, rtol=1e-10, atol=1e-12)


def test_projected_dpsgd_clips_at_every_point():
    query = sd.Projected(sd.Flat(0.4), sd.Gaussian(0.0), learning_rate=0.3)
    torch.testing.assert_close(trained(query), by_hand((0.5, 0.5), clip=0.4), rtol=1e-10, atol=1e-12)


def test_noisy_lookahead_without_noise_is_projected_sgd():
    quiet = sd.NoisyLookahead(sd.Flat(0.4), sd.Gaussian(0.0), learning_rate=0.3, rho=3.0)
    torch.testing.assert_close(trained(quiet), by_hand(part_weights(3.0, 1), clip=0.4), rtol=1e-10, atol=1e-12)


def test_optimistic_lookahead_without_noise_is_its_formula():
    model, previous = network(), [0.0] * 4
    for lot in LOTS:
        start = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for p, g in zip(model.parameters(), previous, strict=True):
                p.sub_(0.3 / 2.0 * g)
        mean = [torch.zeros_like(p) for p in start]
        for i in lot:
            x, y = (column[i : i + 1] for column in data().tensors)
            grads = torch.autograd.grad(squared_error(model, x, y).sum(), list(model.parameters()))
            mean = [m + g / 4.0 for m, g in zip(mean, grads, strict=True)]
        with torch.no_grad():
            for p, s, g in zip(model.parameters(), start, mean, strict=True):
                p.copy_(s - 0.3 * g)
        previous = mean
    query = sd.OptimisticLookahead(sd.Flat(math.inf), sd.Gaussian(0.0), learning_rate=0.3, rho=2.0)
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(trained(query), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("rho", "rounds"), [(2.0, 1), (4.0, 1), (1.5, 2)])
def test_the_split_noise_of_the_update_is_that_of_dpsgd(rho, rounds):
    """400 × 6,000 values: 2 % is 40 standard errors; without the split the scale would be off by at least 18 %."""
    torch.manual_seed(0)
    model = torch.nn.Linear(60, 100, bias=False)
    query = sd.NoisyLookahead(sd.Flat(0.5), sd.Gaussian(2.0), learning_rate=0.1, rho=rho, rounds=rounds)
    private = sd.Private(model, lambda m, x: m(x).sum(1), query, seed=0)
    values = []
    for lot in private.draws(TensorDataset(torch.zeros(1, 60)), Scripted(((),)), steps=40):
        private.backward(lot)
        values.append(model.weight.grad * lot.expected_batch / (2.0 * 0.5))
    assert torch.stack(values).std().item() == pytest.approx(1.0, rel=0.02)


def epsilon(query, steps=7200):
    """The thesis' setting: N = 60,000, B = 250, δ = 1e-5. Every step of these queries is the same."""
    return PLD().epsilon(Repeat(sd.dry_run(query, sd.Poisson(250 / 60_000), 60_000, 1), steps), 1e-5)


def test_what_lookahead_costs_in_the_setting_of_the_thesis():
    plain = epsilon(sd.NoisySum(FLAT, SIGMA))
    assert plain == pytest.approx(1.61, abs=0.005)
    assert epsilon(sd.NoisyLookahead(FLAT, [SIGMA, SIGMA], 0.1)) == pytest.approx(3.37, abs=0.005)
    assert epsilon(sd.NoisyLookahead(FLAT, SIGMA, 0.1)) == pytest.approx(plain, rel=1e-4)
    assert epsilon(sd.OptimisticLookahead(FLAT, SIGMA, 0.1)) == plain
    # On fresh lots each part is a step of its own.
    assert epsilon(sd.NoisySum(FLAT, SIGMA), steps=14_400) == pytest.approx(2.35, abs=0.005)


@pytest.mark.parametrize(("rounds", "fresh"), [(1, 1.39), (3, 1.30), (7, 1.26)])
def test_equal_parts_cost_dpsgd_and_as_many_steps_on_fresh_lots_cost_less(rounds, fresh):
    parts = rounds + 1
    split = sd.NoisyLookahead(FLAT, SIGMA, 0.1, rho=parts / rounds, rounds=rounds)
    assert epsilon(split) == pytest.approx(1.61, abs=0.005)
    louder = sd.NoisySum(FLAT, sd.Gaussian(1.1 * math.sqrt(parts)))
    assert epsilon(louder, steps=7200 * parts) == pytest.approx(fresh, abs=0.005)


def test_two_releases_on_one_lot_are_composed_and_amplified_once():
    query = sd.NoisyLookahead(FLAT, [SIGMA, SIGMA], 0.1)
    assert sd.dry_run(query, sd.Poisson(0.1), 100, 3) == Repeat(Poisson(0.1, Repeat(Gaussian(1.1), 2)), 3)


def test_projected_says_why_it_has_no_guarantee_and_where_the_form_is_that_has_one():
    query = sd.Projected(FLAT, SIGMA, learning_rate=0.1)
    claim = claims.make_claim(sd.dry_run(query, sd.Poisson(0.1), 100, 3), 1e-5, PLD())
    assert "one record changes what all the others contribute" in claim.reason
    assert "NoisyLookahead" in claim.reason


@pytest.mark.parametrize("rho", [1.0, math.inf])
def test_without_a_virtual_step_it_is_dpsgd_and_has_its_claim(rho):
    event = sd.dry_run(sd.Projected(FLAT, SIGMA, 0.1, rho=rho), sd.Poisson(0.1), 100, 3)
    assert event == sd.dry_run(sd.NoisySum(FLAT, SIGMA), sd.Poisson(0.1), 100, 3)


def test_a_schedule_of_the_bound_moves_once_a_lot():
    clipping = sd.Scheduled(Cosine(1.0, 0.1, 10))
    state = sd.NoisyLookahead(clipping, SIGMA, 0.1).init()
    _, after = sd.NoisyLookahead(clipping, SIGMA, 0.1)(no_gradients(Exact()), state, 4.0, Rng(bytes(32)))
    _, once = sd.NoisySum(clipping, SIGMA)(no_gradients(Exact()), clipping.init(), 4.0, Rng(bytes(32)))
    assert after == {"step": 1, "clipping": once}


WEIGHERS = {row.name: row for row in VARIANTS if row.clipping and not row.sampler}


@pytest.mark.parametrize("row", WEIGHERS.values(), ids=WEIGHERS)
@pytest.mark.parametrize("make", [sd.NoisyLookahead, sd.OptimisticLookahead, sd.Projected], ids=lambda m: m.__name__)
def test_every_weigher_and_penalty_looks_ahead_in_chunks_as_in_one_piece(make, row):
    def query():
        return make(row.clipping(), sd.Gaussian(1.0), learning_rate=0.3)

    chunked = trained(query(), Captured(), physical_batch=2, **row.options)
    torch.testing.assert_close(
        chunked, trained(query(), Loop(), physical_batch=9, **row.options), rtol=1e-9, atol=1e-10
    )


def test_the_model_is_put_back_to_the_last_bit_also_when_a_lot_fails_half_way():
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    with displace_model(model, {"0.weight": torch.full((4, 5), 0.1)}):
        assert not torch.equal(model[0].weight, before[0])
        assert torch.equal(model[2].weight, before[2])
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    calls = []

    def failing(model, x, y):
        calls.append(torch.equal(model[0].weight, before[0]))
        if len(calls) > 1 and not calls[-1] and not calls[-2]:
            raise RuntimeError("second chunk of the second part")
        return squared_error(model, x, y)

    private = sd.Private(model, failing, sd.NoisyLookahead(FLAT, SIGMA, 0.1), backend=Vmap(), seed=0)
    lots = private.draws(data(), Scripted(LOTS), steps=1, physical_batch=2)
    with pytest.raises(RuntimeError) as held:  # the traceback holds every frame
        private.backward(next(lots))
    assert "second chunk" in str(held.value)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_frozen_parameter_does_not_take_virtual_steps():
    model = network()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    with displace_model(model, {name: torch.ones_like(p) for name, p in model.named_parameters()}):
        assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: sd.Projected(FLAT, SIGMA, 0.1, rho=0.5), "rho=0.5: must be >= 1"),
        (lambda: sd.NoisyLookahead(FLAT, [SIGMA], 0.1), "1 were given for 2 parts"),
        (lambda: sd.NoisyLookahead(FLAT, SIGMA, 0.1, rounds=0), "rounds=0: must be >= 1"),
        (lambda: sd.OptimisticLookahead(FLAT, SIGMA, -0.1), "learning_rate=-0.1: must be finite and >= 0"),
        (
            lambda: move_gradients(Loop().per_sample(network(), squared_error, data().tensors), {}),
            "the lot that Private hands",
        ),
    ],
)
def test_refusals(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_only_gaussian_noise_is_split():
    with pytest.raises(TypeError, match="one noise for each part"):
        sd.NoisyLookahead(FLAT, sd.Laplace(1.0), 0.1)
