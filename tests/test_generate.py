"""Synthetic data: tokens, models, evolution, the command, and the claim that travels with the file."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import sordino as sd
from sordino.accounting import PLD
from sordino.app.cli.main import main
from sordino.app.data.own.bad_file import BadFile
from sordino.app.data.own.declared_columns import DeclaredColumns
from sordino.app.data.own.rows import TableRows
from sordino.app.generate import causal_model, generation, likeness
from sordino.app.generate.evolution import EvolutionPlan, RowDistance, Votes, evolve_rows
from sordino.app.generate.row_model import RowModel
from sordino.app.generate.row_tokens import CellTokens, RowTokens, choose_row_tokens
from sordino.app.generate.text_model import TextModel, text_losses, zipf_scores
from sordino.app.generate.word_table import LABEL_SHARE, LENGTH_SHARE, WordTable, release_word_table
from sordino.events import Gaussian, Repeat

DECLARED = DeclaredColumns(
    bounds={"age": (18.0, 80.0), "gain": (0.0, 100_000.0), "height": (0.5, 2.5)},
    categories={"city": ("Lima", "Quito", "*")},
    dates={"joined": ("2020-01-01", "2023-12-31")},
    missing=("height", "joined"),
)
NAMES = ("left", "age", "gain", "height", "city", "joined")


def _table(cells: list[list[str]]) -> TableRows:
    return TableRows(Path("people.csv"), NAMES, cells, list(range(2, len(cells) + 2)))


def _tokens() -> RowTokens:
    return choose_row_tokens(
        _table([["yes", "30", "0", "1.8", "Lima", "2021-05-05"]]), DECLARED, "left", ("no", "yes"), ()
    )


def test_a_row_becomes_tokens_and_a_row_of_the_same_bins_again() -> None:
    tokens = _tokens()
    cells = [
        ["yes", "30", "0", "1.8", "Lima", "2021-05-05"],
        ["no", "80", "100000", "", "Bogota", ""],
        ["no", "18", "5178", "0.5", "Quito", "2023-12-31"],
    ]
    encoded = tokens.encode(_table(cells))
    again = tokens.encode(_table(tokens.decode(encoded, np.random.default_rng(0))))
    assert torch.equal(encoded, again)
    decoded = tokens.decode(encoded, np.random.default_rng(1))
    assert [row[0] for row in decoded] == ["yes", "no", "no"]
    assert [row[1] for row in decoded] == ["30", "80", "18"], "whole numbers of a short range come back exactly"
    assert decoded[0][2] == "0", "the lowest number has a bin of its own"
    assert decoded[1][3] == decoded[1][5] == "", "a missing cell comes back as one"
    assert decoded[1][4] == "*", "another name than the declared ones is the declared rest"


def test_every_token_of_every_column_is_written_as_a_cell_that_gives_it_back() -> None:
    tokens = _tokens()
    for place, column in enumerate(tokens.columns):
        for token in range(column.count):
            for seed in range(5):
                (cell,) = column.decode([token], np.random.default_rng(seed))
                row = ["no", "30", "0", "1.8", "Lima", "2021-05-05"]
                row[place] = cell
                assert int(tokens.encode(_table([row]))[0, place]) == token, (column.name, token, cell)


def test_numbers_beyond_the_declared_range_are_cut_to_it() -> None:
    tokens = _tokens()
    rows = [["no", "3", "-7", "9", "Lima", "2019-01-01"], ["no", "300", "1e9", "-1", "Lima", "2030-01-01"]]
    low, high = tokens.encode(_table(rows)).tolist()
    assert low[1:3] == [0, 0]
    assert high[1] == tokens.columns[1].count - 1
    assert high[2] == tokens.columns[2].count - 1
    assert low[5] == 0


def test_cells_that_are_none_of_the_declared_values_are_refused_by_line_and_never_quoted() -> None:
    tokens = _tokens()
    rows = [["maybe", "30", "0", "1", "Lima", "2021-05-05"], ["no", "secret", "0", "1", "Lima", "2021-05-05"]]
    with pytest.raises(BadFile, match="line 2") as error:
        tokens.encode(_table(rows))
    assert "secret" not in str(error.value)
    assert "maybe" not in str(error.value)
    assert "line 3" in str(error.value)


def test_a_column_of_which_nothing_is_declared_is_refused_with_the_cure() -> None:
    with pytest.raises(BadFile, match=r"nothing is declared of city.*sordino data inspect"):
        choose_row_tokens(
            _table([["no", "1", "0", "1", "Lima", ""]]),
            DeclaredColumns(bounds=DECLARED.bounds, dates=DECLARED.dates),
            "left",
            ("no", "yes"),
            (),
        )


def test_a_hashed_column_is_refused_with_a_cure_that_works() -> None:
    table = _table([["no", "1", "0", "1", "Lima", ""]])
    declared = DeclaredColumns(bounds=DECLARED.bounds, dates=DECLARED.dates, hashed={"city": 64})
    with pytest.raises(BadFile, match=r"city: hashed columns can be learnt from.*--drop city"):
        choose_row_tokens(table, declared, "left", ("no", "yes"), ())
    tokens = choose_row_tokens(table, declared, "left", ("no", "yes"), ("city",))
    assert "city" not in [column.name for column in tokens.columns]


def _made_up_rows(count: int, seed: int = 0) -> tuple[RowTokens, Tensor]:
    """Returns rows of three columns in which the second follows the first, and the third is a coin."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(0, 2, (count,), generator=generator)
    second = torch.where(
        torch.rand(count, generator=generator) < 0.9, first * 3, torch.randint(0, 5, (count,), generator=generator)
    )
    third = torch.randint(0, 2, (count,), generator=generator)
    columns = [CellTokens("a", ("x", "y")), CellTokens("b", ("p", "q", "r", "s", "t")), CellTokens("c", ("0", "1"))]
    return RowTokens(columns), torch.stack([first, second, third], dim=1)


