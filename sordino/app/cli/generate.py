"""`sordino generate`: writes synthetic rows or texts by a privately trained generator, with the claim in the file."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from sordino.app.cli.dataclass_flags import flags_of, was_given
from sordino.app.cli.help_page import HelpPage
from sordino.app.cli.run_flags import RUN_VALUES, OwnFlags, own_file_from_flags

_LEFT_OUT = ("size", "channels", "hashed", "ignore_label")
"""Flags of own data that say nothing of rows and texts to be written."""


@dataclass(frozen=True)
class Generate:
    """The flags of the command itself, and what it does."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            ("A table of your own, by a schema that says what its columns hold:",
             "sordino generate --data people.csv --schema schema.toml --epsilon 3 --out synthetic"),
            ("Labelled texts:",
             "sordino generate --data reviews.csv --text review --target stars --classes '1|2|3' --epsilon 3 --out made"),
            ("Texts or rows by a language model of your own, with adapters:",
             "sordino generate --data people.csv --schema schema.toml --model ./gpt2 --lora 8 --epsilon 8 --out made"),
            ("A known data set:", "sordino generate adult --epsilon 3 --out synthetic"),
        ),
        groups={
            "Data of your own": ("data", "target", "text", "schema", "test", "held_out", "drop", "delimiter"),
            "What is known of its columns, which is then public": (
                "bounds", "categories", "dates", "missing", "classes",
            ),
            "Privacy": ("epsilon", "delta", "clip", "rate", "expected_batch"),
            "How the records are made": ("method", "model", "lora", "length", "steps", "learning_rate", "rows"),
            "What is measured": ("beside_real", "canaries"),
            "Output": ("out", "parquet", "json", "seed"),
        },
        values={**RUN_VALUES, "model": "FOLDER"},
        notes=(
            "The folder gets synthetic.csv, its metadata with the claim, and a report of how good the records are on test "
            "records, which no claim covers.",
        ),
    )  # fmt: skip
    source: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None
    """A known data set: adult, r8 or 20news; left out with --data."""
    epsilon: float | None = None
    """The privacy that is aimed at. It must be given."""
    delta: float = 1e-5
    """The δ of the claim."""
    out: Path = Path("synthetic")
    """The folder to write to; new or empty."""
    rows: int | None = None
    """How many records to write; as many as there are test records if it is not said."""
    method: str = "model"
    """How records are made: by a model, or by evolution (Private Evolution, tables only)."""
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
    parquet: bool = False
    """Also write synthetic.parquet, with the claim inside the file."""
    seed: int | None = None
    """For tests: the claim does not cover a run whose seed is known."""
    json: bool = False
    """End with one JSON object on the last line."""

    def run(self) -> int:
        """Carries out `sordino generate`: makes the records, writes them with their claim; returns the exit code."""
        from sordino.app.generate import generation
        from sordino.app.generate.synthetic_file import write_records, write_report

        if self.epsilon is None:
            raise ValueError("--epsilon: how private are the records to be? Usual is 1 to 8")
        if self.out.exists() and any(self.out.iterdir()):
            raise ValueError(f"--out {self.out}: is there and not empty; name another folder")
        wishes = generation.Wishes(
            **{one.name: getattr(self, one.name) for one in fields(generation.Wishes)}  # the names are the same
        )
        made = self._generate(generation, wishes)
        # Everything is written when everything is made, so that a failure leaves no half of it.
        self.out.mkdir(parents=True, exist_ok=True)
        paths = write_records(
            self.out, made.names, made.rows, made.claim, made.facts["method"], parquet=bool(self.parquet)
        )
        paths += write_report(self.out, made.claim, made.likeness, made.facts)
        if self.json:
            print(json.dumps(json.loads((self.out / "report.json").read_text(encoding="utf-8"))))
            return 0
        self._print_outcome(made, paths)
        return 0

    def _generate(self, generation: Any, wishes: Any) -> Any:
        """Reads the data and makes the records."""
        flags = {one.name: getattr(self, one.name, None) for one in fields(OwnFlags) if one.name not in _LEFT_OUT}
        # A flag that was not typed must not reach the file's description, where it would look like a declaration.
        own = own_file_from_flags({name: value for name, value in flags.items() if was_given(self, name)})
        # Neither names no records, and both leave open which of the two are meant.
        if (own is None) == (self.source is None):
            raise ValueError("name a known data set (adult, r8, 20news), or give --data FILE; one of the two")
        show = _silent if self.json else _show_progress
        if own is not None:
            # A file is one of texts if a text column is named; otherwise every column is a cell of a row.
            if own.text is not None:
                return generation.generate_texts(generation.read_own_texts(own), wishes, show)
            return generation.generate_table(generation.read_own_table(own), wishes, show)
        if self.source in generation.KNOWN_TABLES:
            return generation.generate_table(generation.read_known_table(self.source), wishes, show)
        if self.source in generation.KNOWN_TEXTS:
            return generation.generate_texts(generation.read_known_texts(self.source), wishes, show)
        known = ", ".join((*generation.KNOWN_TABLES, *generation.KNOWN_TEXTS))
        raise ValueError(f"{self.source!r}: there is {known}; for a file of your own give --data FILE")

    def _print_outcome(self, made: Any, paths: list[Path]) -> None:
        """Prints how good the records are, the claim, and where everything is."""
        print(f"{len(made.rows):,} records by {made.facts['method']}")
        measured = made.likeness
        # A score is there only if there were test records to measure it on.
        if measured is not None and measured.synthetic is not None:
            print("\naccuracy on real test records of a classifier trained on")
            print(f"  nothing, the most frequent class  {measured.majority:8.2%}")
            for name, score in (("these records", measured.synthetic), ("the real records", measured.real)):
                if score is not None:
                    auc = "" if score.auc is None else f"   AUC {score.auc:.3f}"
                    print(f"  {name:<32}  {score.accuracy:8.2%}{auc}")
        # Exposure is printed with what chance gives, since the number alone says nothing.
        if measured is not None and measured.exposure is not None:
            print(f"\nexposure of planted records: {measured.exposure:.2f} bits (1.44: nothing is known of them)")
        print(f"\n{made.claim}\n")
        print("\n".join(str(path) for path in paths))


def _show_progress(done: int, every: int) -> None:
    """Prints a line after each tenth of the steps."""
    if done == every or done % max(1, every // 10) == 0:
        print(f"  step {done:,} of {every:,}", flush=True)


def _silent(done: int, every: int) -> None:
    """Shows nothing."""


Command = make_dataclass(
    "Command",
    [*flags_of(OwnFlags, _LEFT_OUT)],
    bases=(Generate,),
    frozen=True,
    namespace={"help_page": Generate.help_page},
)
Command.__doc__ = "Write synthetic rows or texts by a privately trained generator."
