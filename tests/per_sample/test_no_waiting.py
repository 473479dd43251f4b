"""From losses to norms, weights and sums without asking the device for a number: on `meta`, which has none to give.

A tensor of that device has a shape and no values: `.item()`, `bool` and the like raise, and so does an operation on it
and on a tensor of the host. So this is also a test for mix-ups of devices.

Not without waiting: linear layers on sequences whose norms come from Gram products, which ask for the rows that cancelled.
"""

import pytest
import torch
from torch import nn

import sordino as sd
from sordino.clipping.clipping_rule import sum_clipped
from sordino.distributed.process_group import Ranks
from sordino.distributed.shared_lot import RankedLot
from sordino.per_sample import Captured
from sordino.per_sample.formulas import lookup
from sordino.per_sample.performance_options import PerformanceOptions
from sordino.release.exact_sums import OnGrid
from sordino.rng.streams import Rng
from tests.problems import cross_entropy

NOWHERE = torch.device("meta")
B = 5


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(7, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.norm(self.table(x)).mean(1))


def pictures():
    layers = [nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2)]
    return nn.Sequential(*layers), torch.zeros(B, 3, 8, 8)


MODELS = {
    "linear": lambda: (nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)), torch.zeros(B, 6)),
    "pictures": pictures,
    "words": lambda: (Words(), torch.zeros(B, 4, dtype=torch.long)),
}
CLIPPING_RULES = {
    "flat": sd.Flat(1.0),
    "automatic": sd.Automatic(1.0),
    "PSAC": sd.PSAC(1.0, 0.1),
    "quantile": sd.AdaptiveQuantile(1.0, 0.5, 2.0),
    "layerwise": sd.Layerwise({"": 1.0}),
}


def gradients(name: str):
    model, x = MODELS[name]()
    y = torch.zeros(B, dtype=torch.long, device=NOWHERE)
    engine = Captured(PerformanceOptions(measure=False, verify=False))  # the first batch is compared with autograd's
    return engine.per_sample(model.to(NOWHERE), cross_entropy, (x.to(NOWHERE), y))


@pytest.mark.parametrize("clipping", CLIPPING_RULES.values(), ids=CLIPPING_RULES)
@pytest.mark.parametrize("name", MODELS)
def test_norms_weights_and_sums_wait_for_no_number(name, clipping):
    found = sum_clipped([gradients(name)], clipping.rule(clipping.init(), lambda: pytest.fail("nobody may look")))
    assert all(tensor.is_meta for tensor in found.total.values())
    assert found.tally is None or found.tally.is_meta


@pytest.mark.parametrize("name", MODELS)
def test_nor_do_sums_on_the_grid(name):
    ranked = RankedLot(Ranks(), range(9), 9, 9, 0, Rng.from_seed(0), lambda: None, lambda reason: None)
    ranked.begin_pass()

    def parts():
        for place in range(9):  # more than are added up in float64
            ranked.begin_chunk(place)
            yield gradients(name)

    rule = sd.Flat(1.0).rule(None, lambda: pytest.fail("nobody may look"))
    total = sum_clipped(parts(), rule, ranked=ranked).total
    assert isinstance(total, OnGrid)
    assert total.values.is_meta


@pytest.mark.parametrize("distinct", [lookup.find_distinct, lookup.find_distinct_padded])
def test_words_that_occur_again_are_counted_together(distinct, monkeypatch):
    """The way of a device, run on the host, beside sums over a table that is written out."""
    monkeypatch.setattr(lookup, "find_distinct", distinct)
    rng = torch.Generator().manual_seed(0)
    ids, g = torch.randint(3, (B, 6), generator=rng), torch.randn(B, 6, 4, generator=rng, dtype=torch.float64)
    part = lookup.Lookup(ids, g, 3)
    wanted = part.rows(slice(None)).square().sum(dim=(1, 2))
    assert torch.allclose(part.measure_squared_norms(PerformanceOptions()), wanted)


def test_a_number_that_is_asked_for_is_noticed():
    with pytest.raises(RuntimeError, match="meta tensors"):
        gradients("linear").norms().squared.sum().item()