def test_the_row_model_gives_probabilities_that_sum_to_one_over_all_rows() -> None:
    torch.manual_seed(0)
    model = RowModel([2, 5, 2])
    torch.nn.init.normal_(next(model.heads[1].parameters()))
    every = torch.cartesian_prod(torch.arange(2), torch.arange(5), torch.arange(2))
    assert float(model(every).neg().exp().sum().detach()) == pytest.approx(1.0, abs=1e-5)


def test_a_cell_is_not_given_by_those_after_it() -> None:
    torch.manual_seed(0)
    model = RowModel([2, 5, 2])
    one, other = torch.tensor([[1, 3, 0]]), torch.tensor([[1, 4, 1]])
    assert torch.equal(model.context(one)[:, :2], model.context(other)[:, :2])
    assert not torch.equal(model.context(one)[:, 2], model.context(other)[:, 2])


def test_rows_of_a_privately_trained_model_have_the_shares_of_the_records_and_a_claim() -> None:
    tokens, rows = _made_up_rows(4000)
    source = generation.TableSource(tokens, rows[:3000], rows[3000:], has_target=True)
    wishes = generation.Wishes(epsilon=3.0, rows=3000, steps=120, learning_rate=0.05, beside_real=True, canaries=5)
    made = generation.generate_table(source, wishes)
    assert isinstance(made.claim, sd.Guarantee)
    assert made.claim.epsilon <= 3.0
    assert made.claim.epsilon > 2.5
    assert any("classifier trained on the training records" in name for name in made.claim.not_covered)
    assert made.likeness is not None
    assert made.likeness.synthetic is not None
    assert made.likeness.real is not None
    # The third column is a coin and says nothing; the second tells the first in nine of ten rows and more.
    assert made.likeness.synthetic.accuracy > made.likeness.real.accuracy - 0.03 > 0.85
    # Shares of an untrained model's rows are even, and more than twice as far from those of the records.
    even = RowModel(tokens.counts).draw(3000, torch.Generator().manual_seed(0))
    untrained = likeness.compare_columns(tokens.names, tokens.counts, even, rows[3000:])
    assert max(made.likeness.columns.values()) < max(untrained.values()) / 2
    assert made.likeness.exposure is not None
    assert 0 < made.likeness.exposure < 6


