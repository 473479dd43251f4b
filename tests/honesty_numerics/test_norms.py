"""No norm is low, and no record's terms drown the others, for gradients made to cancel, vanish or span float32's range.

Truth is the float64 norm of what a one-hot weighted sum adds, and what a record's presence does to the sum of the others.
"""

import pytest
import torch

from sordino.per_sample import PerformanceOptions
from sordino.per_sample.formulas.compound_parts import SeveralParts, SeveralRows
from sordino.per_sample.formulas.convolution_geometry import Geometry
from sordino.per_sample.formulas.convolution_weight import Convolution
from sordino.per_sample.formulas.gradient_part import NEVER, GradientRows, measure_part
from sordino.per_sample.formulas.lookup import Lookup, Tied
from sordino.per_sample.formulas.matrix_product import Matmul
from sordino.per_sample.formulas.output_gradient import OutputGradient
from sordino.release.rounding import rounding_slack

B, T, D, P, V = 9, 16, 12, 10, 7
KEEPING = PerformanceOptions(measure=False, keep_bytes=1 << 30)
FRESH = PerformanceOptions(measure=False, keep_bytes=NEVER)
CASES = ("huge-cancelling", "half-cancelling", "tiny", "subnormal", "tiny-times-huge", "wide-range", "plain")


def factors(case: str, positions: int = T) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (B, T, D) and output gradients (B, T, P), the first sample made for the case; others have gradients near 1."""
    torch.manual_seed(0)
    a, g = torch.randn(B, positions, D) / D**0.5, torch.randn(B, positions, P) / (P * positions) ** 0.5
    if case.endswith("cancelling"):
        v = 2.0**34 if case.startswith("huge") else 2.0**9
        a[0, 1], g[0, 1] = a[0, 0], -v * g[0, 0]
        g[0, 0] = v * g[0, 0]
    elif case == "tiny":
        a[0] *= 1e-17
    elif case == "subnormal":
        a[0] *= 1e-38
        g[0] *= 1e16
    elif case == "tiny-times-huge":
        a[0] *= 1e-22
        g[0] *= 1e17
    elif case == "wide-range":
        a[0] *= torch.logspace(-18, 8, positions)[:, None]
        g[0] *= torch.logspace(8, -18, positions)[:, None]
    return a, g


def matmul(case, choice):
    a, g = factors(case)
    output = OutputGradient(g)
    output.choice = choice
    return Matmul(a, g, output), (P, D)


def one_position(case):
    a, g = factors("plain" if case.endswith("cancelling") else case, 1)
    return Matmul(a, g), (P, D)


def twice(case):
    a, g = factors(case, 2)
    return SeveralParts((Matmul(a[:, :1], g[:, :1]), Matmul(a[:, 1:], g[:, 1:]))), (P, D)


def rows(case):
    a, g = factors(case)
    return GradientRows(torch.bmm(g.mT, a)), (P, D)


def frames(case):
    a, g = factors(case, 2)
    return SeveralRows(Matmul(a.flatten(0, 1), g.flatten(0, 1)), 2), (P, D)


class Chosen(Convolution):
    """A convolution by one formula."""

    __slots__ = ("by",)

    def _choose_formula(self, options, keep):
        return self.by


def chosen(case, choice):
    torch.manual_seed(1)
    a, g = torch.randn(B, 16, 6, 6) / 12, torch.randn(B, 16, 6, 6) / 24
    if case.endswith("cancelling"):
        v = 2.0**34 if case.startswith("huge") else 2.0**9
        a[0, :, 3:], g[0] = a[0, :, :3], 0
        g[0, :, 1, 1:5] = v * torch.randn(16, 4) / 24
        g[0, :, 4, 1:5] = -g[0, :, 1, 1:5]
        g[0, :, 0, 0] = 0.1
    elif case == "wide-range":
        a[0] *= torch.logspace(-18, 8, 36).view(6, 6)
        g[0] *= torch.logspace(8, -18, 36).view(6, 6)
    else:
        a[0] *= {"tiny": 1e-17, "subnormal": 1e-38, "tiny-times-huge": 1e-22}.get(case, 1.0)
        g[0] *= {"subnormal": 1e16, "tiny-times-huge": 1e17}.get(case, 1.0)
    if choice == "winograd":
        a, g = (x.contiguous(memory_format=torch.channels_last) for x in (a, g))
    part = Chosen(a, g, Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1))
    part.by = choice
    return part, (16, 16, 3, 3)


def lookup(case):
    _, g = factors(case)
    ids = torch.randint(0, V, (B, T))
    ids[0, :2] = 3
    return Lookup(ids, g, V), (V, P)


def tied(case):
    a, g = factors(case)
    ids = torch.randint(0, P, (B, 2))
    e = torch.randn(B, 2, D) / D
    if case.endswith("cancelling"):  # the embedding's row takes the head's away
        ids[0], g[0], e[0] = 2, 0, 0
        g[0, 0, 2] = 2.0**20
        e[0, 0] = -(2.0**20) * a[0, 0]
        e[0, 1] = torch.randn(D)
    return Tied(Lookup(ids, e, P), Matmul(a, g)), (P, D)


PARTS = {
    "one-position": one_position,
    **{choice: (lambda case, choice=choice: matmul(case, choice)) for choice in ("gram", "compiled", "rows")},
    "used-twice": twice,
    "held-rows": rows,
    "frames": frames,
    "lookup": lookup,
    "tied": tied,
    **{
        f"conv-{choice}": (lambda case, choice=choice: chosen(case, choice))
        for choice in ("gram", "shifted", "unfold", "last", "shift", "native", "compiled", "winograd")
    },
}


def added(part, shape, weights) -> torch.Tensor:
    out = torch.zeros(shape)
    part.add_to(out, weights)
    return out.double()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("options", [KEEPING, FRESH], ids=["kept", "fresh"])
@pytest.mark.parametrize("name", PARTS)
def test_a_norm_is_not_below_what_the_sum_gets(name, options, case):
    part, shape = PARTS[name](case)
    norms = measure_part(part, options).double().sqrt()
    assert norms.shape == (B,)
    for i in range(B):
        if norms[i].isfinite():  # else the record counts nothing
            alone = added(part, shape, torch.eye(B)[i])
            assert alone.norm() <= (1 + rounding_slack(1)) * norms[i] + 1e-18


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("options", [KEEPING, FRESH], ids=["kept", "fresh"])
@pytest.mark.parametrize("name", PARTS)
def test_a_record_moves_the_sum_of_the_others_by_no_more_than_the_bound(name, options, case):
    """At weights 1 / ‖g_i‖, as Normalised has them."""
    part, shape = PARTS[name](case)
    norms = measure_part(part, options)
    weights = torch.where(norms.isfinite(), norms.clamp(min=1e-24).rsqrt(), 0)
    if not norms[0].isfinite():
        pytest.skip("a record that is not finite is left out, and tested to be")
    without = weights.clone()
    without[0] = 0
    moved = added(part, shape, weights) - added(part, shape, without)
    assert moved.norm() <= 1 + rounding_slack(B)


def test_honest_norms_keep_their_bits():
    """Nothing is raised where nothing cancels: rows and one position to the bit, Gram sums to its rounding."""
    for name in ("rows", "one-position", "held-rows", "conv-unfold"):
        part, _ = PARTS[name]("plain")
        plain = part.measure_squared_norms(KEEPING)
        assert torch.equal(measure_part(PARTS[name]("plain")[0], KEEPING), plain)
