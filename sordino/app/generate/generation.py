"""Makes synthetic records of a table or of labelled texts: reads, trains or evolves, writes, and measures.

source    a known set (`adult`, `r8`) or the user's own file with declared columns
method    model        a small model trained here (`row_model`, `text_model`), or a pretrained one (`causal_model`)
          words        one noisy table of words by label (`word_table`), for texts
          evolution    Private Evolution, for tables
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import sordino as sd
from sordino import validate
from sordino.app.data import adult
from sordino.app.data.files import files_folder
from sordino.app.data.labelled_texts import load_texts
from sordino.app.data.own.bad_file import BadFile
from sordino.app.data.own.declared_columns import DeclaredColumns
from sordino.app.data.own.held_out import choose_held_out
from sordino.app.data.own.rows import TableRows, read_table
from sordino.app.generate import causal_model, likeness
from sordino.app.generate.evolution import EvolutionPlan, evolve_rows
from sordino.app.generate.likeness import Likeness
from sordino.app.generate.private_training import TrainingPlan, train_privately
from sordino.app.generate.row_model import RowModel, row_losses
from sordino.app.generate.row_tokens import RowTokens, choose_row_tokens
from sordino.app.generate.text_model import TextModel, build_text_tokens, text_losses
from sordino.app.generate.word_table import release_word_table
from sordino.app.runs.declared_file import OwnFile
from sordino.ledger.claims import Claim

KNOWN_TABLES = ("adult",)
KNOWN_TEXTS = ("r8", "20news")
TEXTS_WRITTEN = 20_000
"""How many texts the table of words writes unless it is said; a classifier learns more from many."""
METHODS = ("model", "words", "evolution")
_CLASSES_READ_OFF = "which labels there are, read off the data; give classes"
_SCHEMA_READ_OFF = "the schema, read off the data by `sordino data inspect`; replace it by what is known of the columns"
_TEST_RECORDS = "likeness to the test records and how many there are, told without noise"
_REAL_CLASSIFIER = "the score of a classifier trained on the training records without noise, in the report"
_EXPOSURE_CANDIDATES = 1023


@dataclass(frozen=True)
class Wishes:
    """What the user asked for besides the data; the flags of `sordino generate` are these fields."""

    epsilon: float
    """The privacy that is aimed at. It must be given."""
    delta: float = 1e-5
    """The δ of the claim."""
    rows: int | None = None
    """How many records to write; without it as many as there are test records, or 20,000 texts by words. The number of
    training records is told by neither."""
    method: str | None = None
    """How records are made: model; words (texts only, and the default there: a noisy table of words by label); or
    evolution (tables only: Private Evolution)."""
    model: str | None = None
    """A causal language model of transformers, a folder or a name; without it a small model is trained here."""
    lora: int | None = None
    """Train adapters of this rank in place of the whole model."""
    length: int = 128
    """Tokens of a record that a model given by --model reads and writes."""
    steps: int | None = None
    """Steps of training, or rounds of evolution."""
    rate: float | None = None
    """The share of the records in a lot; 1/16 for tables and 1/4 for texts if it is not said."""
    learning_rate: float | None = None
    """The optimizer's step size."""
    clip: float = 1.0
    """The bound on each record's gradient."""
    expected_batch: float | None = None
    """The public number that sums are divided by; without it the claim does not cover the number of records."""
    beside_real: bool = False
    """Also train the report's classifier on the real records. This is not private, and the claim names it."""
    canaries: int = 0
    """Plant so many random rows among the records, and report how far the model gives them away."""
    seed: int | None = None
    """For tests: the claim does not cover a run whose seed is known."""

    def __post_init__(self) -> None:
        """Refuses wishes that contradict each other."""
        if self.method is not None and self.method not in METHODS:
            raise ValueError(f"method={self.method!r}: there is {', '.join(METHODS)}")
        if self.method in ("words", "evolution") and (self.model is not None or self.canaries):
            raise ValueError(f"--method {self.method}: trains no model; leave --model and --canaries out")
        if self.lora is not None and self.model is None:
            raise ValueError("--lora: adapters of a pretrained model; give --model")
        if self.rows is not None:
            validate.count("rows", self.rows)

    def plan(self, steps: int, learning_rate: float, rate: float = 1 / 16) -> TrainingPlan:
        """Returns the plan by which the model of a generation is trained, with these defaults of its kind."""
        return TrainingPlan(
            self.epsilon,
            self.delta,
            self.rate or rate,
            self.steps or steps,
            self.clip,
            self.learning_rate or learning_rate,
            expected_batch=self.expected_batch,
        )


