"""Hugging Face's Trainer trains small transformers for real; misused in the natural ways it says so and prints no ε."""

import json
import math
import re
import warnings
from dataclasses import replace

import pytest
import torch

import sordino as sd
from sordino.finetuning import make_plan
from sordino.integrations import Privacy
from tests.integrations.words import Sentences, bert, padded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of their imports, about themselves
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra [huggingface]")
    from sordino.integrations.transformers import Trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs: about CPUs, schedulers and pinned memory

TRAIN, TEST = Sentences(300, seed=0), Sentences(100, seed=1)
TARGET = Privacy.target(epsilon=8.0, delta=1e-5, bound=1.0)
FIXED = Privacy(query=sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), delta=1e-5)


def arguments(folder, **more):
    usual = {
        "per_device_train_batch_size": 25,
        "gradient_accumulation_steps": 2,
        "max_steps": 4,
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return transformers.TrainingArguments(str(folder), **usual | more)


def trainer(folder, model=None, privacy=FIXED, data=TRAIN, options=None, **more):
    made = bert() if model is None else model
    return Trainer(
        made,
        arguments(folder, **(options or {})),
        data_collator=padded,
        train_dataset=data,
        eval_dataset=TEST,
        privacy=privacy,
        **more,
    )


def test_a_classifier_ends_in_a_claim_that_meets_its_target_and_logs_nothing_private(tmp_path):
    run = trainer(tmp_path, privacy=TARGET)
    done = run.train()
    said = run.claim()
    assert isinstance(said, sd.Guarantee), said
    assert 7.5 < said.epsilon <= 8.0
    assert done.metrics["epsilon"] == said.epsilon
    assert str(said) in (tmp_path / "PRIVACY.md").read_text()
    assert not any("loss" in key for row in run.state.log_history for key in row)
    spent = [row["epsilon"] for row in run.state.log_history]
    assert spent == sorted(spent)
    assert spent[0] > 0
    assert run.private.steps == 4
    assert sd.events.to_json(run.private.event)  # 50 records a lot: 25 at once, 2 parts
    assert "Poisson(rate=0.16666666666666666" in repr(run.private.event)


@pytest.mark.slow
def test_it_learns_and_logs_a_loss_that_was_released(tmp_path):
    private = Privacy(query=sd.WithLoss(sd.NoisySum(sd.Flat(1.0), sd.Gaussian(0.5)), 3.0, sd.Gaussian(5.0)), delta=1e-5)
    run = trainer(tmp_path, privacy=private, options={"max_steps": 30, "learning_rate": 1e-2, "logging_steps": 10})
    done = run.train()
    losses = [row["loss"] for row in run.state.log_history if "loss" in row]
    assert len(losses) == 3
    assert all(math.isfinite(loss) for loss in losses)
    assert math.isfinite(done.training_loss)
    scores = run.predict(TEST)
    accuracy = float((scores.predictions.argmax(1) == scores.label_ids).mean())
    assert accuracy > 0.7  # 0.5 by chance
    assert isinstance(run.claim(), sd.Guarantee)


def per_token(n):
    data = Sentences(n, seed=2)
    for record in data.records:
        record["labels"] = [-100] + [int(token > 20) for token in record["input_ids"][1:]]
    return data


@pytest.mark.parametrize(
    "kind",
    [
        "BertForTokenClassification",
        "GPT2LMHeadModel",
        pytest.param("BertForMaskedLM", marks=pytest.mark.slow),
        pytest.param("BartForConditionalGeneration", marks=pytest.mark.slow),
    ],
)
def test_losses_per_token_are_replaced_by_losses_per_record(tmp_path, kind):
    data = per_token(60)
    if kind.startswith("Bert"):
        model = bert(kind)
    elif kind.startswith("GPT2"):
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2)
        )
    else:
        small = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
        config = transformers.BartConfig(
            vocab_size=40, d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=16, **small
        )
        model = transformers.BartForConditionalGeneration(config)
        for part in (model.model.encoder, model.model.decoder):
            part.embed_positions.requires_grad_(False)  # shared by all records: it has no row per record
    run = trainer(tmp_path, model, data=data, options={"max_steps": 2, "per_device_train_batch_size": 10})
    run.train()
    assert isinstance(run.claim(), sd.Guarantee), run.claim()


def test_lora_trains_its_adapters_alone(tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["query", "value"])
    model = peft.get_peft_model(bert(), config)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    run = trainer(tmp_path, model)
    run.train()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p.detach(), before[name])}
    assert moved
    assert all("lora" in name or "classifier" in name for name in moved)
    assert isinstance(run.claim(), sd.Guarantee), run.claim()


