"""scikit-learn and skorch fit more often than it seems and score what they were fitted on: none of it prints an ε."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import sordino as sd
from sordino.integrations import Privacy
from sordino.integrations.equal_rows import RowDigests
from sordino.integrations.same_records import TrainedTable, shares_records
from tests.integrations.words import Sentences

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of their imports, about themselves
    skorch = pytest.importorskip("skorch")
    pytest.importorskip("sklearn")
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.ensemble import BaggingClassifier
    from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler
    from skorch.callbacks import EpochScoring
    from skorch.helper import predefined_split

    from sordino.integrations.sklearn import DPClassifier, DPRegressor
    from sordino.integrations.skorch import NeuralNetClassifier

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

TABLE = np.random.default_rng(0).normal(size=(240, 4)).astype("float32")
LABELS = (TABLE[:, 0] > 0).astype("int64")
TEXTS = Sentences(60, seed=0)
PRIVACY = Privacy(query=sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), delta=1e-4)


def voided(claim, words):
    assert isinstance(claim, sd.NoGuarantee), claim
    assert words in claim.reason, claim.reason


def net(**more):
    usual = {"privacy": PRIVACY, "max_epochs": 1, "batch_size": 50, "classes": [0, 1], "verbose": 0}
    return NeuralNetClassifier(nn.Linear(4, 2), **usual | more)


def table(**more):
    usual = {"epsilon": 4.0, "delta": 1e-4, "low": -4.0, "high": 4.0, "classes": [0, 1], "epochs": 1, "lot": 50}
    return DPClassifier(**usual | more)


MANY = {
    "cross-validation": lambda one, field: cross_val_score(one, TABLE, LABELS, cv=2, error_score="raise"),
    "a search": lambda one, field: GridSearchCV(one, {field: [0.1]}, cv=2, error_score="raise").fit(TABLE, LABELS),
    "resampled": lambda one, field: BaggingClassifier(one, n_estimators=2).fit(TABLE, LABELS),
    "calibration": lambda one, field: CalibratedClassifierCV(one, cv=2).fit(TABLE, LABELS),
}


@pytest.mark.parametrize(("made", "field"), [(net, "lr"), (table, "learning_rate")])
@pytest.mark.parametrize("name", MANY)
def test_what_fits_many_times_is_refused(made, field, name):
    with pytest.raises(sd.Refusal, match=r"score private records|resampled"):
        MANY[name](made(), field)


def test_a_target_that_was_scaled_by_what_it_is_is_refused():
    regressor = DPRegressor(epsilon=4.0, delta=1e-4, low=-4.0, high=4.0, target_low=-1, target_high=1, epochs=1, lot=50)
    with pytest.raises(sd.Refusal, match=r"sklearn\.compose"):
        TransformedTargetRegressor(regressor, transformer=StandardScaler()).fit(TABLE, TABLE[:, 0])


def test_a_scaler_before_a_net_voids_its_claim():
    voided(make_pipeline(StandardScaler(), net()).fit(TABLE, LABELS)[-1].claim_, "StandardScaler in the pipeline")


def test_two_fits_in_one_ledger_add_up():
    ledger = sd.Ledger()
    alone = table(ledger=ledger).fit(TABLE, LABELS).claim_.epsilon
    assert table(ledger=ledger).fit(TABLE, LABELS).claim_.epsilon > alone


class Frame:
    """As a data frame: a table behind `to_numpy`, and another object each time it is cut."""

    def __init__(self, rows):
        self.rows = np.asarray(rows, dtype=np.float64)
        self.shape = self.rows.shape

    def to_numpy(self):
        return self.rows.copy()

    def __array__(self, dtype=None, copy=None):
        return self.rows.astype(dtype or np.float64)

    def __len__(self):
        return len(self.rows)


LOOKS = {
    "predict": lambda one: one.predict(TABLE[:150]),
    "predict_proba": lambda one: one.predict_proba(TABLE[:30]),
    "a copy": lambda one: one.score(TABLE[:100].copy(), LABELS[:100]),
    "in another order": lambda one: one.score(TABLE[150::-1], LABELS[150::-1]),
}


@pytest.mark.parametrize("made", [net, table])
@pytest.mark.parametrize("look", LOOKS)
def test_predictions_for_the_training_set_void_the_claim(made, look):
    one = made().fit(TABLE[:200].copy(), LABELS[:200])
    one.score(TABLE[200:], LABELS[200:])
    assert isinstance(one.claim_, sd.Guarantee)
    LOOKS[look](one)
    voided(one.claim_, "training set was scored")


def test_lists_data_frames_and_pipelines_of_the_training_set_are_known_again():
    rows, labels = TABLE[:200].astype(np.float64), LABELS[:200]
    one = table().fit(rows.tolist(), labels)
    one.predict(rows.tolist())
    voided(one.claim_, "training set was scored")
    framed = table().fit(Frame(rows), labels)
    framed.score(Frame(TABLE[200:]), LABELS[200:])
    assert isinstance(framed.claim_, sd.Guarantee)
    framed.score(Frame(rows), labels)
    voided(framed.claim_, "training set was scored")
    pipe = make_pipeline(FunctionTransformer(np.tanh), table()).fit(rows, labels)
    pipe.score(rows, labels)
    voided(pipe[-1].claim_, "training set was scored")
    train, _, kinds, _ = train_test_split(rows, labels, random_state=0)
    split = table().fit(train, kinds)
    split.score(rows, labels)  # three quarters of them were trained on
    voided(split.claim_, "training set was scored")


def test_scores_of_training_in_skorch_void_the_claim():
    scoring = EpochScoring("accuracy", on_train=True, use_caching=False, name="train_acc")
    voided(net(callbacks=[scoring]).fit(TABLE, LABELS).claim_, "training set was scored")
    itself = predefined_split(skorch.dataset.Dataset(TABLE, LABELS))
    voided(net(train_split=itself).fit(TABLE, LABELS).claim_, "training set was scored")


def test_classes_that_skorch_read_off_the_data_are_named():
    assert "which classes there are" in net(classes=None).fit(TABLE, LABELS).claim_.not_covered
    assert "which classes there are" not in net().fit(TABLE, LABELS).claim_.not_covered


# What is known again, and what is not


def test_held_out_rows_of_few_values_are_not_taken_for_the_training_set():
    """At most 1/e of independent rows hit one that is there once; here close to that share, in 200 trials."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        cells = generator.integers(0, 1000, size=(1100, 1)) * np.ones((1, 2))  # as many cells as records
        assert not RowDigests.of(cells[:1000]).has_rows_of(cells[1000:])


def test_rows_are_told_apart_by_sign_and_known_in_another_precision():
    rows = np.array([[a, b, c] for a in (1.0, -1.0) for b in (0.25, -0.25) for c in np.linspace(0.1, 1, 20)])
    assert not RowDigests.of(rows[:40]).has_rows_of(rows[40:])
    assert not RowDigests.of(rows[:40]).has_rows_of(rows[:40] * [-1, -1, 1])
    assert RowDigests.of(rows).has_rows_of(torch.as_tensor(rows, dtype=torch.float32))
    assert not TrainedTable.remember(rows[::2]).shares_rows_with(rows[1::2])  # in one memory, and yet others
    assert TrainedTable.remember(rows[::2]).shares_rows_with(rows[:3])  # too few to tell by chance, but a view of it


def test_other_records_of_the_same_list_are_not_the_same_records():
    assert not shares_records(TEXTS.records[30:], TEXTS.records[:30])
    assert shares_records(TEXTS.records[20:], TEXTS.records[:30])