@dataclass(frozen=True, eq=False)
class Generated:
    """Synthetic records with their claim and what was measured of them."""

    names: list[str]
    rows: list[list[str]]
    claim: Claim
    likeness: Likeness | None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class TableSource:
    """A table in tokens: training and test rows, and what was read off the records."""

    tokens: RowTokens
    train: Tensor
    test: Tensor
    has_target: bool
    read_off: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class TextSource:
    """Labelled texts, to train and to test on."""

    label: str
    text: str
    classes: tuple[str, ...]
    train: tuple[list[str], list[int]]
    test: tuple[list[str], list[int]]
    read_off: tuple[str, ...] = ()


Show = Callable[[int, int], None]
"""Is told the number of steps done and of all."""


def read_known_table(name: str) -> TableSource:
    """Returns the source for the generation of rows from a table known by name, declared by its documentation."""
    assert name in KNOWN_TABLES, "checked by the command"
    folder = files_folder("adult")
    schema = adult.read_schema(folder / "adult.names")
    # Bounds and kinds come from the documentation of the data set; a cell that is unknown is marked by "?" in it.
    declared = DeclaredColumns(
        bounds=dict(adult.BOUNDS),
        categories={column: (*kinds, "?") for column, kinds in schema.items() if kinds},
    )
    names = (*schema, "income")
    # The two files are the published split, so figures compare with those of papers.
    train, test = (_read_adult(folder / file, names) for file in ("adult.data", "adult.test"))
    tokens = choose_row_tokens(train, declared, "income", ("<=50K", adult.RICH), ())
    return TableSource(tokens, tokens.encode(train), tokens.encode(test), has_target=True)


def _read_adult(path: Path, names: tuple[str, ...]) -> TableRows:
    """Returns the cells of a file of Adult, a known source for the generation of rows, which has no line of names."""
    cells, lines = [], []
    with path.open(encoding="utf-8", newline="") as file:
        for line, row in enumerate(csv.reader(file, skipinitialspace=True), start=1):
            if len(row) == len(names):
                cells.append([*row[:-1], row[-1].rstrip(".")])
                lines.append(line)
    return TableRows(path, names, cells, lines)


def read_own_table(own: OwnFile) -> TableSource:
    """Returns the source for the generation of rows from the user's own table; without a test file a part is held out,
    each record by a hash of itself.
    """
    rows = read_table(Path(own.path), own.delimiter)
    tokens = choose_row_tokens(rows, own.declared, own.target, own.classes, own.drop)
    encoded = tokens.encode(rows)
    # The claim must name what was read off the records, since no noise covers it.
    read_off = (_SCHEMA_READ_OFF,) if own.read_off_records else ()
    if own.test is not None:
        test = tokens.encode(read_table(Path(own.test), own.delimiter))
        return TableSource(tokens, encoded, test, own.target is not None, read_off)
    # The hash decides for every record by itself: with or without another record, the same ones are held out.
    is_held_out = torch.from_numpy(choose_held_out(("\0".join(row).encode() for row in rows.cells), own.held_out))
    return TableSource(tokens, encoded[~is_held_out], encoded[is_held_out], own.target is not None, read_off)


def read_known_texts(name: str) -> TextSource:
    """Returns the source for the generation of texts from a known set of labelled texts; the names of its classes are
    public.
    """
    texts = load_texts(name)
    train, test = (texts.train, texts.train_labels), (texts.test, texts.test_labels)
    return TextSource("label", "text", texts.classes, train, test)


def read_own_texts(own: OwnFile) -> TextSource:
    """Returns the source for the generation of texts from the user's own labelled texts; without a test file a part is
    held out, each record by a hash of itself.
    """
    # The command asks for texts only where their column is named.
    assert own.text is not None, "asked for texts"
    if own.target is None:
        raise ValueError("texts without --target: which column holds their labels?")
    rows = read_table(Path(own.path), own.delimiter)
    texts, labels = rows.column(own.text, "--text"), rows.column(own.target, "--target")
    # Classes that are not declared are read off the records, which the source says in its last field.
    classes = own.classes or tuple(sorted(set(labels)))
    numbers = {name: number for number, name in enumerate(classes)}
    # A label that is no class has no number; its line is named, so that it can be mended.
    for label, line in zip(labels, rows.lines, strict=True):
        if label not in numbers:
            raise BadFile(rows.path, f"a label of {own.target!r} is none of --classes", "mend it, or add it", line)
    pairs = list(zip(texts, [numbers[label] for label in labels], strict=True))
    is_held_out = choose_held_out((f"{text}\0{label}".encode() for text, label in pairs), own.held_out)
    train = [pair for pair, out in zip(pairs, is_held_out, strict=True) if not out]
    test = [pair for pair, out in zip(pairs, is_held_out, strict=True) if out]
    return TextSource(
        own.target,
        own.text,
        classes,
        ([text for text, _ in train], [label for _, label in train]),
        ([text for text, _ in test], [label for _, label in test]),
        (() if own.classes else (_CLASSES_READ_OFF,)) + ((_SCHEMA_READ_OFF,) if own.read_off_records else ()),
    )


