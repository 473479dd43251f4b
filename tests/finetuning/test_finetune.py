"""Fine-tuning of texts: the plan follows from public numbers, the frozen encoder is its beginning, one claim is of all."""

import copy
import json
import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import sordino as sd
from sordino.accounting import PLD
from sordino.app.cli import main as command_line
from sordino.finetuning import FineTuned, finetune_texts, make_plan
from sordino.finetuning.finetune_texts import TextClassifier, measure_lead, score_texts
from sordino.finetuning.frozen_texts import find_adaptable_layer, find_directions, read_texts
from sordino.finetuning.last_layer import AdaptedVectors
from sordino.finetuning.plan import ADAPTED, ENOUGH_FOR_RANK, HEAD_STEPS, count_adapter_parameters

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of their imports, about themselves
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra [huggingface]")

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

WORDS = [f"{a}{b}{c}" for a in "bdfg" for b in "aeiou" for c in "klmn"]  # 80 words of three letters
WIDTH = 16


class Tokenizer:
    """Words to numbers: 0 pads, 1 begins a text."""

    def __call__(self, texts, *, truncation, padding, max_length, return_tensors):
        rows = [[1, *(2 + WORDS.index(word) for word in text.split())][:max_length] for text in texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}

    def get_vocab(self):
        return {word: number for number, word in enumerate(WORDS, start=2)}


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.5,
    )
    made = transformers.BertModel(config, add_pooling_layer=False).eval()
    # What pretraining would have done: words of a class are alike.
    with torch.no_grad():
        made.embeddings.word_embeddings.weight[2:42] += 2 * torch.randn(WIDTH)
    return made


def sentences(n, seed):
    """Texts of four to nine words; the class is whether most begin with b or d."""
    generator = torch.Generator().manual_seed(seed)
    texts, labels = [], []
    for i in range(n):
        some = WORDS[:40] if i % 2 else WORDS[40:]
        length = int(torch.randint(4, 10, (1,), generator=generator))
        words = [some[int(k)] for k in torch.randint(40, (length,), generator=generator)]
        texts.append(" ".join(words))
        labels.append("yes" if i % 2 else "no")
    return texts, labels


# --- The plan.


def test_the_plan_meets_its_epsilon_and_is_a_function_of_public_numbers_alone():
    for epsilon in (3.0, 8.0):
        plan = make_plan(7000, classes=2, width=384, epsilon=epsilon, delta=1e-5)
        assert plan == make_plan(7000, classes=2, width=384, epsilon=epsilon, delta=1e-5)
        spent = PLD().epsilon(plan.event(), 1e-5)
        assert 0.99 * epsilon < spent <= epsilon
        assert plan.adapters is not None
        assert plan.head.steps + plan.last_head.steps == HEAD_STEPS


def test_adapters_are_trained_only_where_their_steps_promise_enough():
    def planned(records, epsilon):
        return make_plan(records, classes=8, width=384, epsilon=epsilon, delta=1e-5)

    ranks = {(n, e): planned(n, e).rank for n in (500, 5485, 50_000) for e in (1.0, 3.0, 8.0)}
    # More texts and a larger ε never lower the rank, and with few texts or a small ε there are no adapters.
    assert ranks == {
        (500, 1.0): 0,
        (500, 3.0): 0,
        (500, 8.0): 0,
        (5485, 1.0): 0,
        (5485, 3.0): 2,
        (5485, 8.0): 4,
        (50_000, 1.0): 4,
        (50_000, 3.0): 4,
        (50_000, 8.0): 4,
    }
    taken = planned(5485, 3.0)
    assert taken.adapters.trained == 8 * 385 + count_adapter_parameters(384, 2)
    # The figure by the formula: √T · 0.05 C / (σ C √d / L).
    lot = 0.6 * 5485
    figure = math.sqrt(30) * 0.05 * lot / (taken.adapters.multiplier * math.sqrt(taken.adapters.trained))
    assert figure >= ENOUGH_FOR_RANK[2]
    assert taken.adapters.step_noise(5485).signal_to_noise == pytest.approx(figure)
    alone = planned(500, 3.0)
    assert alone.head.steps == HEAD_STEPS
    assert 2.97 < PLD().epsilon(alone.event(), 1e-5) <= 3.0


