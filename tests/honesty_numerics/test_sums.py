"""The sum of a lot moves by no more than the noise is scaled to, however its roundings fall."""

import numpy as np
import pytest
import torch
from torch import nn

import sordino as sd
from sordino.clipping.clipping_rule import sum_clipped
from sordino.kernels.bf16_product import load_low_products
from sordino.lots.loading import cut_into_batches
from sordino.per_sample.formulas.gradient_part import add_rows
from sordino.per_sample.formulas.output_gradient import add_weighted_product
from sordino.per_sample.materialised import Materialised
from sordino.per_sample.physical_batch import MOST
from sordino.per_sample.protocol import Chunked
from sordino.refusal import Refusal
from sordino.release.noise import Gaussian
from sordino.release.release import release, tap_releases
from sordino.release.rounding import MOST_ROWS, rounding_slack
from sordino.release.sealed import Sealed
from sordino.release.sensitivity import Sensitivity
from sordino.release.vectors import Accumulator, TwoPartSum, WideSum
from sordino.rng.streams import Rng

D = 24


def records(kind: str, n: int) -> torch.Tensor:
    """Contributions (n, D), each at most 1 long, made so that roundings add up."""
    torch.manual_seed(0)
    even, some, i = torch.full((D,), D**-0.5), torch.rand(D) + 0.5, torch.arange(n)
    some /= some.norm() * (1 + 1e-6)
    sizes = {
        "equal": torch.ones(n),
        "a-third": torch.full((n,), 1 / 3),
        "growing": (i + 1) / n,
        "alternating": torch.where(i % 2 == 0, 1.0, -0.9),
        "one-large-many-small": torch.where(i % 256 == 0, 1.0, 1.1 * 2.0**-9),
        "at-random": torch.randn(n).sign() * torch.rand(n),
    }
    return (even if kind == "a-third" else some) * sizes[kind][:, None]


def wide(x: torch.Tensor) -> torch.Tensor:
    """As many columns as the compiled product asks for."""
    return x.repeat(1, 5)


KINDS = ("equal", "a-third", "growing", "alternating", "one-large-many-small", "at-random")


def summed(x: torch.Tensor, physical: int) -> torch.Tensor:
    """The sum of a lot of all these records, as `weigh` makes it of chunks, in float64 before noise."""
    cut = cut_into_batches(np.arange(len(x)), physical, len(x))
    parts = [Materialised({"w": x[torch.from_numpy(some)]}, torch.zeros(len(some))) for some in cut]
    total = sum_clipped(Chunked(lambda: parts), sd.Flat(1.0).rule(None, list)).total
    total = total.to_float64() if isinstance(total, TwoPartSum) else total
    return (total.values if isinstance(total, WideSum) else total)["w"].double()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "physical"), [(256, 256), (MOST, MOST), (2048, 2048), (60_000, MOST)])
def test_a_record_moves_the_sum_by_no_more_than_bound_and_slack(kind, n, physical):
    """Left out of all places, first and last and in the middle; by a wide margin, because no search is exhaustive."""
    x = records(kind, n)
    other = -torch.ones(D) / D**0.5
    for place in (0, n // 2, n - 1):
        for record in (x[place].clone(), other):
            full = x.clone()
            full[place] = record
            missing = full.clone()
            missing[place] = 0  # its slot is empty: contributes nothing
            moved = summed(full, physical) - summed(missing, physical)
            assert moved.norm() <= 1 + rounding_slack(physical) / 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [256, MOST, 2048, 8192])
def test_the_rounding_of_a_chunk_is_within_half_its_slack(kind, n):
    """With and without a record the errors could point apart: both together are within the slack."""
    x = records(kind, n)
    true = x.double().sum(0)
    add_weighted_product(x, torch.ones(n, 8), torch.ones(n), products := torch.empty(8, D), 0)
    add_weighted_product(wide(x), torch.ones(n, 128), torch.ones(n), compiled := torch.empty(128, 5 * D), 0)
    add_rows(rows := torch.empty(D), x, torch.ones(n), 0)
    for found in (products[0], compiled[0, :D], rows):
        assert (found.double() - true).norm() <= rounding_slack(n) / 2 / 2


@pytest.mark.skipif(load_low_products() is None, reason="this processor does not multiply bfloat16")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "t"), [(256, 16), (MOST, 300), (8192, 16)])
def test_the_rounding_of_a_chunk_in_bfloat16_is_too(kind, n, t):
    """Sixteen positions that come to one record's contribution, and as many as matter nothing."""
    x = wide(records(kind, n)).bfloat16()
    g = torch.zeros(n, t, 32, dtype=torch.bfloat16)
    g[:, :16] = 1 / 16
    w = torch.rand(n)
    add_weighted_product(x.unsqueeze(1).expand(n, t, 5 * D), g, w, found := torch.empty(32, 5 * D), 0)
    true = (x.double() * w[:, None].double()).sum(0)
    assert (found[0, :D].double() - true[:D]).norm() <= rounding_slack(n) / 2 / 2