def generate_table(source: TableSource, wishes: Wishes, show: Show = lambda done, all_steps: None) -> Generated:
    """Carries out the generation of synthetic rows of a table, by the method that was asked for."""
    if wishes.method == "words":
        raise ValueError("--method words: for texts; a table takes model or evolution")
    ledger = sd.Ledger()
    _name_uncovered(ledger, source.read_off, wishes)
    generator = torch.Generator().manual_seed(wishes.seed or 0)
    count = wishes.rows or max(1, len(source.test))
    # Planted rows are drawn evenly from the declared values; as many others are drawn beside them to rank them among.
    planted, others = _draw_canaries(source.tokens, wishes.canaries, generator)
    train = torch.cat([source.train, planted])
    exposure = None
    # Each branch fills in the rows, the claim on them, and the words for how they were made.
    if wishes.method == "evolution":
        plan = EvolutionPlan(wishes.epsilon, wishes.delta, rounds=wishes.steps or EvolutionPlan.rounds)
        rows = evolve_rows(
            train,
            source.tokens,
            plan,
            count,
            ledger,
            generator,
            seed=wishes.seed,
            show_round=lambda number: show(number, plan.rounds),
        )
        claim = ledger.claim(delta=wishes.delta)
        made_by = f"Private Evolution, {plan.rounds} rounds, {plan.population} rows"
    elif wishes.model is not None:
        written, claim, made_by = _write_rows(source, train, wishes, count, ledger, show)
        rows = source.tokens.encode(written)
    else:
        torch.manual_seed(0 if wishes.seed is None else wishes.seed)
        model = RowModel(source.tokens.counts)
        training = wishes.plan(steps=320, learning_rate=0.01)
        claim = train_privately(
            model,
            row_losses,
            TensorDataset(train),
            training,
            ledger,
            seed=wishes.seed,
            show_step=lambda step: show(step, training.steps),
        )
        rows = model.draw(count, generator)
        exposure = likeness.mean_exposure(model, planted, others) if len(planted) else None
        made_by = f"an autoregressive model of {sum(p.numel() for p in model.parameters()):,} parameters"
    # Likeness is measured on test rows without noise; the claim covers the synthetic rows alone.
    measured = _measure_table(source, rows, wishes, exposure)
    numbers = np.random.default_rng(wishes.seed or 0)
    cells = source.tokens.decode(rows, numbers)
    return Generated(source.tokens.names, cells, claim, measured, {"method": made_by, "records written": len(cells)})


def _name_uncovered(ledger: sd.Ledger, read_off: tuple[str, ...], wishes: Wishes) -> None:
    """Enters what the claim does not cover: what was read off the records, and what the report tells."""
    for name in (*read_off, _TEST_RECORDS, *((_REAL_CLASSIFIER,) if wishes.beside_real else ())):
        ledger.disclose(name)


