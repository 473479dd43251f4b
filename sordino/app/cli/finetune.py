"""`sordino finetune FILE`: fine-tunes a pretrained text encoder privately on labelled texts of the user's own.

Everything but the file, its columns and ε is chosen by public numbers (`sordino.finetuning.plan`). The folder holds the
classifier with its claim, which `sordino predict` and `sordino.finetuning.FineTuned.load` take.

Until then everything is in FOLDER.unfinished: what was asked for, and the stages of the training with their noise keys. A
run that was stopped or killed goes on from there by `sordino resume`, and the folder is removed at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro

from sordino.app.cli.help_page import HelpPage

if TYPE_CHECKING:
    from sordino.finetuning import FineTuned

OUTCOME = "outcome.json"
"""The columns of the file, and the measures on the test records."""
REQUEST = "request.json"
"""What was asked for, in the folder of a run that is not finished."""
_UNFINISHED, _STAGES, _CLASSIFIER = ".unfinished", "stages", "classifier"
_MINILM = "minilm"
_STOPPED = 130


@dataclass(frozen=True)
class Command:
    """Fine-tune a pretrained text encoder on labelled texts, with every choice made by public numbers."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            (
                "Reviews with stars, to ε = 3:",
                "sordino finetune reviews.csv --text review --target stars --epsilon 3 --out runs/reviews",
            ),
            ("Then classes and probabilities of new texts:", "sordino predict runs/reviews new.csv --out stars.csv"),
            (
                "An encoder of your own, with nothing read off the records:",
                "sordino finetune notes.jsonl --epsilon 8 --model ./bert --classes 'no|yes' --records 5000",
            ),
        ),
        groups={
            "Data of your own": ("text", "target", "test", "held_out", "delimiter", "ignore_label"),
            "What is known of it, which is then public": ("classes", "records", "equal_texts_differ"),
            "Privacy": ("epsilon", "delta"),
            "Encoder": ("model", "length"),
            "Output": ("out", "json", "seed"),
        },
        values={
            "text": "COLUMN",
            "target": "COLUMN",
            "test": "FILE",
            "classes": "A|B|…",
            "model": "FOLDER",
            "out": "FOLDER",
        },
        notes=(
            "The encoder reads every text once; a head and adapters are then trained on what it made of them. What is "
            "chosen, and what share of a step will be noise, is printed before the first step. After Ctrl-C, a crash or "
            "kill -9, `sordino resume FOLDER` goes on, to the same classifier and the same claim.",
        ),
    )
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A .csv, .tsv, .jsonl or .parquet file with a text and a class in each row."""
    epsilon: float | None = None
    """The privacy that is aimed at. It must be given."""
    text: str = "text"
    """The column that holds the texts."""
    target: str = "label"
    """The column that holds the classes."""
    test: Path | None = None
    """Another such file to test on; without it, a part of the texts is held out."""
    held_out: float = 0.1
    """The share that is held out for testing; each text by a hash of itself."""
    delimiter: str | None = None
    """Between the cells of a CSV file, if it is no comma."""
    ignore_label: str | None = None
    """Leave out records with this class; '' for those without one."""
    classes: str | None = None
    """All classes, as in 'no|yes'; without it, those that occur, and the claim rests on their names being public."""
    records: int | None = None
    """A public figure near the number of texts; without it the claim does not cover their number."""
    equal_texts_differ: bool = False
    """Your word that equal texts, such as many a "Yes.", belong to different people; the claim names it."""
    delta: float | None = None
    """The δ of the claim; 1e-5, or a tenth of 1 / records if that is smaller."""
    model: str = _MINILM
    """The encoder: minilm, which is fetched, or a folder of an encoder and its tokenizer."""
    length: int = 128
    """Tokens of a text that are read."""
    out: Path | None = None
    """The folder to write, new or empty; otherwise one in `runs`."""
    seed: int | None = None
    """For tests: the claim does not cover a run whose seed is known."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Carries out `sordino finetune`: trains, tests, saves and prints the claim; returns the exit code."""
        from sordino.app.runs.fit import folder_for

        # Refuse what cannot be carried out before anything is read.
        if self.epsilon is None:
            raise ValueError("--epsilon: how private is the model to be? Usual is 1 to 8")
        folder = folder_for(self.path.stem) if self.out is None else self.out
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"--out {folder}: holds something already; name another folder")
        if find_unfinished(folder) is not None:
            raise ValueError(f"--out {folder}: a run was begun and not finished; go on with: sordino resume {folder}")
        return self.train_and_save(folder)

    def train_and_save(self, folder: Path) -> int:
        """Trains for `sordino finetune`, or goes on with a run that was stopped, and saves the classifier; returns the
        exit code.
        """
        train, test = self._read_parts()
        encoder, tokenizer = _load_encoder(self.model)
        work = _work_folder(folder)
        stages = work / _STAGES
        self._write_request(work)
        try:
            began = time.perf_counter()
            tuned = self._train(encoder, tokenizer, train, stages)
            seconds = time.perf_counter() - began
            measures = measure_classifier(tuned, *test)
            # The classifier is written beside the stages and moved in one step, so that a folder is whole or not there.
            finished = work / _CLASSIFIER
            shutil.rmtree(finished, ignore_errors=True)  # left by a crash
            tuned.save(finished)
            outcome = {"text": self.text, "target": self.target, "measures": measures, "seconds": round(seconds, 1)}
            (finished / OUTCOME).write_text(json.dumps(outcome, indent=1) + "\n", encoding="utf-8")
            if folder.exists():
                folder.rmdir()  # it is empty
            os.rename(finished, folder)
        except BaseException as error:
            # Before the first lot nothing was released, and nothing is worth keeping.
            has_begun = any(stages.glob("*/begun.json"))
            if not has_begun:
                shutil.rmtree(work)
            if not isinstance(error, KeyboardInterrupt):
                raise
            next_step = f"go on with: sordino resume {folder}" if has_begun else "nothing was released"
            print(f"sordino finetune: stopped; {next_step}", file=sys.stderr)
            return _STOPPED
        shutil.rmtree(work)
        self._print_outcome(tuned, measures, seconds, folder)
        return 0

    def _train(self, encoder: Any, tokenizer: Any, train: tuple[list[str], list[str]], stages: Path) -> FineTuned:
        """Fine-tunes on the training texts as `sordino finetune` was asked to, with its stages kept in a folder."""
        from sordino.app.runs.run_data import HELD_OUT, TESTED
        from sordino.finetuning import finetune
        from sordino.ledger.ledger import Ledger

        assert self.epsilon is not None, "refused before"
        # Accuracy on test records is told without noise, so the claim names it from the beginning.
        ledger = Ledger()
        ledger.disclose(HELD_OUT if self.test is None else TESTED)
        return finetune(
            encoder,
            tokenizer,
            *train,
            epsilon=self.epsilon,
            delta=self.delta,
            classes=None if self.classes is None else [one.strip() for one in self.classes.split("|")],
            records=self.records,
            length=self.length,
            ledger=ledger,
            equal_texts_differ=self.equal_texts_differ,
            checkpoints=stages,
            seed=self.seed,
            say=lambda text: print(text, file=sys.stderr),
        )

    def _write_request(self, work: Path) -> None:
        """Writes what `sordino finetune` was asked for, with whole paths, so that `sordino resume` can ask the same
        from anywhere.
        """
        from sordino.app import atomic_files

        work.mkdir(parents=True, exist_ok=True)
        asked = {one.name: getattr(self, one.name) for one in fields(self)}
        asked = {name: str(value.resolve()) if isinstance(value, Path) else value for name, value in asked.items()}
        if self.model != _MINILM:
            asked["model"] = str(Path(self.model).resolve())
        atomic_files.write_file(work / REQUEST, json.dumps(asked, indent=1) + "\n")

    def _read_parts(self) -> tuple[tuple[list[str], list[str]], tuple[list[str], list[str]]]:
        """Returns the texts and classes that `sordino finetune` trains on, and those it tests on."""
        from sordino.app.runs.run_data import mark_held_out

        texts, labels = self._read_file(self.path)
        if self.test is not None:
            test = self._read_file(self.test)
        else:
            # A text is held out by a hash of itself, so one record never moves another.
            keys = [f"{text}\x1f{label}".encode() for text, label in zip(texts, labels, strict=True)]
            held_out = mark_held_out(keys, self.held_out).tolist()
            pairs = list(zip(texts, labels, held_out, strict=True))
            test = [text for text, _, out in pairs if out], [label for _, label, out in pairs if out]
            texts, labels = [text for text, _, out in pairs if not out], [label for _, label, out in pairs if not out]
        # A class of the test records that is never trained on could not be scored at the end.
        if self.classes is None and not set(test[1]) <= set(labels):
            raise ValueError("the test records have a class that the training records lack; name all by --classes")
        return (texts, labels), test

    def _read_file(self, path: Path) -> tuple[list[str], list[str]]:
        """Returns the texts and classes of a file given to `sordino finetune`; raises with all faults of the file at
        once.
        """
        from sordino.app.data.own import rows
        from sordino.app.data.own.bad_file import BadFile, raise_faults
        from sordino.app.data.own.columns import MOST_CATEGORIES

        table = rows.read_table(path, self.delimiter)
        raise_faults(table.path, table.faults)
        texts, labels = table.column(self.text, "--text"), table.column(self.target, "--target")
        # Each record stays or goes by its own label alone.
        if self.ignore_label is not None:
            kept = [at for at, label in enumerate(labels) if label != self.ignore_label]
            texts, labels = [texts[at] for at in kept], [labels[at] for at in kept]
        # A class without a name is a cell that was forgotten, and a column of numbers has hundreds of values.
        if self.classes is None and "" in labels:
            where = table.lines[labels.index("")] if self.ignore_label is None else None
            cure = "mend the cell, or say --ignore-label '' to leave such records out"
            raise BadFile(path, f"the target {self.target!r} is empty", cure, where)
        if self.classes is None and len(set(labels)) > MOST_CATEGORIES:
            what = f"the target {self.target!r} has more than {MOST_CATEGORIES} different values"
            raise BadFile(path, what, "choose another column by --target, or name all classes by --classes")
        return texts, labels

    def _print_outcome(self, tuned: FineTuned, measures: dict[str, Any], seconds: float, folder: Path) -> None:
        """Prints the outcome of `sordino finetune`, as `sordino train` does: the measures, the claim, and where
        everything is.
        """
        from sordino.app.cli.training_command import measure_lines
        from sordino.ledger.claims import DATASET_SIZE, claim_to_json

        if self.json:
            said = {"status": "finished", "test_accuracy": measures["accuracy"], "test_loss": measures["loss"]}
            said |= {"measures": measures, "claim": claim_to_json(tuned.claim), "seconds": seconds, "run": str(folder)}
            print(json.dumps(said))
            return
        print(
            f"\ntest accuracy {measures['accuracy']:.2%}, test loss {measures['loss']:.4g}, {seconds:.1f} s of training"
        )
        for line in measure_lines(measures):
            print(line)
        print(f"\n{tuned.claim}\n")
        # Copies of a text are charged together, which the plan did not know of.
        spent = getattr(tuned.claim, "epsilon", 0.0)
        if self.epsilon is not None and spent > 1.01 * self.epsilon and not self.equal_texts_differ:
            print(
                f"epsilon        is above {self.epsilon:g} because equal texts are charged together: leave copies out, or "
                "give\n               --equal-texts-differ if they belong to different people"
            )
        if DATASET_SIZE in getattr(tuned.claim, "not_covered", ()):
            print("dataset size   is covered too with --records, a public figure near the number of texts")
        print(f"folder         {folder}")
        print("noise key      in no file; nothing in the folder can take the noise off")
        print(f"use it         sordino predict {folder} new.csv --out predictions.csv")