def test_a_plan_says_what_share_of_a_step_will_be_noise():
    text = make_plan(7000, classes=2, width=384, epsilon=8.0, delta=1e-5).describe()
    assert text.count("of a step will be noise") == 3
    assert "no adapters" in make_plan(500, classes=2, width=384, epsilon=1.0, delta=1e-5).describe()


# --- The frozen encoder.


def test_what_is_kept_of_a_text_is_made_of_that_text_alone_and_is_the_mean_of_its_tokens(encoder):
    texts, _ = sentences(70, seed=1)
    read = read_texts(encoder, Tokenizer(), texts, length=16, with_last_layer=True)
    for row in (0, 33, 69):
        ids = Tokenizer()([texts[row]], truncation=True, padding=True, max_length=16, return_tensors="pt")
        with torch.no_grad():
            mean = encoder(**ids).last_hidden_state[0].mean(0)
        expected = mean / mean.norm() * WIDTH**0.5
        assert_close(read.vectors[row], expected, atol=0.05, rtol=0.05)  # bfloat16 where a CPU has it
        alone = read_texts(encoder, Tokenizer(), [texts[row]], length=16, with_last_layer=True)
        assert_close(read.vectors[row], alone.vectors[0], atol=0.05, rtol=0.05)


@torch.no_grad()
def test_before_training_the_vectors_are_the_frozen_encoders_and_the_first_token_is_the_layers(encoder):
    texts, _ = sentences(40, seed=2)
    read = read_texts(encoder, Tokenizer(), texts, length=16, with_last_layer=True)
    directions = find_directions(encoder, Tokenizer(), 2, 16)
    assert {name: tuple(a.shape) for name, a in directions.items() if name in ADAPTED} == {
        "query": (1, WIDTH),
        "value": (2, WIDTH),
        "narrower": (2, 32),
    }
    vectors = AdaptedVectors(find_adaptable_layer(encoder), WIDTH, directions).eval()
    inputs, tokens, mask, first = read.columns
    assert_close(vectors(*read.columns), read.vectors, atol=0.02, rtol=0.02)  # tokens are kept in half precision
    assert_close(vectors.layer(inputs.float(), mask), first)
    assert_close(first, tokens[:, 0].float(), atol=0.05, rtol=0.05)  # what the whole layer made of it


def test_finding_directions_leaves_no_hook_on_the_encoder(encoder):
    # A hook that stays is copied into the layer that is trained, and keeps the activations of every later batch.
    find_directions(encoder, Tokenizer(), 2, 16)
    hooked = [name for name, module in encoder.named_modules() if module._forward_pre_hooks or module._forward_hooks]
    assert hooked == []


# --- The whole.


def test_it_learns_ends_in_a_claim_and_leaves_the_encoder_as_it_is(encoder):
    before = copy.deepcopy(encoder.state_dict())
    said = []
    tuned = sd.finetune(encoder, Tokenizer(), *sentences(600, seed=0), epsilon=8.0, length=16, seed=1, say=said.append)
    assert isinstance(tuned.claim, sd.Guarantee), tuned.claim
    assert 7.9 < tuned.claim.epsilon <= 8.0
    assert tuned.claim.delta == 1e-5
    assert said[0] == tuned.plan.describe()
    assert "of a step will be noise" in said[0]
    assert len(said) == 2  # it does not walk at random
    assert f"{tuned.adapters_lead:+.2%} of the texts" in said[1]
    test_texts, test_labels = sentences(200, seed=9)
    assert tuned.accuracy(test_texts, test_labels) > 0.9
    assert set(tuned.predict(test_texts[:10])) <= {"yes", "no"}
    assert_close(tuned.probabilities(test_texts[:3]).sum(1), torch.ones(3))
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
    assert all(p.requires_grad for p in encoder.parameters())
    assert any("names of the classes" in one for one in tuned.claim.rests_on)