def test_without_training_a_classifier_learns_nothing_from_the_rows() -> None:
    tokens, rows = _made_up_rows(2000)
    made = RowModel(tokens.counts).draw(2000, torch.Generator().manual_seed(0))
    score = likeness.score_classifier(
        likeness.row_features(made, tokens.counts),
        made[:, 0].numpy(),
        likeness.row_features(rows, tokens.counts),
        rows[:, 0].numpy(),
    )
    assert score is not None
    assert score.accuracy < 0.75


def test_votes_count_the_records_nearest_to_each_row_and_move_by_one_with_one_record() -> None:
    tokens, rows = _made_up_rows(50)
    distance = RowDistance(tokens)
    population = torch.tensor([[0, 0, 0], [1, 3, 1], [0, 4, 1]])
    votes = Votes(distance.features(population), sd.Gaussian(1.0))
    counted = votes.vote(distance.features(rows))
    slow = torch.zeros(3)
    for row in distance.features(rows):
        slow[int(((distance.features(population) - row) ** 2).sum(1).argmin())] += 1
    assert torch.equal(counted.sum(0), slow)
    assert torch.equal(counted.sum(1), torch.ones(50)), "one vote for each record"


def test_evolution_spends_what_was_asked_for_and_finds_the_shares() -> None:
    tokens, rows = _made_up_rows(3000)
    ledger = sd.Ledger()
    plan = EvolutionPlan(2.0, population=60, rounds=6)
    made = evolve_rows(rows, tokens, plan, 2000, ledger, torch.Generator().manual_seed(0))
    claim = ledger.claim(delta=1e-5)
    assert isinstance(claim, sd.Guarantee)
    assert 1.9 < claim.epsilon <= 2.0
    assert isinstance(claim.event, Repeat) or PLD().epsilon(claim.event, 1e-5) <= 2.0
    follows = (made[:, 1] == made[:, 0] * 3).float().mean()
    assert float(follows) > 0.8, "pairs that nine of ten records have"
    even = torch.randint(0, 5, (2000,))
    assert float((even == made[:, 0] * 3).float().mean()) < 0.4, "chance"


def test_the_noise_of_all_rounds_together_meets_the_target() -> None:
    plan = EvolutionPlan(1.0, rounds=4, population=10)
    tokens, rows = _made_up_rows(30)
    ledger = sd.Ledger()
    evolve_rows(rows, tokens, plan, 5, ledger, torch.Generator().manual_seed(0))
    event = ledger.event()
    multiplier = (event.event if isinstance(event, Repeat) else event).multiplier  # type: ignore[attr-defined]
    assert PLD().epsilon(Repeat(Gaussian(multiplier), 4), 1e-5) <= 1.0 + 1e-6


def test_the_text_model_counts_every_token_once_and_nothing_after_the_end() -> None:
    torch.manual_seed(0)
    vectors = torch.cat([torch.randn(6, 8), torch.zeros(1, 8)])
    model = TextModel(vectors, 2)
    tokens = torch.tensor([[1, 2, 6, 6, 6], [1, 2, 6, 3, 3]])
    labels = torch.tensor([0, 0])
    one, other = text_losses(model, tokens, labels).detach()
    assert float(one) == pytest.approx(float(other)), "what stands after the end does not count"
    # An untrained model knows the public order of the vocabulary alone: six letters, and an end after forty tokens.
    letter, end = 1 / 102, 6 / 102 / 40
    expected = -(2 * math.log(letter / (6 * letter + end)) + math.log(end / (6 * letter + end))) / 5 + 0.2 * math.log(2)
    assert float(one) == pytest.approx(expected, rel=1e-5)