def find_unfinished(folder: Path) -> Path | None:
    """Returns the folder of a fine-tuning that is not finished, given that folder or the one it was to write; else None."""
    work = folder if folder.name.endswith(_UNFINISHED) else _work_folder(folder)
    return work if (work / REQUEST).is_file() else None


def resume_finetuning(work: Path, *, as_json: bool) -> int:
    """Goes on with a run of `sordino finetune` that was stopped or killed; returns the exit code."""
    import torch

    from sordino.finetuning.saved_classifier import FACTS
    from sordino.finetuning.saved_stages import BEGUN

    folder = work.with_name(work.name.removesuffix(_UNFINISHED))
    # Killed between the last two steps: the classifier is in its place.
    if (folder / FACTS).is_file():
        shutil.rmtree(work)
        print(f"{folder}: is finished; use it by: sordino predict {folder} new.csv")
        return 0
    asked = json.loads((work / REQUEST).read_text(encoding="utf-8"))
    paths = {name: Path(asked[name]) for name in ("path", "test", "out") if asked[name] is not None}
    # Sums are split by threads, so the same number of them is needed for the same bits.
    begun = work / _STAGES / BEGUN
    if begun.is_file():
        torch.set_num_threads(int(json.loads(begun.read_text(encoding="utf-8"))["environment"]["threads"]))
    return Command(**{**asked, **paths, "json": as_json}).train_and_save(folder)


