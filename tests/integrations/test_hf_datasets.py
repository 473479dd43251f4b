"""A dataset of Hugging Face's own `datasets` package is taken as it is by `draws`, `sd.fit` and the Trainer."""

import warnings

import pytest
import torch
from torch.nn import functional as F

import sordino as sd
from tests.test_dict_datasets import Classifier, _as_lists, _tokens

datasets = pytest.importorskip("datasets", reason="datasets is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs: about CPUs, schedulers and pinned memory

KINDS = {
    "plain": lambda made: made,
    "torch": lambda made: made.with_format("torch"),
    "numpy": lambda made: made.with_format("numpy"),
    "shuffled": lambda made: made.shuffle(seed=0),
    "mapped": lambda made: made.map(lambda row: {"labels": 1 - row["labels"]}),
}


@pytest.fixture(autouse=True)
def _caches_nothing():
    datasets.disable_progress_bars()
    datasets.disable_caching()


@pytest.mark.parametrize("kind", KINDS)
def test_draws_gives_the_fields_to_the_loss_by_name(kind):
    data, model = KINDS[kind](datasets.Dataset.from_dict(_as_lists(_tokens()))), Classifier()

    def loss_fn(model, input_ids, attention_mask, labels):
        return F.cross_entropy(model(input_ids, attention_mask)["logits"], labels, reduction="none")

    private = sd.Private(model, loss_fn, epsilon=3.0, delta=1e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for lot in private.draws(data, batch_size=12, epochs=0.5):
        private.backward(lot)
        optimizer.step()
    assert private.claim(1e-5).epsilon <= 3.0


@pytest.mark.parametrize("kind", KINDS)
def test_fit_calls_a_model_by_the_names_of_its_inputs(kind, tmp_path):
    data = KINDS[kind](datasets.Dataset.from_dict(_as_lists(_tokens())))
    history = sd.fit(Classifier(), data, epsilon=3.0, steps=5, rate=0.1, out=tmp_path / "run", progress=False)
    assert history.claim.epsilon <= 3.0


def test_the_trainer_trains_on_one(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers", reason="transformers is in the extra [huggingface]")
        from sordino.integrations.transformers import Trainer
    from sordino.integrations import Privacy
    from tests.integrations.words import bert

    columns = _tokens()
    data = datasets.Dataset.from_dict(_as_lists(columns | {"text_of_a_person": columns["labels"]}))
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=12,
        max_steps=3,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    target = Privacy.target(epsilon=8.0, delta=1e-5, bound=1.0)
    run = Trainer(
        bert(), arguments, train_dataset=data, data_collator=transformers.default_data_collator, privacy=target
    )
    run.train()
    assert isinstance(run.claim(), sd.Guarantee), run.claim()
    assert run.claim().epsilon <= 8.0
