"""Tables that something was fitted on are known by what they hold, whoever fitted it and wherever; other tables are not."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import sordino as sd
from sordino.integrations import Privacy
from sordino.integrations.same_records import TrainedTable, shares_records
from sordino.runtime_checks.fitted_tables import find_sign_of_fitting

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of their imports, about themselves
    pytest.importorskip("skorch")
    pytest.importorskip("sklearn")
    from sklearn.decomposition import PCA
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import (
        FunctionTransformer,
        MaxAbsScaler,
        MinMaxScaler,
        PowerTransformer,
        QuantileTransformer,
        RobustScaler,
        StandardScaler,
    )

    from sordino.integrations.sklearn import DPClassifier
    from sordino.integrations.skorch import NeuralNetClassifier

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


def table(seed, n=300, d=5):
    """Correlated columns of unlike sizes, and classes of which one is rare."""
    generator = np.random.default_rng(seed)
    x = generator.gamma(2.0, size=(n, d)) @ generator.normal(size=(d, d)) * generator.uniform(0.5, 20, size=d)
    return x, (x[:, 0] > np.quantile(x[:, 0], 0.8)).astype(int)


def smote(x, y, seed=0):
    """Rows between a record of the rare class and one of its five nearest, as imblearn makes them."""
    generator = np.random.default_rng(seed)
    rare = x[y == 1]
    made = []
    for _ in range(len(x) - 2 * len(rare)):
        one = rare[generator.integers(len(rare))]
        near = rare[np.argsort(np.linalg.norm(rare - one, axis=1))[1 + generator.integers(5)]]
        made.append(one + generator.uniform() * (near - one))
    return np.concatenate([x, made]), np.concatenate([y, np.ones(len(made), dtype=int)])


def with_gaps(x):
    x = x.copy()
    x[np.random.default_rng(1).random(x.shape) < 0.05] = np.nan
    return x


FITTED = {
    "StandardScaler": lambda x, y: StandardScaler().fit_transform(x),
    "StandardScaler in single precision": lambda x, y: StandardScaler().fit_transform(x.astype("float32")),
    "StandardScaler without deviation": lambda x, y: StandardScaler(with_std=False).fit_transform(x),
    "StandardScaler without mean": lambda x, y: StandardScaler(with_mean=False).fit_transform(x),
    "by hand": lambda x, y: (x - x.mean(0)) / x.std(0, ddof=1),
    "by torch": lambda x, y: ((t := torch.from_numpy(x).float()) - t.mean(0)).div(t.std(0)).numpy(),
    "MinMaxScaler": lambda x, y: MinMaxScaler().fit_transform(x),
    "MinMaxScaler to minus one": lambda x, y: MinMaxScaler((-1, 1)).fit_transform(x),
    "MaxAbsScaler": lambda x, y: MaxAbsScaler().fit_transform(x),
    "RobustScaler": lambda x, y: RobustScaler().fit_transform(x),
    "QuantileTransformer": lambda x, y: QuantileTransformer(n_quantiles=300).fit_transform(x),
    "PowerTransformer": lambda x, y: PowerTransformer().fit_transform(x),
    "PCA": lambda x, y: PCA(3).fit_transform(x),
    "PCA whitened": lambda x, y: PCA(3, whiten=True).fit_transform(x),
    "SimpleImputer": lambda x, y: SimpleImputer().fit_transform(with_gaps(x)),
    "a pipeline without its end": lambda x, y: make_pipeline(SimpleImputer(), StandardScaler(), None)[
        :-1
    ].fit_transform(x),
    "a scaler beside other columns": lambda x, y: np.column_stack(
        [StandardScaler().fit_transform(x), y, x[:, 0].round()]
    ),
    "SMOTE": lambda x, y: smote(x, y)[0],
}


@pytest.mark.parametrize("name", FITTED)
def test_what_was_fitted_on_a_table_is_seen_in_it(name):
    for seed in range(20):
        assert find_sign_of_fitting(FITTED[name](*table(seed))), f"{name}, seed {seed}"


HONEST = {
    "as it is": lambda x, y: x,
    "in single precision": lambda x, y: x.astype("float32"),
    "by public constants": lambda x, y: (x - 3.0) / 11.0,
    "cut to public bounds": lambda x, y: (np.clip(x, -10, 10) + 10) / 20,
    "fitted on public records": lambda x, y: StandardScaler().fit(table(10_000)[0]).transform(x),
    "rows of length 1": lambda x, y: x / np.linalg.norm(x, axis=1, keepdims=True),
    "two decimals": lambda x, y: x.round(2),
    "whole numbers": lambda x, y: x.round(),
    "balanced signs": lambda x, y: np.where(np.arange(len(x))[:, None] % 2, 1.0, -1.0) * np.ones(4),
    "pixels": lambda x, y: np.clip(np.rint(20 * x + 100), 0, 255) / 255,
    "zeros where nothing was measured": lambda x, y: np.nan_to_num(with_gaps(x)),
    "repeated codes": lambda x, y: np.column_stack([x[:, :2], np.eye(4)[np.arange(len(x)) % 4]]),
    "the hour as a circle": lambda x, y: np.column_stack(
        [f(2 * np.pi * (np.arange(len(x)) * 7 % 24) / 24) for f in (np.sin, np.cos)]
    ),
    "one column": lambda x, y: x[:, :1],
    "two columns": lambda x, y: x[:, :2],
}


@pytest.mark.parametrize("name", HONEST)
def test_other_tables_show_no_sign_of_it(name):
    for seed in range(40):
        assert find_sign_of_fitting(HONEST[name](*table(seed))) is None, f"{name}, seed {seed}"


def classifier(**more):
    usual = {"epsilon": 4.0, "delta": 1e-4, "low": -9.0, "high": 9.0, "classes": [0, 1], "epochs": 1, "lot": 50}
    return DPClassifier(**usual | more)


def net(**more):
    query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
    usual = {"max_epochs": 1, "batch_size": 50, "classes": [0, 1], "verbose": 0}
    return NeuralNetClassifier(nn.Linear(5, 2), privacy=Privacy(query=query, delta=1e-4), **usual | more)


@pytest.mark.parametrize("made", [classifier, net])
def test_a_fitted_table_voids_the_claim(made):
    x, y = table(100)
    ready = (lambda a: a.astype("float32")) if made is net else (lambda a: a)
    for fitted, kinds in ((StandardScaler().fit_transform(x), y), smote(x, y)):
        claim = made().fit(ready(fitted), kinds).claim_
        assert isinstance(claim, sd.NoGuarantee), claim
    centred = FunctionTransformer(lambda t: (t - t.mean(0)) / t.std(0))
    claim = make_pipeline(centred, made()).fit(ready(x), y)[-1].claim_
    assert isinstance(claim, sd.NoGuarantee), claim
    assert isinstance(made().fit(ready(x), y).claim_, sd.Guarantee)


def test_oversampled_rows_void_the_claim():
    x, y = table(104)
    rare = np.flatnonzero(y == 1)
    more = np.concatenate([np.arange(len(x)), np.tile(rare, 3)])
    assert classifier().fit(x, y).claim_.epsilon <= 4.0
    often = classifier().fit(x[more], y[more]).claim_
    assert isinstance(often, sd.NoGuarantee)
    assert "several times" in often.reason


@pytest.mark.parametrize("made", [classifier, net])
def test_fits_on_copies_of_one_table_name_each_other(made):
    x, y = table(102 if made is net else 103)
    x = x.astype("float32")
    first = made().fit(x.copy(), y)
    assert not any("ledger" in name for name in first.claim_.not_covered), first.claim_.not_covered
    second = made().fit(x.copy()[::-1], y[::-1])
    for one in (first, second):
        assert any("ledger" in name for name in one.claim_.not_covered), one.claim_.not_covered
    again = first.fit(x.tolist() if made is classifier else x.copy(), y)
    assert any("ledger" in name for name in again.claim_.not_covered)


def test_held_out_rows_are_known_again_when_they_were_rounded_or_mixed():
    for seed in range(20):
        x, _ = table(200 + seed, n=600)
        train, other = x[:300], x[300:]
        trained = TrainedTable.remember(train)
        size = train.std(0)
        assert not trained.shares_rows_with(other)
        assert not trained.shares_rows_with(other.round(1))
        assert trained.shares_rows_with((train / size).round(2)[:100] * size)
        assert trained.shares_rows_with(train.astype("float16")[:100])
        assert trained.shares_rows_with(np.concatenate([train[:100], other[:200]]))  # a third of them


def test_imblearn():
    imblearn = pytest.importorskip("imblearn.over_sampling")
    for seed in range(5):
        x, y = table(300 + seed)
        for sampler in (imblearn.SMOTE, imblearn.BorderlineSMOTE, imblearn.RandomOverSampler):
            claim = classifier().fit(*sampler(random_state=0).fit_resample(x, y)).claim_
            assert isinstance(claim, sd.NoGuarantee), sampler


class Texts(list):
    """Tokenised texts, as a dataset of dicts."""


def padded(texts, pad, *, left=False, mask=True):
    longest = max(map(len, texts)) + 3
    made = Texts()
    for text in texts:
        gap = [pad] * (longest - len(text))
        record = {"input_ids": gap + text if left else text + gap}
        if mask:
            ones = [1] * len(text)
            record["attention_mask"] = [0] * len(gap) + ones if left else ones + [0] * len(gap)
        made.append(record)
    return made


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("pad", [0, 1, 50256])
def test_texts_are_known_again_when_they_are_padded_otherwise(pad, mask, left):
    generator = np.random.default_rng(0)
    texts = [generator.integers(5, 1000, size=generator.integers(4, 20)).tolist() for _ in range(200)]
    train = Texts({"input_ids": text} for text in texts[:100])
    assert shares_records(padded(texts[:100], pad, left=left, mask=mask), train)
    assert shares_records(padded(texts[70:160], pad, left=left, mask=mask), train)  # a third of them
    assert shares_records(train, padded(texts[:100], pad, left=left, mask=mask))
    assert not shares_records(padded(texts[100:], pad, left=left, mask=mask), train)