def test_labels_without_meaning_are_told_as_a_random_walk(encoder):
    texts, labels = sentences(400, seed=0)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0)).tolist()
    said = []
    sd.finetune(
        encoder, Tokenizer(), texts, [labels[i] for i in order], epsilon=0.3, length=16, seed=1, say=said.append
    )
    assert len(said) == 2
    assert "only walks at random" in said[1]


def test_adapters_change_the_vectors_and_all_three_phases_are_in_one_claim(encoder):
    texts, labels = sentences(3000, seed=0)
    plan = make_plan(3000, classes=2, width=WIDTH, epsilon=8.0, delta=1e-5)
    assert plan.rank == 4
    tuned = sd.finetune(
        encoder, Tokenizer(), texts, labels, epsilon=8.0, records=3000, classes=("no", "yes"), length=16, seed=1
    )
    assert isinstance(tuned.claim, sd.Guarantee), tuned.claim
    assert 7.9 < tuned.claim.epsilon <= 8.0
    assert not any("dataset size" in one for one in tuned.claim.not_covered)
    assert set(tuned.signal_to_noise) == {"head", "adapters", "last head"}
    assert float(tuned.model.vectors.layer.query.up.weight.detach().abs().sum()) > 0
    test_texts, test_labels = sentences(200, seed=9)
    assert tuned.accuracy(test_texts, test_labels) > 0.9
    # Scores of texts together are those of each alone.
    read = read_texts(encoder, Tokenizer(), test_texts[:5], length=16, with_last_layer=True)
    assert isinstance(tuned.model, TextClassifier)
    together = score_texts(tuned.model, read).softmax(1)
    for row in range(5):
        assert_close(tuned.probabilities([test_texts[row]])[0], together[row], atol=0.05, rtol=0.05)


# --- The choice between adapters and the head before them.


def test_the_lead_is_the_noisy_count_of_gains_and_costs_one_gaussian_release():
    generator = torch.Generator().manual_seed(0)
    gains = torch.randint(-1, 2, (4000,), generator=generator).float()
    ledger = sd.Ledger()
    lead = measure_lead(gains, torch.randn(4000, 8, generator=generator), 5.0, ledger=ledger, records=4000)
    assert abs(4000 * lead - float(gains.sum())) < 6 * 5.0  # false alarms: 2e-9
    assert 4000 * lead != float(gains.sum())
    assert ledger.claim(1e-5).event == sd.events.Gaussian(5.0)


def test_adapters_that_do_harm_are_dropped_and_the_head_goes_on_from_frozen_vectors(encoder, monkeypatch):
    texts, labels = sentences(1000, seed=0)
    plan = make_plan(1000, classes=2, width=WIDTH, epsilon=8.0, delta=1e-5)
    assert plan.adapters is not None
    # Nothing but noise in the adapters' lots, and steps a hundred times too long: they end far from where they began.
    monkeypatch.setattr(finetune_texts, "ADAPTER_LEARNING_RATES", {"mean.": 3.0, "head.": 1.0, "up.": 1.0})
    spoilt = replace(plan, adapters=replace(plan.adapters, multiplier=1e4, rate=0.05))
    tuned = sd.finetune(encoder, Tokenizer(), texts, labels, epsilon=8.0, plan=spoilt, length=16, seed=1, say=list)
    assert tuned.adapters_lead < 0
    assert tuned.model.vectors is None
    assert set(tuned.signal_to_noise) == {"head", "adapters", "last head"}
    assert tuned.accuracy(*sentences(200, seed=9)) > 0.9
    # The noise that was wasted is in the claim with everything else.
    assert isinstance(tuned.claim, sd.Guarantee)
    assert tuned.claim.epsilon <= PLD().epsilon(spoilt.event(), 1e-5) * (1 + 1e-6)


# --- Saving and loading.


def short_plan(*, adapters):
    """Returns a plan of a few lots, as saving needs no good classifier."""
    plan = make_plan(600, classes=2, width=WIDTH, epsilon=8.0, delta=1e-5, can_adapt=adapters)
    short = {name: replace(phase, steps=3) for name, phase in plan.phases.items()}
    return replace(plan, **{name.replace(" ", "_"): phase for name, phase in short.items()}, choice_multiplier=None)