def _work_folder(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{_UNFINISHED}")


def measure_classifier(tuned: FineTuned, texts: Sequence[str], labels: Sequence[Any]) -> dict[str, Any]:
    """Returns accuracy, loss and the other measures of the classifier that `sordino finetune` made on test texts,
    beside a baseline's.
    """
    import torch

    from sordino.app.runs.evaluate import majority_baseline, measure_classes

    # The logarithm of a probability is a score: its softmax is the probability again.
    scores = tuned.probabilities(texts).clamp(min=1e-30).log()
    places = {name: place for place, name in enumerate(tuned.classes)}
    if any(label not in places for label in labels):
        raise ValueError("a test record's class is none of the classes; name all by --classes")
    targets = torch.tensor([places[label] for label in labels])
    return {
        "accuracy": float((scores.argmax(1) == targets).double().mean()),
        "loss": float(torch.nn.functional.cross_entropy(scores, targets)),
        **measure_classes(scores, targets),
        "baseline": majority_baseline(targets, len(tuned.classes)),
    }


def _load_encoder(name: str) -> tuple[Any, Any]:
    """Returns the encoder and tokenizer that `sordino finetune --model` names; MiniLM is fetched if it is not there."""
    from sordino.app.data import minilm
    from sordino.app.data.files import files_folder

    transformers = minilm.import_transformers()
    # Bars of reading and writing weights would stand between the lines of the plan and the result.
    transformers.utils.logging.disable_progress_bar()
    if name == _MINILM:
        encoder = minilm.build_classifier(2).encoder
        return encoder, transformers.AutoTokenizer.from_pretrained(files_folder("minilm"))
    if not Path(name).is_dir():
        raise ValueError(f"--model {name}: is no folder; need minilm, or a folder with an encoder and its tokenizer")
    return transformers.AutoModel.from_pretrained(name), transformers.AutoTokenizer.from_pretrained(name)