def test_words_are_at_first_as_likely_as_zipfs_law_says() -> None:
    scores = zipf_scores(2000)
    first_word = 997
    ratio = float((scores[first_word] - scores[first_word + 9]).exp())
    assert ratio == pytest.approx(12 / 3), "the tenth word is a quarter as likely as the first, by 1 / (rank + 2)"
    assert float(scores.softmax(0)[-1]) == pytest.approx(1 / 41, rel=1e-4)


def test_a_text_is_drawn_from_the_two_tokens_before_each_as_the_model_scores_it() -> None:
    torch.manual_seed(0)
    model = TextModel(torch.cat([torch.randn(4, 8), torch.zeros(1, 8)]), 2)
    torch.nn.init.normal_(next(model.up[0].parameters()))
    tokens, labels = torch.tensor([[1, 3, 2, 0]]), torch.tensor([1])
    whole = model(tokens, labels)
    for place in range(4):
        assert torch.allclose(
            model(tokens[:, max(0, place - 2) : place + 1], labels)[:, -1], whole[:, place], atol=1e-5
        )


def test_the_table_of_words_counts_each_text_as_a_vector_of_length_one() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 31, (40, 12), generator=generator).sort(1).values  # 30 ends a text
    labels = torch.randint(0, 3, (40,), generator=generator)
    table = WordTable(3, 30, 12, sd.Gaussian(1.0))
    vectors = table.describe(torch.cat([labels[:, None], tokens], dim=1).double())
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(40, dtype=torch.float64))
    # The vector of one text, by hand: its words in its label's row, its label, and the class of its length.
    row, label = tokens[0].tolist(), int(labels[0])
    words = {word for word in row if word != 30}
    share = (1 - LABEL_SHARE**2 - LENGTH_SHARE**2) ** 0.5 / len(words) ** 0.5
    expected = torch.zeros(3 * 30 + 3 + 8, dtype=torch.float64)
    for word in words:
        expected[30 * label + word] = share
    expected[90 + label] = LABEL_SHARE
    expected[93 + sum(word != 30 for word in row) * 7 // 12] = LENGTH_SHARE
    torch.testing.assert_close(vectors[0], expected)


def test_texts_drawn_from_the_table_have_their_labels_words_and_lengths() -> None:
    # Label 0 has the first ten words and label 1 the others; three quarters of the texts have label 0, and all have six
    # of twelve tokens.
    generator = torch.Generator().manual_seed(0)
    labels = (torch.arange(4000) % 4 == 0).long()
    words = torch.randint(0, 10, (4000, 12), generator=generator) + 10 * labels[:, None]
    words[:, 6:] = 20
    ledger = sd.Ledger()
    shares = release_word_table(words, labels, 20, 2, ledger, epsilon=3.0, delta=1e-5, seed=0)
    drawn, tokens = shares.draw(3000, generator)
    claim = ledger.claim(delta=1e-5)
    assert 2.9 < claim.epsilon <= 3.0
    # The rarer label has a quarter of the texts, and √1 / (√1 + √3) of those that are written.
    assert abs(float(drawn.float().mean()) - 1 / (1 + 3**0.5)) < 0.04
    lengths = (tokens != 20).sum(1)
    assert abs(float(lengths.float().mean()) - 6) < 1
    # Three fifths of the words are of the label's own row, and of the shared ones those of its own share.
    of_rare = tokens[drawn == 1]
    own = float(((of_rare >= 10) & (of_rare < 20)).sum() / (of_rare < 20).sum())
    assert abs(own - (0.6 + 0.4 * 0.25)) < 0.06


def test_a_row_is_written_as_text_and_read_back() -> None:
    names, cells = ["a b", "c"], ["x, y", "1.5"]
    assert causal_model.read_row(names, causal_model.write_row(names, cells)) == cells
    assert causal_model.read_row(names, "something else") is None


def _write_people(path: Path, count: int) -> None:
    generator = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "left", "age", "city"])
        for number in range(count):
            left = generator.random() < 0.5
            age = int(generator.integers(18, 40) if left else generator.integers(35, 80))
            writer.writerow([number, "yes" if left else "no", age, "Lima" if left else "Quito"])