@pytest.mark.parametrize("adapters", [False, True])
def test_a_classifier_is_the_same_after_loading_and_its_claim_travels_with_it(encoder, tmp_path, adapters):
    texts, labels = sentences(200, seed=0)
    plan = short_plan(adapters=adapters)
    tuned = sd.finetune(encoder, Tokenizer(), texts, labels, epsilon=8.0, plan=plan, length=16, seed=1, say=list)
    assert (tuned.model.vectors is not None) == adapters
    folder = tuned.save(tmp_path / "saved")
    loaded = FineTuned.load(folder, tokenizer=Tokenizer())
    test_texts, _ = sentences(50, seed=9)
    assert torch.equal(tuned.probabilities(test_texts), loaded.probabilities(test_texts))
    assert tuned.predict(test_texts) == loaded.predict(test_texts)
    assert loaded.claim == tuned.claim
    assert str(loaded.claim) == str(tuned.claim)
    assert loaded.plan == tuned.plan
    assert loaded.adapters_lead == tuned.adapters_lead
    # A loaded classifier can be saved again.
    assert FineTuned.load(loaded.save(tmp_path / "again"), tokenizer=Tokenizer()).claim == tuned.claim


def test_a_saved_classifier_holds_no_key_and_no_text(encoder, tmp_path):
    texts, labels = sentences(200, seed=0)
    plan = short_plan(adapters=True)
    tuned = sd.finetune(encoder, Tokenizer(), texts, labels, epsilon=8.0, plan=plan, length=16, say=list)
    folder = tuned.save(tmp_path / "saved")
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {"finetuned.json", "trained.safetensors", "encoder/config.json", "encoder/model.safetensors"}
    facts = json.loads((folder / "finetuned.json").read_text())
    assert not any("key" in name or "seed" in name for name in facts)
    content = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert not any(text.encode() in content for text in texts)


def test_a_wrong_folder_encoder_or_class_is_named(encoder, tmp_path):
    texts, labels = sentences(200, seed=0)
    plan = short_plan(adapters=False)
    tuned = sd.finetune(encoder, Tokenizer(), texts, labels, epsilon=8.0, plan=plan, length=16, say=list)
    folder = tuned.save(tmp_path / "saved")
    with pytest.raises(ValueError, match="need a new or empty folder"):
        tuned.save(folder)
    with pytest.raises(ValueError, match="give it as tokenizer="):
        FineTuned.load(folder)
    with pytest.raises(ValueError, match=r"has no finetuned\.json"):
        FineTuned.load(tmp_path)
    other = copy.deepcopy(encoder)
    with torch.no_grad():
        other.embeddings.word_embeddings.weight[5, 0] += 1
    with pytest.raises(ValueError, match="not the one that was fine-tuned"):
        FineTuned.load(folder, model=other, tokenizer=Tokenizer())
    with pytest.raises(TypeError, match="name classes by those"):
        replace(tuned, classes=(object(), object())).save(tmp_path / "objects")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"texts": "one text"}, "need a list of them"),
        ({"texts": [1, 2]}, "each a str"),
        ({"labels": ["yes"]}, "one label for each text"),
        ({"labels": ["yes", "yes"]}, "fewer than two classes"),
        ({"labels": ["yes", "no"], "classes": ("yes", "maybe")}, "none of the classes"),
        ({"labels": ["yes", None]}, "some are empty"),
        ({"labels": ["yes", ""]}, "some are empty"),
        ({"labels": [1.0, math.nan]}, "some are empty"),
        ({"labels": ["yes", 1]}, "some are texts and some are not"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"model": 3}, "model"),
        ({"tokenizer": 3}, "tokenizer"),
    ],
)
def test_wrong_arguments_are_named_and_no_text_is_quoted(encoder, change, words):
    given = {
        "model": encoder,
        "tokenizer": Tokenizer(),
        "texts": ["bak", "gun"],
        "labels": ["yes", "no"],
        "epsilon": 3.0,
    }
    with pytest.raises((TypeError, ValueError), match=words):
        sd.finetune(**given | change)