def test_chunks_are_cut_so_that_a_record_changes_its_own_chunk_alone():
    rng = np.random.default_rng(0)
    lot = np.flatnonzero(rng.random(60_000) < 0.1)
    cut = cut_into_batches(lot, 300, 60_000)
    assert np.array_equal(np.concatenate(cut), lot)
    assert max(map(len, cut)) <= 300
    for gone in (0, len(lot) // 2, len(lot) - 1):
        fewer = {some.tobytes() for some in cut_into_batches(np.delete(lot, gone), 300, 60_000)}
        changed = [some for some in cut if some.tobytes() not in fewer]
        assert sum(lot[gone] in some for some in changed) == 1
        assert len(changed) <= 2  # its own, and one that it was joined with


def test_indices_in_another_order_are_cut_evenly():
    lot = np.random.default_rng(0).permutation(1000)
    assert [len(some) for some in cut_into_batches(lot, 400, 1000)] == [334, 333, 333]


def test_the_noise_is_scaled_by_the_slack_of_the_physical_batch_and_not_of_the_lot():
    """The lot's size is private: lots of 3 and 300 records get the same noise."""
    seen = []

    def watch(value, sensitivity, noise):
        seen.append(sensitivity.rounding)

    model = nn.Linear(4, 2)
    for n in (3, 300):
        data = torch.utils.data.TensorDataset(torch.randn(n, 4))
        private = sd.Private(model, lambda m, x: m(x).sum(1), sd.NoisySum(sd.Flat(1.0), Gaussian(1.0)), seed=0)
        for lot in private.draws(data, sd.Poisson(0.5), 1, expected_batch=10.0, physical_batch=1000):
            with tap_releases(watch):
                private.backward(lot)
    assert seen == [rounding_slack(1000), rounding_slack(1000)]


def test_sums_over_chunks_are_rounded_after_the_noise():
    """1 + 2⁻³⁰ is 1 in float32, and 1 + 2⁻³⁰ − 1 is not 0 in float64."""
    wide, narrow = {"w": torch.tensor([1 + 2.0**-30], dtype=torch.float64)}, {"w": torch.zeros(1)}

    class MinusOne:
        multiplier = 1.0

        def bound_for(self, sensitivity):
            return sensitivity.l2

        def add_(self, value, scale, rng, factor=1.0):
            value["w"].sub_(1.0)

        def event(self, estimate):
            return sd.events.Gaussian(1.0)

    released = release(Sealed(WideSum(wide, narrow)), Sensitivity(1.0), MinusOne(), Rng.from_seed(0), divide_by=2.0)
    assert released.value["w"].dtype == torch.float32
    assert released.value["w"].item() == 2.0**-31


@pytest.mark.parametrize("one_buffer", [False, True], ids=("each its own", "one buffer"))
@pytest.mark.parametrize("compiled", [False, True], ids=("torch", "compiled"))
def test_two_chunks_have_the_bits_of_their_sum_in_float64(one_buffer, compiled, monkeypatch):
    from sordino.release import release as door

    if not compiled:
        monkeypatch.setattr(door, "add_in_float64", door.add_in_float64.plain)
    torch.manual_seed(0)
    shapes = {"w": (300, 130), "b": (7,)}

    def sums():
        if not one_buffer:
            return {name: torch.randn(shape) for name, shape in shapes.items()}
        base = torch.randn(39_000 + 16)
        return {"w": base[:39_000].view(300, 130), "b": base[39_008:39_015]}

    first, second = sums(), sums()
    wide = {name: first[name].double() + second[name] for name in shapes}
    narrow = {name: torch.zeros(shape) for name, shape in shapes.items()}
    before = {name: tensor.clone() for name, tensor in (*first.items(), ("v", second["w"]))}
    released = [
        release(Sealed(total), Sensitivity(1.0), Gaussian(1.0), Rng.from_seed(3), divide_by=3.0).value
        for total in (TwoPartSum(first, second), WideSum(wide, narrow))
    ]
    for name, tensor in released[0].items():
        assert torch.equal(tensor, released[1][name])
    assert all(torch.equal(tensor, before[name]) for name, tensor in (*first.items(), ("v", second["w"])))


def test_chunks_are_added_up_in_float64_however_many_there_are():
    """1 and 2⁻³⁰ as often as there are chunks: in float32 the small ones would be lost."""
    for many in (1, 2, 3, 5):
        total = Accumulator()
        for k in range(many):
            room = total.next_buffer() or {"w": torch.zeros(1)}
            room["w"] += 1.0 if k == 0 else 2.0**-30
            total.add_chunk(room)
        found = total.total
        if isinstance(found, TwoPartSum):
            found = found.to_float64()
        value = found.values["w"] if isinstance(found, WideSum) else found["w"]
        assert value.item() == 1.0 + (many - 1) * 2.0**-30


def test_a_lot_of_one_chunk_has_the_noise_and_the_bits_of_its_own_type():
    value = torch.randn(100)
    one = release(Sealed({"w": value.clone()}), Sensitivity(1.0), Gaussian(1.0), Rng.from_seed(3)).value["w"]
    wide = WideSum({"w": value.double()}, {"w": torch.zeros(100)})
    more = release(Sealed(wide), Sensitivity(1.0), Gaussian(1.0), Rng.from_seed(3)).value["w"]
    assert torch.allclose(one, more, rtol=1e-6, atol=1e-6)  # the same noise


def test_more_records_at_once_than_float32_can_add_up_are_refused_with_the_cure():
    data = torch.utils.data.TensorDataset(torch.randn(10, 4))
    private = sd.Private(nn.Linear(4, 2), lambda m, x: m(x).sum(1), sd.NoisySum(sd.Flat(1.0), Gaussian(1.0)))
    with pytest.raises(Refusal, match="physical_batch"):
        private.draws(data, sd.Poisson(0.5), 1, expected_batch=5.0, physical_batch=MOST_ROWS + 1)


def test_the_default_physical_batch_costs_less_than_half_a_percent_of_noise():
    assert rounding_slack(MOST) < 0.005
