"""Mixtures of experts: rows sorted by expert still belong to their samples."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from sordino.per_sample import Captured, PerformanceOptions
from sordino.per_sample.formulas import grouped_product
from sordino.per_sample.formulas.grouped_product import Grouped, Routes
from sordino.per_sample.layers import rule_for
from sordino.per_sample.layers.experts import run_experts
from tests.per_sample.oracle import same, square

COUNTS = [[3, 0, 5], [0, 0, 0], [1, 30, 2]]
"""Of three samples through three matrices, one of which nobody takes; 30 rows are too many for a Gram product."""


def grouped() -> Grouped:
    torch.manual_seed(0)
    owners = torch.tensor([i for row in COUNTS for i, n in enumerate(row) for _ in range(n)])
    a, g = (torch.randn(len(owners), n, dtype=torch.float64) for n in (6, 5))
    return Grouped(a, g, Routes(COUNTS, owners))


def one_by_one(part: Grouped) -> Tensor:
    """Each row's outer product, added where it belongs."""
    found, row = torch.zeros(3, 3, 5, 6, dtype=torch.float64), 0
    for e, counts in enumerate(COUNTS):
        for i, n in enumerate(counts):
            for _ in range(n):
                found[i, e] += torch.outer(part.g[row], part.a[row])
                row += 1
    return found


def test_norms_products_and_sums_are_those_of_the_rows() -> None:
    part, options = grouped(), PerformanceOptions()
    true = one_by_one(part)
    u, w = torch.randn(3, 5, 6, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    assert torch.allclose(part.rows(slice(None)), true)
    assert torch.allclose(part.rows(torch.tensor([2, 0])), true[[2, 0]])
    assert torch.allclose(part.measure_squared_norms(options), true.flatten(1).square().sum(1))
    assert torch.allclose(part.dot(u), (true * u).flatten(1).sum(1))
    for beta, before in ((0, torch.full((3, 5, 6), torch.nan).double()), (1, torch.ones(3, 5, 6).double())):
        out = before.clone()
        part.add_to(out, w, beta)
        assert torch.allclose(out, torch.einsum("b,bepd->epd", w, true) + (before if beta else 0))


@pytest.mark.parametrize("compiled", [True, False])
def test_norms_in_float32_are_those_of_the_rows(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel, stretches of few rows in one call, and by torch."""
    if not compiled:
        monkeypatch.setattr(grouped_product, "load_grams", lambda: None)
    exact = grouped()
    part = Grouped(exact.a.float(), exact.g.float(), exact.routes)
    wanted = one_by_one(exact).flatten(1).square().sum(1)
    assert torch.allclose(part.measure_squared_norms(PerformanceOptions()).double(), wanted, rtol=1e-5)


def test_norms_of_a_sample_do_not_depend_on_the_others() -> None:
    """Not by the choice of a formula either: how many rows the others have is their own affair."""
    torch.manual_seed(0)
    a, g, alone = torch.randn(40, 16), torch.randn(40, 16), torch.zeros(3, dtype=torch.long)
    for others in (2, 37):
        owners = torch.cat([alone, torch.ones(others, dtype=torch.long)])
        both = Grouped(a[: len(owners)], g[: len(owners)], Routes([[3, others]], owners)).measure_squared_norms(
            PerformanceOptions()
        )
        assert torch.equal(
            both[:1], Grouped(a[:3], g[:3], Routes([[3]], alone)).measure_squared_norms(PerformanceOptions())
        )


def test_terms_are_added_up_without_cancelling() -> None:
    part = grouped()
    lengths = part.a.norm(dim=1) * part.g.norm(dim=1)
    expected = torch.zeros(3).double().index_add_(0, part.routes.owners, lengths).square()
    assert torch.allclose(part.bound_squared_terms(PerformanceOptions()), expected)


def test_norms_that_cancel_are_measured_from_rows() -> None:
    """Two rows of opposite sign through one matrix, but for a millionth."""
    torch.manual_seed(0)
    a, g = torch.randn(1, 8).expand(2, 8).contiguous(), torch.randn(1, 9).expand(2, 9).clone()
    g[1] *= -(1 + 1e-4)
    part = Grouped(a, g, Routes([[2]], torch.zeros(2, dtype=torch.long)))
    true = (g.double().t() @ a.double()).square().sum()
    assert part.measure_squared_norms(PerformanceOptions())[0] >= 0.999 * true
    assert part.measure_squared_norms(PerformanceOptions())[0] <= 1.01 * true


def test_a_sample_that_is_not_finite_is_left_out() -> None:
    part = grouped()
    part.a[part.routes.owners == 1] = torch.nan
    masked, out = part.mask_samples(torch.tensor([False, True, False])), torch.zeros(3, 5, 6).double()
    masked.add_to(out, torch.tensor([1.0, 0.0, 1.0]).double())
    part.a[part.routes.owners == 1] = 0
    assert torch.allclose(out, one_by_one(part).sum(0))


class Mixture(nn.Module):
    """A gate on tokens folded into rows, and transformers' experts."""

    def __init__(self, implementation: str) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
            sizes = {"hidden_size": 4, "intermediate_size": 8, "num_local_experts": 3}
            config = mixtral.MixtralConfig(**sizes, experts_implementation=implementation)
        self.gate, self.experts = nn.Linear(4, 3), mixtral.MixtralExperts(config)
        for p in self.experts.parameters():
            nn.init.normal_(p)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, 4)
        scores, chosen = self.gate(rows).softmax(1).topk(2, 1)
        return self.experts(rows, chosen, scores).view(x.shape)


@pytest.mark.parametrize("two_pass", [False, True], ids=("one pass", "two passes"))
@pytest.mark.parametrize(("implementation", "dtype"), [("eager", torch.float64), ("grouped_mm", torch.float32)])
def test_experts_of_transformers_are_exact(implementation: str, dtype: torch.dtype, two_pass: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Mixture(implementation), nn.Tanh(), Mixture(implementation)).to(dtype)
    assert rule_for(model[1].experts) is run_experts
    backend = Captured(PerformanceOptions(two_pass=two_pass))
    for b, length in ((5, 8), (3, 16), (1, 3), (5, 8)):
        same(model, (torch.randn(b, length, 4).to(dtype),), backend=backend)


def test_frozen_experts_take_no_part() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Mixture("eager")).double()
    model[1].experts.down_proj.requires_grad_(False)
    same(model, (torch.randn(5, 8, 4).double(),), square)


def test_experts_with_a_forward_of_their_own_are_not_taken_for_them() -> None:
    mixture = Mixture("eager")

    class Other(type(mixture.experts)):
        def forward(self, *given: Tensor) -> Tensor:
            return super().forward(*given) * 2

    mixture.experts.__class__ = Other
    assert rule_for(mixture.experts) is None
    same(nn.Sequential(nn.Linear(4, 4), mixture).double(), (torch.randn(4, 6, 4).double(),))
