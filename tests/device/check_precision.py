"""Products in TF32: norms and sums are computed without them, and PyTorch's switches are left as they were."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sordino as sd
from sordino.ledger.claims import Guarantee
from sordino.per_sample import Captured, PerformanceOptions
from sordino.per_sample.formulas.gradient_part import (
    PlainArithmetic,
    full_precision,
    is_autocast_on,
    list_autocast_kinds,
)
from sordino.per_sample.formulas.matrix_product import Matmul
from sordino.per_sample.formulas.output_gradient import compute_gram_sums
from sordino.reduced_precision import FullPrecisionProducts
from tests.device.simulated import move, start
from tests.device.zoo import ZOO

sim = start()


def read_switches():
    """Returns PyTorch's switches of precision; those that contradict each other are named so."""
    found = []
    for read in (
        lambda: torch.backends.cuda.matmul.allow_tf32,
        lambda: torch.backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision,
        lambda: torch.backends.cuda.matmul.fp32_precision,
        lambda: torch.backends.cudnn.conv.fp32_precision,
        lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        lambda: torch.backends.mkldnn.matmul.fp32_precision,
    ):
        try:
            found.append(read())
        except RuntimeError:
            found.append("contradiction")
    return found


def rounds_products():
    """Returns whether a matrix product and a convolution are rounded to TF32 now."""
    almost_one = torch.full((1, 1, 1), 1 + 2**-12, device="sim")
    one = torch.ones(1, 1, 1, device="sim")
    return torch.bmm(almost_one, one).item() == 1, F.conv1d(almost_one, one).item() == 1


@pytest.fixture
def tf32():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    with sim.switches(tf32=True):
        yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("precision", ["high", "medium", "highest"])
def test_the_switches_are_off_inside_and_put_back(tf32, precision):
    torch.set_float32_matmul_precision(precision)
    before = read_switches()
    assert rounds_products() == (precision != "highest", True)
    for context in (FullPrecisionProducts(), full_precision(torch.device("sim")), PlainArithmetic(torch.device("sim"))):
        with context:
            assert rounds_products() == (False, False)
        assert read_switches() == before


def cancelling_problem(records=4):
    """Returns a layer over many positions whose terms cancel to a thousandth, so that TF32 would read the norm wrong."""
    torch.manual_seed(0)
    layer = nn.Linear(16, 8, bias=False)
    x = torch.randn(records, 64, 16)
    x[:, 1::2] = -x[:, ::2] * (1 + 1e-3)

    def loss_fn(model, x):
        return model(x).sum((1, 2))

    return layer, x, loss_fn


def norms_of(layer, x, loss_fn):
    return Captured().per_sample(layer, loss_fn, (x,)).norms().total().cpu().double()


def test_cancelled_gram_norms_do_not_read_low(tf32):
    layer, x, loss_fn = cancelling_problem()
    true = norms_of(
        nn.Linear(16, 8, bias=False).double(), x.double(), loss_fn
    )  # the gradient does not depend on the weight
    found = norms_of(move(layer), x.to("sim"), loss_fn)
    assert float((found / true).min()) >= 1 - 1e-4, found / true
    assert float((found / true).max()) <= 1 + 1e-3, found / true  # measured again, not only raised by the bound


def test_no_norm_reads_low_if_more_records_cancel_than_are_measured_again():
    """The terms cancel to 5e-4 of their sum, and rows are rounded at 6e-8 of it: lengths are known to 1e-4."""
    _, x, _ = cancelling_problem(records=40)
    x[:, 1::2] = -x[:, ::2] * (1 + 1e-3)
    g = torch.ones(40, 64, 8)
    true = torch.bmm(g.double().transpose(1, 2), x.double()).flatten(1).norm(dim=1)
    part = Matmul(x.to("sim"), g.to("sim"))
    sums, diagonal = compute_gram_sums(part.a, part.g)
    guarded = part._guard_cancellation(sums, diagonal, PerformanceOptions()).double().sqrt().cpu() / true
    assert float((sums.clamp(min=0).double().sqrt().cpu() / true).min()) < 0.99  # what the guard is for
    assert float(guarded.min()) >= 1 - 1e-4, guarded
    assert int(((guarded - 1).abs() <= 1e-3).sum()) >= 4, guarded  # those that are measured again are exact


@pytest.mark.parametrize("width", [64, 4096])
@pytest.mark.parametrize("kind", ["equal", "growing", "one large"])
def test_long_sums_of_records_made_for_it_do_not_read_low(width, kind):
    """Products of equal or growing sizes lose the most where they are added up one after the other."""
    a = {
        "equal": torch.full((6, 9, width), 1.0001),
        "growing": torch.linspace(1e-3, 1.0, width).expand(6, 9, width).contiguous(),
        "one large": torch.cat([torch.full((6, 9, 1), 64.0), torch.full((6, 9, width - 1), 0.03)], 2),
    }[kind] * torch.linspace(0.5, 1.5, 6)[:, None, None]
    g = torch.rand(6, 9, 5, generator=torch.Generator().manual_seed(0)) + 0.5
    true = torch.bmm(g.double().transpose(1, 2), a.double()).flatten(1).norm(dim=1)
    part = Matmul(a.to("sim"), g.to("sim"))
    squared = part._guard_cancellation(*compute_gram_sums(part.a, part.g), PerformanceOptions())
    assert float((squared.double().sqrt().cpu() / true).min()) >= 1 - 1e-7


def test_sums_are_those_of_float32(tf32):
    layer, x, loss_fn = cancelling_problem()
    weights = torch.linspace(0.1, 1.0, 4)[:, None]
    exact = Captured().per_sample(layer, loss_fn, (x,)).weighted_sum(weights)["weight"].clone()
    part = Captured().per_sample(move(layer), loss_fn, (x.to("sim"),))
    found = part.weighted_sum(weights.to("sim"))["weight"].cpu()
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["cnn_dropout", "vit_dropout"])
def test_models_that_compute_in_tf32_train_and_have_a_claim(tf32, name):
    torch.manual_seed(0)
    model, data, loss_fn = ZOO[name]()
    optimizer = torch.optim.SGD(move(model).parameters(), lr=0.05)
    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), seed=1)
    for lot in private.draws(data, sd.Poisson(0.1), steps=4):
        optimizer.zero_grad()
        private.backward(lot)
        optimizer.step()
    claim = private.claim(1e-5)
    assert isinstance(claim, Guarantee), str(claim)


def test_autocast_is_asked_for_by_the_kind_of_accelerator_that_is_there():
    assert list_autocast_kinds() == ("cpu", "sim")
    assert not is_autocast_on()
    with torch.autocast("sim", dtype=torch.bfloat16):
        assert is_autocast_on()