def test_a_checkpoint_brings_its_ledger_and_training_goes_on(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2}
    whole = trainer(tmp_path, options=saving)
    whole.train()
    state = json.loads((tmp_path / "checkpoint-2" / "sordino.json").read_text())
    assert state["steps"] == 2
    later = trainer(tmp_path, options=saving)
    later.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert later.private.steps == 4
    assert later.claim().epsilon == whole.claim().epsilon
    (tmp_path / "checkpoint-2" / "sordino.json").unlink()
    with pytest.raises(sd.Refusal, match=r"no sordino\.json"):
        trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def their_mean(model, batch):
    return model(**batch).loss


def their_mean_for_each(model, batch):
    return model(**batch).loss.expand(len(batch["labels"]))


@pytest.mark.parametrize("loss", [their_mean, their_mean_for_each])
def test_their_mean_loss_is_refused(tmp_path, loss):
    with pytest.raises(sd.Refusal, match=r"one loss per sample|coupled"):
        trainer(tmp_path, loss_fn=loss).train()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fsdp": True}, "every rank holds the model"),
        ({"label_smoothing_factor": 0.1}, "mean over the batch"),
        ({"auto_find_batch_size": True}, "drawn by rate"),
    ],
)
def test_arguments_that_have_no_private_meaning_are_refused_with_the_cure(tmp_path, options, words):
    with pytest.raises(sd.Refusal, match=words):
        trainer(tmp_path, options=options)


def test_a_loss_function_of_theirs_is_refused(tmp_path):
    with pytest.raises(sd.Refusal, match="Give loss_fn="):
        trainer(tmp_path, compute_loss_func=lambda outputs, labels, num_items_in_batch=None: outputs.logits.mean())


def batch_of(data, n=8):
    return padded([data[i] for i in range(n)])


class AccumulatesByHand(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, model=None, **_):
        model(**batch_of(TRAIN)).loss.backward()


class ClipsFirst(transformers.TrainerCallback):
    """Their clip, record by record, before ours: gradients of their own."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        for p in model.parameters():
            if p.grad is not None:
                p.grad = torch.nn.functional.normalize(p.grad, dim=0)


class SecondOptimizer(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **_):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        torch.optim.SGD(model.parameters(), lr=1e-3).step()


class EvaluatesTraining(transformers.TrainerCallback):
    def on_train_end(self, args, state, control, **_):
        self.run.evaluate(torch.utils.data.Subset(TRAIN, range(20)))


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (AccumulatesByHand, r"loss\.backward\(\) reached"),
        (ClipsFirst, "changed by hand"),
        (SecondOptimizer, "changed by hand|other than by an optimizer step"),
        (EvaluatesTraining, "trained on were evaluated"),
    ],
)
def test_natural_misuses_print_no_epsilon(tmp_path, callback, words):
    made = callback()
    run = trainer(tmp_path, callbacks=[made], options={"max_steps": 2})
    made.run = run
    done = run.train()
    said = run.claim()
    assert isinstance(said, sd.NoGuarantee)
    assert re.search(words, said.reason), said.reason
    assert "epsilon" not in done.metrics


def test_records_can_be_isolated(tmp_path):
    made = trainer(tmp_path, privacy=replace(FIXED, isolate=True), options={"max_steps": 2})
    made.train()
    said = made.claim()
    assert isinstance(said, sd.Guarantee), str(said)
    assert any("by construction" in what for what in said.rests_on)


def test_before_the_first_step_it_says_what_share_will_be_noise_and_logs_the_released_figure(tmp_path, capsys):
    run = trainer(tmp_path, privacy=Privacy.target(epsilon=1.0, delta=1e-5, bound=1.0), options={"logging_steps": 1})
    seen = []

    class ReadsWhatWasSaid(transformers.TrainerCallback):
        def on_step_begin(self, *_, **__):
            seen.append(capsys.readouterr().err)

    run.add_callback(ReadsWhatWasSaid())
    run.train()
    # 300 records in four lots of 50 at ε = 1, and some 2,000 parameters: nothing can be learnt.
    assert "of a step will be noise" in seen[0]
    assert "This run will walk at random" in seen[0]
    assert "train fewer numbers" in seen[0]
    assert "draw larger lots: 150 records, 4 steps" in seen[0]
    assert "sordino.finetune(model, tokenizer, texts, labels, epsilon=1)" in seen[0]
    # A classifier of texts is shown what `finetune` would choose.
    plan = make_plan(300, classes=2, width=16, epsilon=1.0, delta=1e-5)
    assert f"What sordino.finetune would choose by public numbers:\n{plan}\n" in seen[0]
    assert "only walks at random" in "".join(seen[1:]) + capsys.readouterr().err
    lines = [line for line in run.state.log_history if "signal_to_noise" in line]
    assert len(lines) >= 4
    assert all(0 <= line["signal_to_noise"] < 1 for line in lines)
    assert isinstance(run.claim(), sd.Guarantee)
