"""scikit-learn estimators: they learn, meet their ε, and say so where scikit-learn's habits would not be covered."""

import pickle

import numpy as np
import pytest

import sordino as sd

pytest.importorskip("sklearn", reason="scikit-learn is in the extra [sklearn]")
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from sordino.integrations.sklearn import DPClassifier, DPRegressor

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 10, size=(900, 3))
Y = np.where(X[:, 0] > X[:, 1], "yes", "no")
TRAIN, TEST = X[:600].copy(), X[600:].copy()


def classifier(**more):
    usual = {"epsilon": 4.0, "delta": 1e-4, "low": 0.0, "high": 10.0, "classes": ["no", "yes"], "epochs": 6, "lot": 100}
    return DPClassifier(**usual | more)


def test_a_classifier_learns_and_meets_its_target():
    model = classifier().fit(TRAIN, Y[:600])
    assert model.score(TEST, Y[600:]) > 0.85
    said = model.claim_
    assert isinstance(said, sd.Guarantee), said
    assert 3.8 < said.epsilon <= 4.0
    assert "which classes there are" not in said.not_covered
    shares = model.predict_proba(TEST)
    assert shares.shape == (300, 2)
    assert np.allclose(shares.sum(1), 1)
    assert (model.predict(TEST) == model.classes_[(model.decision_function(TEST) > 0).astype(int)]).all()


def test_classes_that_were_read_off_the_data_are_named_in_the_claim():
    assert "which classes there are" in classifier(classes=None, epochs=1).fit(TRAIN, Y[:600]).claim_.not_covered


def test_a_regressor_learns_and_meets_its_target():
    target = X[:, 0] + 2 * X[:, 1]
    model = DPRegressor(
        epsilon=4.0,
        delta=1e-4,
        low=0.0,
        high=10.0,
        target_low=0.0,
        target_high=30.0,
        lot=100,
        epochs=20,
        learning_rate=0.05,
    )
    assert model.fit(TRAIN, target[:600]).score(TEST, target[600:]) > 0.7
    assert model.claim_.epsilon <= 4.0


def test_a_hidden_layer_and_a_common_ledger_that_charges_both():
    ledger = sd.Ledger()
    one = classifier(hidden=8, epochs=2, ledger=ledger).fit(TRAIN, Y[:600])
    alone = one.claim_.epsilon
    two = classifier(epochs=2, ledger=ledger).fit(TRAIN, Y[:600])
    assert two.claim_.epsilon > alone
    assert two.claim_ == one.claim_


def test_scoring_the_training_set_voids_the_claim():
    model = classifier(epochs=1).fit(TRAIN, Y[:600])
    model.score(TRAIN[:50], Y[:50])
    assert "training set was scored" in model.claim_.reason


def test_cross_validation_and_searches_are_refused():
    with pytest.raises(ValueError, match="score private records without noise"):
        cross_val_score(classifier(epochs=1), TRAIN, Y[:600], cv=2)
    with pytest.raises(ValueError, match="score private records without noise"):
        GridSearchCV(classifier(epochs=1), {"bound": [0.5, 1.0]}, cv=2).fit(TRAIN, Y[:600])


def test_a_pipeline_that_learnt_from_the_records_voids_and_one_that_did_not_is_covered():
    learnt = make_pipeline(StandardScaler(), classifier(epochs=1, low=None, high=None)).fit(TRAIN, Y[:600])
    assert "StandardScaler in the pipeline was fitted" in learnt[-1].claim_.reason
    fixed = make_pipeline(FunctionTransformer(np.sqrt), classifier(epochs=1, high=4.0)).fit(TRAIN, Y[:600])
    assert isinstance(fixed[-1].claim_, sd.Guarantee)


def test_an_estimator_clones_and_pickles_without_its_noise():
    model = classifier(epochs=1).fit(TRAIN, Y[:600])
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(TEST) == model.predict(TEST)).all()
    assert not hasattr(again, "private_")
    assert clone(model).get_params()["epsilon"] == 4.0


@pytest.mark.parametrize(
    ("more", "y", "words"),
    [
        ({"low": None}, Y[:600], "give both"),
        ({"low": 11.0}, Y[:600], "low < high"),
        ({"classes": ["no", "maybe"]}, Y[:600], "not in `classes`"),
        ({}, Y[:10], "one label for each row"),
        ({"epsilon": -1.0}, Y[:600], "epsilon"),
    ],
)
def test_what_cannot_be_fitted_is_said(more, y, words):
    with pytest.raises((ValueError, sd.Refusal), match=words):
        classifier(**more).fit(TRAIN, y)


def test_parameters_are_taken_under_the_names_of_other_libraries():
    model = DPClassifier(epsilon=2.0, delta=1e-4, batch_size=100, lr=0.1, max_grad_norm=2.0, n_epochs=3, random_state=1)
    own = {"lot": 100, "learning_rate": 0.1, "bound": 2.0, "epochs": 3, "seed": 1}
    assert {name: model.get_params()[name] for name in own} == own
    assert not set(model.get_params()) & {"batch_size", "lr"}
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(batch_size=50, epochs=2).lot == 50
    assert model.epochs == 2
    regressor = DPRegressor(epsilon=2.0, delta=1e-4, target_low=0.0, target_high=1.0, batch_size=64)
    assert regressor.lot == 64
    with pytest.raises(TypeError, match="is given twice"):
        DPClassifier(epsilon=2.0, delta=1e-4, lot=100, batch_size=50)
    with pytest.raises(TypeError, match="two of these name one parameter"):
        DPClassifier(epsilon=2.0, delta=1e-4, clip=1.0, max_grad_norm=2.0)
    with pytest.raises(TypeError, match=r"momentum: is no parameter of DPClassifier; there is .*learning_rate"):
        DPClassifier(epsilon=2.0, delta=1e-4, momentum=0.9)