def _draw_canaries(tokens: RowTokens, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns the rows that a generation plants among the records, and others of the same kind that are not planted."""

    def draw(many: int) -> Tensor:
        columns = [torch.randint(0, each, (many,), generator=generator) for each in tokens.counts]
        return torch.stack(columns, dim=1)

    return draw(count), draw(_EXPOSURE_CANDIDATES)


def _measure_table(source: TableSource, rows: Tensor, wishes: Wishes, exposure: float | None) -> Likeness | None:
    """Returns the likeness of rows made by a generation to the test rows; None without test rows."""
    if not len(source.test):
        return None
    counts, names = source.tokens.counts, source.tokens.names
    # The target, where there is one, is the first column, as `choose_row_tokens` orders them.
    test_labels = source.test[:, 0].numpy()
    synthetic = real = None
    # A classifier needs classes; a target of numbers has none.
    if source.has_target and source.tokens.columns[0].categories:
        test_features = likeness.row_features(source.test, counts)

        def score(records: Tensor) -> likeness.ClassifierScore | None:
            features = likeness.row_features(records, counts)
            return likeness.score_classifier(features, records[:, 0].numpy(), test_features, test_labels)

        synthetic = score(rows)
        real = score(source.train) if wishes.beside_real else None
    return Likeness(
        likeness.compare_columns(names, counts, rows, source.test),
        likeness.compare_pairs(counts, rows, source.test),
        likeness.majority_share(test_labels),
        synthetic,
        real,
        exposure,
    )


def _write_rows(
    source: TableSource, train: Tensor, wishes: Wishes, count: int, ledger: sd.Ledger, show: Show
) -> tuple[TableRows, Claim, str]:
    """Carries out the generation of rows by a pretrained language model: trains it on rows as text and returns those it
    writes that can be read.
    """
    assert wishes.model is not None, "asked for"
    tokens, names = source.tokens, source.tokens.names
    # The model reads cells as words, so tokens are turned back into the values that they stand for.
    cells = tokens.decode(train, np.random.default_rng(0))
    causal = causal_model.load_causal_model(wishes.model, wishes.length, wishes.lora)
    encoded = causal.encode([causal_model.write_row(names, row) for row in cells])
    claim = _train_causal(causal, encoded, wishes, ledger, show)
    # Rows that cannot be read by the declared columns are thrown away.
    kept: list[list[str]] = []
    # A model may write unreadable rows for ever, so attempts are limited; each has a seed of its own.
    for attempt in range(causal_model.MOST_ATTEMPTS):
        for text in causal.write(min(256, count - len(kept)), seed=(wishes.seed or 0) + attempt):
            row = causal_model.read_row(names, text)
            probe = None if row is None else TableRows(Path("written"), tuple(names), [row], [1])
            if row is not None and probe is not None and _can_be_read(tokens, probe):
                kept.append(row)
        if len(kept) >= count:
            break
    # So few readable rows mean that the model has not learnt their form, which further attempts do not mend.
    if len(kept) < 2:
        raise causal_model.UnreadableRows(
            f"model {wishes.model!r}: writes no rows that can be read; give more --steps or --epsilon, a larger "
            "--length, or leave --model out for the small model of rows"
        )
    # Rows are numbered like the lines of a file, so that they are encoded like one.
    table = TableRows(Path("written"), tuple(names), kept, list(range(1, len(kept) + 1)))
    return table, claim, f"{wishes.model}, {'whole' if wishes.lora is None else f'LoRA of rank {wishes.lora}'}"


def _can_be_read(tokens: RowTokens, row: TableRows) -> bool:
    """Returns whether a row that was written in a generation can be read: every cell is one of its column's values."""
    try:
        tokens.encode(row)
    except BadFile:
        return False
    return True


def _train_causal(
    causal: causal_model.CausalModel, encoded: tuple[Tensor, Tensor], wishes: Wishes, ledger: sd.Ledger, show: Show
) -> Claim:
    """Trains the pretrained language model of a generation privately on records written as text."""
    plan = wishes.plan(steps=200, learning_rate=0.001)
    causal.model.train()
    return train_privately(
        causal.model,
        causal_model.causal_losses,
        TensorDataset(*encoded),
        plan,
        ledger,
        seed=wishes.seed,
        show_step=lambda step: show(step, plan.steps),
    )


def generate_texts(source: TextSource, wishes: Wishes, show: Show = lambda done, all_steps: None) -> Generated:
    """Carries out the generation of synthetic labelled texts, by the method that was asked for."""
    if wishes.method == "evolution" or wishes.canaries:
        raise ValueError("texts: evolution and exposure are of tables; leave --method evolution and --canaries out")
    ledger = sd.Ledger()
    _name_uncovered(ledger, source.read_off, wishes)
    generator = torch.Generator().manual_seed(wishes.seed or 0)
    # Texts of words are written in no time; those of a model take theirs.
    by_words = wishes.model is None and wishes.method in (None, "words")
    count = wishes.rows or (TEXTS_WRITTEN if by_words else max(1, len(source.test[0])))
    tokens, vectors = build_text_tokens()
    if by_words:
        _refuse_training_flags(wishes)
    # A pretrained model writes texts itself; they are read as tokens, so that both ways are measured alike.
    if wishes.model is not None:
        texts, labels, claim, made_by = _write_texts(source, wishes, count, ledger, show)
        encoded = tokens.encode(texts)
    elif by_words:
        shares = release_word_table(
            tokens.encode(source.train[0]),
            torch.tensor(source.train[1]),
            tokens.end,
            len(source.classes),
            ledger,
            epsilon=wishes.epsilon,
            delta=wishes.delta,
            seed=wishes.seed,
        )
        claim = ledger.claim(delta=wishes.delta)
        labels, encoded = shares.draw(count, generator)
        texts = tokens.decode(encoded)
        made_by = "a noisy table of words by label"
    else:
        torch.manual_seed(0 if wishes.seed is None else wishes.seed)
        model = TextModel(vectors, len(source.classes))
        # Few steps on large lots: rare labels would drown in the noise of small ones.
        plan = wishes.plan(steps=50, learning_rate=0.03, rate=0.25)
        claim = train_privately(
            model,
            text_losses,
            TensorDataset(tokens.encode(source.train[0]), torch.tensor(source.train[1])),
            plan,
            ledger,
            seed=wishes.seed,
            show_step=lambda step: show(step, plan.steps),
        )
        # Labels are drawn first, since the model writes each text given its label.
        labels = model.draw_labels(count, generator)
        encoded = model.draw(labels, tokens.length, generator)
        texts = tokens.decode(encoded)
        made_by = f"a small language model of {sum(p.numel() for p in model.parameters()):,} trained parameters"
    measured = _measure_texts(source, tokens.encode, encoded, labels, len(vectors), wishes)
    rows = [[source.classes[int(label)], text] for label, text in zip(labels, texts, strict=True)]
    return Generated(
        [source.label, source.text], rows, claim, measured, {"method": made_by, "records written": len(rows)}
    )


def _refuse_training_flags(wishes: Wishes) -> None:
    """Raises ValueError for flags that only training uses, if the generation releases a table of words and trains
    nothing.
    """
    given = {
        "--steps": wishes.steps,
        "--rate": wishes.rate,
        "--learning-rate": wishes.learning_rate,
        "--expected-batch": wishes.expected_batch,
    }
    useless = [flag for flag, value in given.items() if value is not None]
    if useless:
        raise ValueError(
            f"{', '.join(useless)}: texts come from one table of words; say --method model, or leave it out"
        )


def _write_texts(
    source: TextSource, wishes: Wishes, count: int, ledger: sd.Ledger, show: Show
) -> tuple[list[str], Tensor, Claim, str]:
    """Carries out the generation of texts by a pretrained language model: trains it on texts after their labels and
    returns texts that it writes.
    """
    assert wishes.model is not None, "asked for"
    causal = causal_model.load_causal_model(wishes.model, wishes.length, wishes.lora)
    written = [f"{source.classes[label]}: {text}" for text, label in zip(*source.train, strict=True)]
    claim = _train_causal(causal, causal.encode(written), wishes, ledger, show)
    # Labels come in equal shares: their true shares are not released.
    labels = torch.arange(count) % len(source.classes)
    beginnings = [f"{source.classes[int(label)]}:" for label in labels]
    texts: list[str] = []
    for start in range(0, count, 256):
        part = beginnings[start : start + 256]
        made = causal.write(len(part), (wishes.seed or 0) + start, part)
        texts += [text.removeprefix(begun).strip() for text, begun in zip(made, part, strict=True)]
    return texts, labels, claim, f"{wishes.model}, {'whole' if wishes.lora is None else f'LoRA of rank {wishes.lora}'}"


def _measure_texts(
    source: TextSource,
    encode: Callable[[list[str]], Tensor],
    encoded: Tensor,
    labels: Tensor,
    count: int,
    wishes: Wishes,
) -> Likeness | None:
    """Returns the likeness of texts made by a generation, and what a classifier on their words learns for the test
    texts; None without test texts.
    """
    texts, test_labels = source.test[0], np.array(source.test[1])
    if not texts:
        return None
    # Test texts pass the same tokens as synthetic ones, or a classifier would see other words in them.
    test_tokens = encode(texts)
    test_features = likeness.word_features(test_tokens, count)
    synthetic = likeness.score_classifier(
        likeness.word_features(encoded, count), labels.numpy(), test_features, test_labels
    )
    real = None
    if wishes.beside_real:
        train_features = likeness.word_features(encode(source.train[0]), count)
        real = likeness.score_classifier(train_features, np.array(source.train[1]), test_features, test_labels)
    # The last token ends a text and fills up short ones; it is no word, so it is left out of their shares.
    shares = {
        source.label: labels,
        "words": encoded.flatten()[encoded.flatten() < count - 1],
    }
    tested = {
        source.label: torch.from_numpy(test_labels),
        "words": test_tokens.flatten()[test_tokens.flatten() < count - 1],
    }
    sizes = {source.label: len(source.classes), "words": count}
    columns = {
        name: likeness.compare_columns([name], [sizes[name]], shares[name][:, None], tested[name][:, None])[name]
        for name in shares
    }
    return Likeness(columns, None, likeness.majority_share(test_labels), synthetic, real)
