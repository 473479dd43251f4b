"""Measures of a model beside those of scikit-learn, and a baseline that has learnt nothing."""

import numpy as np
import pytest
import torch

from sordino.app.runs.evaluate import (
    count_confusion,
    describe_measures,
    majority_baseline,
    mean_baseline,
    measure_classes,
    measure_numbers,
    perplexity,
)

metrics = pytest.importorskip("sklearn.metrics")


def scores_of(classes: int, n: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns scores with many ties and classes of unlike sizes, all of which occur."""
    generator = torch.Generator().manual_seed(classes)
    targets = torch.cat([torch.arange(classes), torch.randint(classes, (n,), generator=generator) // 2])
    scores = (torch.randn(len(targets), classes, generator=generator) * 2).round() / 2
    scores[torch.arange(len(targets)), targets] += 1
    return scores, targets


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_measures_of_classes_are_scikit_learn_s(classes):
    scores, targets = scores_of(classes)
    found = measure_classes(scores, targets)
    probabilities, said = torch.softmax(scores.double(), 1).numpy(), scores.argmax(1).numpy()
    truth = targets.numpy()
    auc = [metrics.roc_auc_score(truth == one, probabilities[:, one]) for one in range(classes)]
    assert found["auc"] == pytest.approx(np.mean(auc))
    assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(truth, said))
    assert found["f1"] == pytest.approx(metrics.f1_score(truth, said, average="macro"))
    assert found["f1_by_class"] == pytest.approx(metrics.f1_score(truth, said, average=None).tolist())
    assert found["confusion"] == metrics.confusion_matrix(truth, said).tolist()


def test_the_majority_is_the_baseline():
    targets = torch.tensor([0] * 98 + [1] * 2)
    baseline = majority_baseline(targets, 2)
    assert (baseline["accuracy"], baseline["balanced_accuracy"], baseline["auc"]) == (0.98, 0.5, 0.5)
    # A model that always says the majority has the baseline's measures.
    same = measure_classes(torch.tensor([[1.0, 0.0]]).expand(100, 2), targets)
    assert {name: same[name] for name in ("auc", "balanced_accuracy", "f1")} == {
        name: baseline[name] for name in ("auc", "balanced_accuracy", "f1")
    }


def test_calibration_by_hand():
    """Two records at 0.9 of which one is right, one at 0.6 that is right: (2·0.9 − 1 + |0.6 − 1|) / 3."""
    probabilities = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]])
    found = measure_classes(probabilities.log(), torch.tensor([0, 1, 1]))
    assert found["calibration_error"] == pytest.approx((0.8 + 0.4) / 3, abs=1e-6)


def test_numbers_in_units_of_the_target():
    generator = torch.Generator().manual_seed(0)
    targets = torch.randn(200, 1, generator=generator)
    outputs = targets + 0.3 * torch.randn(200, 1, generator=generator)
    found = measure_numbers(outputs, targets, 50.0)
    assert found["rmse"] == pytest.approx(50 * metrics.mean_squared_error(targets, outputs) ** 0.5, rel=1e-5)
    assert found["mae"] == pytest.approx(50 * metrics.mean_absolute_error(targets, outputs), rel=1e-5)
    assert found["r2"] == pytest.approx(metrics.r2_score(targets, outputs), rel=1e-5)
    assert mean_baseline(targets, 50.0)["r2"] == pytest.approx(0, abs=1e-6)


def test_a_class_without_records_counts_in_no_mean():
    found = measure_classes(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1]))
    assert found["balanced_accuracy"] == 1.0
    assert found["f1_by_class"] == [1.0, 1.0, None]


def test_words_for_people():
    rows = describe_measures({"auc": 0.75, "baseline": {"auc": 0.5}})
    assert rows == [("AUC", "0.7500", "0.5000")]
    assert count_confusion(torch.tensor([1, 1]), torch.tensor([0, 1]), 2).tolist() == [[0, 1], [0, 1]]
    assert perplexity(np.log(7)) == pytest.approx(7)
