"""Fine-tuning of texts: the plan follows from public numbers, the frozen encoder is its beginning, one claim is of all."""

import copy
import math
import warnings

import pytest
import torch
from torch.testing import assert_close

import sordino as sd
from sordino.accounting import PLD
from sordino.finetuning import make_plan
from sordino.finetuning.finetune_texts import TextClassifier, score_texts
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
    assert len(said) == 1  # it does not walk at random
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"texts": "one text"}, "need a list of them"),
        ({"texts": [1, 2]}, "each a str"),
        ({"labels": ["yes"]}, "one label for each text"),
        ({"labels": ["yes", "yes"]}, "fewer than two classes"),
        ({"labels": ["yes", "no"], "classes": ("yes", "maybe")}, "none of the classes"),
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
