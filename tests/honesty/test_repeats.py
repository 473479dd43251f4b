"""A record that stands in the dataset several times is one person several times: refused, charged for it, or named."""

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

import sordino as sd
from tests.honesty.data import RARE, cross_entropy, network, vectors
from tests.honesty.script import Script

DATA = vectors(0)


REPEATED = {
    "a rare class taken eight times": lambda: Subset(DATA, [*range(64), *[i for i in RARE for _ in range(7)]]),
    "a subset drawn with replacement": lambda: Subset(DATA, torch.arange(64).remainder(40).tolist()),
    "a subset of a subset": lambda: Subset(Subset(DATA, [i // 2 for i in range(64)]), range(60)),
    "a concatenation with itself": lambda: ConcatDataset([DATA, DATA, DATA]),
    "overlapping subsets": lambda: ConcatDataset([Subset(DATA, range(40)), Subset(DATA, range(20, 64))]),
    "a concatenation of a subset and all": lambda: ConcatDataset([DATA, Subset(DATA, list(RARE))]),
}
SAID = {"dataset size", "seed"}


@pytest.mark.parametrize("name", REPEATED)
def test_repeated_records_are_refused_charged_or_named(name):
    plain = Script(network(), cross_entropy, vectors(1)).run(20)
    assert isinstance(plain, sd.Guarantee)
    try:
        claim = Script(network(), cross_entropy, REPEATED[name]()).run(20)
    except sd.Refusal:
        return
    if isinstance(claim, sd.Guarantee) and not set(claim.not_covered) - SAID:
        assert claim.epsilon > 1.5 * plain.epsilon, (
            f"{name}: one person is at least two records, and ε = {claim.epsilon:.2f} was printed as for one"
        )