# --- The command.


@pytest.fixture
def model_folder(encoder, tmp_path):
    return write_model(encoder, tmp_path)


def write_model(encoder, tmp_path):
    """Writes a folder with the encoder and a tokenizer of transformers for the same words."""
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[CLS]", *WORDS, "[UNK]", "[SEP]", "[MASK]"]) + "\n")
    folder = tmp_path / "model"
    encoder.save_pretrained(folder)
    transformers.BertTokenizerFast(vocab=str(vocabulary), do_lower_case=True).save_pretrained(folder)
    return folder


def write_csv(path, texts, labels):
    rows = "".join(f"{number},{text},{label}\n" for number, (text, label) in enumerate(zip(texts, labels, strict=True)))
    path.write_text(f"id,review,stars\n{rows}")
    return path


def test_the_command_trains_prints_measures_beside_the_baseline_and_predicts_new_texts(model_folder, tmp_path, capsys):
    file = write_csv(tmp_path / "reviews.csv", *sentences(700, seed=0))
    out = tmp_path / "reviews"
    given = ["--text", "review", "--target", "stars", "--epsilon", "2", "--model", str(model_folder)]
    arguments = ["finetune", str(file), *given, "--length", "16", "--out", str(out)]
    assert command_line.main(arguments) == 0
    shown = capsys.readouterr()
    assert "of a step will be noise" in shown.err
    for words in ("on the test records", "always the majority", "AUC", "balanced accuracy"):
        assert words in shown.out
    assert "-differential privacy" in shown.out
    assert "not covered  accuracy and loss on the records held out for testing" in shown.out
    assert f"sordino predict {out} new.csv" in shown.out
    # What a claim leaves open is said with the option that covers it.
    assert "dataset size   is covered too with --records" in shown.out
    # New texts, by the command that the outcome names.
    texts, labels = sentences(60, seed=9)
    new = write_csv(tmp_path / "new.csv", texts, ["?"] * 60)
    assert command_line.main(["predict", str(out), str(new), "--keep", "id", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    predicted = json.loads(shown.out)
    assert predicted["id"] == [str(number) for number in range(60)]
    assert sum(one == label for one, label in zip(predicted["prediction"], labels, strict=True)) > 50
    assert predicted["prediction"] == FineTuned.load(out).predict(texts)
    # The folder is not overwritten.
    assert command_line.main(arguments) == 2
    assert "holds something already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ([], "--epsilon"),
        (["--epsilon", "2", "--text", "nothing"], "has no column 'nothing'"),
        (["--epsilon", "2", "--text", "review", "--target", "stars", "--model", "nowhere"], "is no folder"),
    ],
)
def test_the_command_names_what_is_wrong_in_one_line(tmp_path, capsys, change, words):
    file = write_csv(tmp_path / "reviews.csv", *sentences(50, seed=0))
    assert command_line.main(["finetune", str(file), "--out", str(tmp_path / "out"), *change]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert "\n" not in said
    assert not (tmp_path / "out").exists()


def test_empty_and_numerical_targets_are_refused_with_the_cure_and_ignored_labels_are_left_out(
    model_folder, tmp_path, capsys
):
    texts, labels = sentences(300, seed=0)
    given = ["--text", "review", "--target", "stars", "--epsilon", "2", "--model", str(model_folder), "--length", "16"]

    def run(name, labels, *more):
        file = write_csv(tmp_path / f"{name}.csv", texts, labels)
        code = command_line.main(["finetune", str(file), *given, "--out", str(tmp_path / name), *more])
        return code, capsys.readouterr()

    with_empty = ["" if at == 7 else label for at, label in enumerate(labels)]
    code, shown = run("empty", with_empty)
    assert code == 2
    assert "line 9: the target 'stars' is empty; mend the cell, or say --ignore-label ''" in shown.err
    assert run("ignored", with_empty, "--ignore-label", "")[0] == 0
    assert FineTuned.load(tmp_path / "ignored").classes == ("no", "yes")
    code, shown = run("numbers", [str(at) for at in range(300)])
    assert code == 2
    assert "more than 100 different values" in shown.err
