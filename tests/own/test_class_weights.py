"""Class weights: public ones multiply each record's loss, balanced ones come from a histogram that the claim charges."""

import pytest
import torch
from torch import nn

import sordino
from sordino.app.runs import build, find
from sordino.app.runs.declared_file import OwnFile
from sordino.app.runs.encoded_records import Prepared
from sordino.app.runs.given_data import GivenData
from sordino.app.runs.preparation import ClassWeights, balance_classes
from sordino.app.runs.settings import make_settings, write_class_weights
from sordino.events import Gaussian
from sordino.ledger.ledger import Ledger
from sordino.rng.streams import Rng

LONG = {"epsilon": 8.0, "steps": 300, "rate": 0.1, "learning_rate": 0.1, "seed": 2}


@pytest.fixture
def rare(tmp_path):
    """One record in twenty is positive: a third of those with the largest a, so that without weights none is called so."""
    path = tmp_path / "rare.csv"
    lines = [f"{k / 20},{'yes' if k >= 1700 and k % 3 == 0 else 'no'}" for k in range(2000)]
    path.write_text("\n".join(["a,y", *lines]) + "\n")
    return OwnFile(path=str(path), target="y", bounds={"a": (0, 100)}, classes=("no", "yes"))


def test_public_weights_multiply_each_record_s_loss_and_the_largest_is_one():
    x, y = torch.randn(30, 2), torch.arange(30) % 3
    data = torch.utils.data.TensorDataset(x, y)
    recipe = find("spiral")
    plain = build(recipe, Prepared(data, data, 3), seed=0)
    weighted = build(recipe.but(class_weights="1=4,2=0.5"), Prepared(data, data, 3), seed=0)
    by_hand = plain.loss_fn(plain.model, x, y) * torch.tensor([0.25, 1.0, 0.125])[y]
    torch.testing.assert_close(weighted.loss_fn(weighted.model, x, y), by_hand)
    with pytest.raises(ValueError, match="need CLASS=WEIGHT"):
        build(recipe.but(class_weights="yes=4"), Prepared(data, data, 3), seed=0)


def test_balanced_weights_are_those_of_a_noisy_histogram():
    """Counts of 900 and 100 with noise of deviation 1: the weights are 100/900 and 1 within a few percent."""
    x, y = torch.randn(1000, 3), (torch.arange(1000) < 100).long()
    model, ledger = torch.nn.Sequential(ClassWeights(2)), Ledger()
    balance_classes(model, torch.utils.data.TensorDataset(x, y), 1.0, ledger, Rng.from_seed(1))
    torch.testing.assert_close(model[0].weights, torch.tensor([100 / 900, 1.0]), rtol=0.06, atol=0)
    assert ledger.event() == Gaussian(1.0)
    # A record that is in the data twice is charged as two.
    twice = torch.utils.data.TensorDataset(x.repeat(2, 1), y.repeat(2))
    again = Ledger()
    balance_classes(model, twice, 1.0, again, Rng.from_seed(1))
    assert again.event() != Gaussian(1.0)


def test_the_histogram_is_in_the_claim_and_the_weights_in_the_run(rare, tmp_path):
    plain = sordino.fit("linear", rare, out=tmp_path / "plain", **LONG)
    balanced = sordino.fit("linear", rare, out=tmp_path / "balanced", class_weights="balanced", **LONG)
    assert balanced.claim.epsilon <= 8.0
    assert "Gaussian(20" in str(balanced.claim)
    assert "Gaussian(20" not in str(plain.claim)
    weights = next(one for one in balanced.model.modules() if isinstance(one, ClassWeights)).weights
    assert weights[1] > 3 * weights[0]
    # The rare class is found, and a loaded model says the same.
    assert balanced.measures["balanced_accuracy"] > plain.measures["balanced_accuracy"]
    loaded = sordino.load(balanced.run)
    assert loaded.predict([{"a": 99}, {"a": 1}]) == ["yes", "no"]


def test_what_does_not_go_together_is_refused(rare, tmp_path):
    with pytest.raises(ValueError, match="give both"):
        find("spiral").but(class_weights="balanced")
    with pytest.raises(ValueError, match="give both"):
        find("spiral").but(histogram=20.0)


@pytest.mark.parametrize(
    "weights",
    [[1.0, 20.0], {0: 1.0, 1: 20.0}, torch.tensor([1.0, 20.0]), "0=1.0,1=20.0"],
    ids=["list", "dict", "tensor", "text"],
)
@pytest.mark.parametrize("name", ["class_weights", "class_weight"])
def test_weights_are_taken_as_lists_dicts_tensors_and_text(weights, name):
    records = torch.randn(20, 3), torch.arange(20) % 2
    own = GivenData.from_datasets(nn.Linear(3, 2), records)
    settings = make_settings(None, {"epsilon": 3.0, "steps": 5, "rate": 0.1, name: weights}, own=own)
    assert settings.recipe.class_weights == "0=1.0,1=20.0"


def test_a_list_of_weights_is_in_the_order_of_the_declared_classes():
    assert write_class_weights([1, 20], ("no", "yes")) == "no=1,yes=20"
    with pytest.raises(ValueError, match="3 numbers for 2 classes"):
        write_class_weights([1, 2, 3], ("no", "yes"))