def test_the_command_writes_records_metadata_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write_people(tmp_path / "people.csv", 1500)
    flags = [
        "--target",
        "left",
        "--classes",
        "no|yes",
        "--bounds",
        "age=18:80",
        "--categories",
        "city=Lima|Quito",
        "--drop",
        "id",
    ]
    command = [
        "generate",
        "--data",
        str(tmp_path / "people.csv"),
        *flags,
        "--epsilon",
        "4",
        "--steps",
        "80",
        "--lr",
        "0.05",
    ]
    out = tmp_path / "made"
    assert main([*command, "--rows", "500", "--parquet", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "-differential privacy" in printed
    assert "synthetic.csv" in printed
    rows = list(csv.DictReader((out / "synthetic.csv").read_text().splitlines()))
    assert len(rows) == 500
    assert set(rows[0]) == {"left", "age", "city"}
    assert all(18 <= int(row["age"]) <= 80 and row["city"] in ("Lima", "Quito") for row in rows)
    agree = np.mean([(row["city"] == "Lima") == (row["left"] == "yes") for row in rows])
    assert agree > 0.8
    # The claim travels in the metadata of both files, and is the one in the report.
    metadata = json.loads((out / "synthetic.csv-metadata.json").read_text())
    report = json.loads((out / "report.json").read_text())
    assert metadata["url"] == "synthetic.csv"
    assert metadata["sordino:claim"] == report["claim"]
    assert 3.5 < report["claim"]["epsilon"] <= 4.0
    parquet = pytest.importorskip("pyarrow.parquet")
    kept = parquet.read_schema(out / "synthetic.parquet").metadata[b"sordino_claim"]
    assert json.loads(kept) == report["claim"]
    # A second run does not overwrite the first.
    assert main([*command, "--out", str(out)]) == 2
    assert "not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["adult"], "--epsilon"),
        (["--epsilon", "3"], "name a known data set"),
        (["nonesuch", "--epsilon", "3"], "there is adult"),
        (["adult", "--epsilon", "3", "--method", "magic"], "there is model, words, evolution"),
        (["adult", "--epsilon", "3", "--lora", "8"], "give --model"),
        (["adult", "--epsilon", "3", "--method", "words"], "a table takes model or evolution"),
        (["r8", "--epsilon", "3", "--steps", "9"], "--steps: texts come from one table of words"),
        (["adult", "--epsilon", "-1"], "epsilon"),
    ],
)
def test_wrong_arguments_get_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_pretrained_language_model_learns_rows_and_writes_readable_ones(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    # A tiny GPT-2 with a tokenizer of whole words, saved as a folder such as a user has.
    words = ["<end>", "left", "is", "no", "yes", ",", "city", "Lima", "Quito"]
    plain = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<end>")
    )
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.WhitespaceSplit(),
            tokenizers.pre_tokenizers.Split(",", "isolated"),
            tokenizers.pre_tokenizers.Split("<end>", "isolated"),
        ]
    )
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token="<end>", bos_token="<end>", pad_token="<end>"
    )
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(words),
        n_positions=16,
        n_embd=32,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    folder = tmp_path / "tiny"
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    wrapped.save_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    first = torch.randint(0, 2, (600,), generator=generator)
    tokens = RowTokens([CellTokens("left", ("no", "yes")), CellTokens("city", ("Lima", "Quito"))])
    source = generation.TableSource(
        tokens, torch.stack([first, first], 1), torch.stack([first, first], 1)[:100], has_target=True
    )
    wishes = generation.Wishes(
        epsilon=50.0, rows=40, model=str(folder), length=12, steps=200, rate=0.25, learning_rate=0.01, seed=0
    )
    made = generation.generate_table(source, wishes)
    assert isinstance(made.claim, sd.Guarantee)
    assert len(made.rows) >= 20
    assert np.mean([(row[0] == "yes") == (row[1] == "Quito") for row in made.rows]) > 0.8
