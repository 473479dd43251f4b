"""accelerate, LoRA and Hugging Face's Trainer, misused in the most natural ways, print no ε.

What test_transformers.py shows is not repeated: here are adapters, copies of the training set, and the doors that the
Trainer leaves open beside the usual one.
"""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sordino as sd
from sordino.integrations import Privacy
from tests.integrations.words import Sentences, bert, padded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of their imports, about themselves
    accelerate = pytest.importorskip("accelerate")
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")

    from sordino.integrations.transformers import Trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs: about devices, workers and schedulers

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(240, 4, generator=GENERATOR)
Y = (X[:, 0] > 0).long()
DATA = TensorDataset(X[:200], Y[:200])
TEXTS, OTHER_TEXTS = Sentences(60, seed=0), Sentences(40, seed=1)
QUERY = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
PRIVACY = Privacy(query=QUERY, delta=1e-4)


def losses(model, x, y):
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def voided(claim, words):
    assert isinstance(claim, sd.NoGuarantee), claim
    assert words in claim.reason, claim.reason


# accelerate: a loop of one's own around their prepared model and optimizer


def accelerated(misuse=None, loss=losses):
    accelerator = accelerate.Accelerator(cpu=True)
    model = nn.Linear(4, 2)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    private = sd.Private(model, loss, QUERY)
    for lot in private.draws(DATA, sd.Poisson(0.25), steps=3, expected_batch=50):
        private.backward(lot)
        if misuse is not None:
            misuse(accelerator, model)
        optimizer.step()
    return private.claim(delta=1e-4)


def test_accelerate_ends_in_a_claim_and_their_clip_of_the_released_gradient_is_free():
    assert isinstance(accelerated(), sd.Guarantee)
    clips = accelerated(lambda accelerator, model: accelerator.clip_grad_norm_(model.parameters(), 0.1))
    assert isinstance(clips, sd.Guarantee)


def accumulates_by_hand(accelerator, model):
    with accelerator.accumulate(model):
        accelerator.backward(losses(model, X[:8], Y[:8]).mean())


def clips_by_hand(accelerator, model):
    for p in model.parameters():
        p.grad = nn.functional.normalize(p.grad, dim=0)


def second_optimizer(accelerator, model):
    head = nn.Linear(2, 1)
    optimizer = accelerator.prepare(torch.optim.SGD(head.parameters(), lr=0.1))
    head(model(X[:8]).detach()).mean().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("misuse", "words"),
    [
        (accumulates_by_hand, "loss.backward() reached"),
        (clips_by_hand, "changed by hand"),
        (second_optimizer, "made a step inside the loop"),
    ],
)
def test_a_loop_with_accelerate_misused(misuse, words):
    voided(accelerated(misuse), words)


def test_the_mean_of_a_loop_with_accelerate_is_refused():
    with pytest.raises(sd.Refusal, match="one loss per sample"):
        accelerated(loss=lambda *batch: losses(*batch).mean())


# PEFT: adapters in their Trainer, and the Trainer's other doors


def lora():
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    return peft.get_peft_model(bert(), config)


def trainer(folder, kind=Trainer, model=None, data=TEXTS, **more):
    usual = {"per_device_train_batch_size": 20, "max_steps": 2, "save_strategy": "no", "report_to": []}
    options = transformers.TrainingArguments(
        str(folder), **usual | more.pop("options", {}), disable_tqdm=True, use_cpu=True
    )
    made = lora() if model is None else model
    return kind(made, options, data_collator=padded, train_dataset=data, privacy=PRIVACY, **more)


def some(n=8):
    return padded([TEXTS[i] for i in range(n)])


class AccumulatesByHand(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, model=None, **_):
        model(**some()).loss.backward()


class ClipsFirst(transformers.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        for p in (p for p in model.parameters() if p.grad is not None):
            p.grad = nn.functional.normalize(p.grad, dim=0)


class SecondOptimizer(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **_):
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        model(**some()).loss.backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (AccumulatesByHand, "loss.backward() reached"),
        (ClipsFirst, "changed by hand"),
        (SecondOptimizer, "loss.backward() reached"),
    ],
)
def test_adapters_misused(tmp_path, callback, words):
    run = trainer(tmp_path, callbacks=[callback()])
    run.train()
    voided(run.claim(), words)


def test_the_mean_loss_of_adapters_is_refused(tmp_path):
    with pytest.raises(sd.Refusal, match="one loss per sample"):
        trainer(tmp_path, loss_fn=lambda model, batch: model(**batch).loss).train()


class OwnLoss(Trainer):
    def compute_loss(self, model, inputs, **_):
        return model(**inputs).loss


class OwnStep(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        return model(**inputs).loss


def test_a_trainer_of_their_own_is_refused_where_it_would_not_be_asked(tmp_path):
    with pytest.raises(sd.Refusal, match="compute_loss is overridden"):
        trainer(tmp_path, OwnLoss)
    with pytest.raises(TypeError, match="a lot is the handle of a private draw"):
        trainer(tmp_path, OwnStep).train()
    with pytest.raises(sd.Refusal, match="sordino tune"):
        trainer(tmp_path).hyperparameter_search(n_trials=2)
    with pytest.raises(sd.Refusal, match="drawn by a sampler"):
        trainer(tmp_path, options={"train_sampling_strategy": "group_by_length"})


def copied(data):
    return [{key: copy.deepcopy(value) for key, value in data[i].items()} for i in range(len(data))]


@pytest.mark.parametrize(
    "evaluates",
    [
        lambda run: run.evaluate(TEXTS.records[:30]),
        lambda run: run.evaluate(copied(TEXTS)),
        lambda run: run.evaluate("training"),
        lambda run: run.predict(copied(TEXTS)),
        lambda run: run.evaluation_loop(DataLoader(TEXTS, 20, collate_fn=padded), "a look"),
    ],
    ids=["the same objects", "copies", "by name", "predictions", "their loop itself"],
)
def test_the_training_set_is_known_again_under_every_name(tmp_path, evaluates):
    run = trainer(tmp_path, eval_dataset={"training": TEXTS, "test": OTHER_TEXTS})
    run.train()
    run.evaluate(OTHER_TEXTS)
    assert isinstance(run.claim(), sd.Guarantee)
    evaluates(run)
    voided(run.claim(), "trained on were evaluated")
