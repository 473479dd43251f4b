"""Datasets whose records are dicts, and columns by name, are taken as they are by `fit` and `draws`."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sordino as sd

N = 120


class TableOfDicts:
    """Reads as `datasets.Dataset` does: records are dicts of plain values, several are read at once."""

    def __init__(self, columns):
        self._columns = columns

    def __len__(self):
        return len(next(iter(self._columns.values())))

    def __getitem__(self, at):
        if isinstance(at, str):
            return self._columns[at]
        return {name: column[at] for name, column in self._columns.items()}

    def __getitems__(self, rows):
        return [self[at] for at in rows]


class Classifier(nn.Module):
    """Takes tokens by name and returns an object with logits, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask):
        shares = attention_mask / attention_mask.sum(1, keepdim=True)
        logits = self.head((self.words(input_ids) * shares.unsqueeze(2)).sum(1))
        return {"logits": logits}


def _tokens():
    torch.manual_seed(0)
    ids = torch.randint(2, 20, (N, 5))
    mask = torch.ones_like(ids)
    mask[::2, 3:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": (ids[:, 0] > 10).long()}


def _as_lists(columns):
    return {name: column.tolist() for name, column in columns.items()}


KINDS = {
    "a dataset of dicts": lambda: TableOfDicts(_as_lists(_tokens())),
    "columns of tensors": _tokens,
    "columns of lists": lambda: _as_lists(_tokens()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_draws_takes_them_and_the_loss_has_the_fields_by_name(kind):
    model = Classifier()

    def loss_fn(model, input_ids, attention_mask, labels):
        return F.cross_entropy(model(input_ids, attention_mask)["logits"], labels, reduction="none")

    private = sd.Private(model, loss_fn, epsilon=3.0, delta=1e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for lot in private.draws(KINDS[kind](), batch_size=12, epochs=0.5):
        private.backward(lot)
        optimizer.step()
    assert private.claim(1e-5).epsilon <= 3.0


@pytest.mark.parametrize("kind", KINDS)
def test_fit_takes_them_and_calls_the_model_by_name(tmp_path, kind):
    model = Classifier()
    history = sd.fit(model, KINDS[kind](), epsilon=3.0, steps=3, rate=0.25, out=tmp_path / "run")
    assert history.model is model, "the wrapper does not show"
    assert history.claim.epsilon <= 3.0
    assert 0 <= history.test_accuracy <= 1


def test_fit_on_dicts_is_fit_on_pairs(tmp_path):
    """The oracle: the same numbers as pairs give the same model."""
    torch.manual_seed(0)
    x = torch.randn(N, 2)
    y = (x[:, 0] > 0).long()
    columns = {"age": x[:, 0].tolist(), "height": x[:, 1].tolist(), "label": y.tolist()}
    found = []
    for number, data in enumerate((torch.utils.data.TensorDataset(x, y), TableOfDicts(columns))):
        torch.manual_seed(1)
        model = nn.Linear(2, 2)
        sd.fit(model, data, epsilon=3.0, steps=3, rate=0.25, seed=4, out=tmp_path / str(number))
        found.append(model.weight.detach().clone())
    torch.testing.assert_close(*found)


def test_a_batch_encoding_is_taken(tmp_path):
    tokenization = pytest.importorskip("transformers.tokenization_utils_base")
    columns = _tokens()
    encoded = tokenization.BatchEncoding({name: columns[name] for name in ("input_ids", "attention_mask")})
    encoded["labels"] = columns["labels"]
    history = sd.fit(Classifier(), encoded, epsilon=3.0, steps=2, rate=0.25, out=tmp_path / "run")
    assert history.claim.epsilon <= 3.0


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"x": [1.0, 2.0], "z": [1, 0]}, "none of them is known to be the target"),
        ({"x": [1.0, 2.0], "labels": [1, 0, 1]}, "differ in length"),
        ({"x": 3.0, "labels": [1, 0]}, "'x' is a float"),
        ({"x": ["a", "b"], "labels": [1, 0]}, "Tokenise or drop the column"),
        ({"x": [[1.0], [2.0]], "z": [1.0, 2.0], "labels": [1, 0]}, "do not make one input"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_a_cure(columns, said):
    with pytest.raises(sd.Refusal, match=said):
        sd.fit(nn.Linear(1, 2), columns, epsilon=3.0)


def test_two_runs_on_the_same_columns_name_each_other():
    columns = _tokens()
    claims = []
    for _ in range(2):
        model = Classifier()
        private = sd.Private(
            model,
            lambda m, input_ids, attention_mask, labels: F.cross_entropy(
                m(input_ids, attention_mask)["logits"], labels, reduction="none"
            ),
            epsilon=3.0,
            delta=1e-5,
        )
        for lot in private.draws(columns, batch_size=12, epochs=0.2):
            private.backward(lot)
        claims.append(SimpleNamespace(claim=private.claim(1e-5)))
    assert "another ledger" in str(claims[1].claim)
