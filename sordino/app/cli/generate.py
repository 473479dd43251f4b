"""`sordino generate`: writes synthetic rows or texts by a privately trained generator, with the claim in the file."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, fields, make_dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from sordino.app.cli.flags import flags_of
from sordino.app.cli.help_page import HelpPage
from sordino.app.cli.run_flags import RUN_VALUES, OwnFlags, read_run_flags
from sordino.app.generate import generation
from sordino.app.generate.generation import Generated, Wishes
from sordino.app.generate.synthetic_file import write_records, write_report
from sordino.app.runs.declared_file import OwnFile

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
        defaults={
            one.name: str(one.default)
            for one in fields(Wishes)
            if one.default not in (MISSING, None) and not isinstance(one.default, bool)
        },
        notes=(
            "The folder gets synthetic.csv, its metadata with the claim, and a report of how good the records are on test "
            "records, which no claim covers.",
        ),
    )  # fmt: skip
    source: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None
    """A known data set: adult, r8 or 20news; left out with --data."""
    out: Path = Path("synthetic")
    """The folder to write to; new or empty."""
    parquet: bool = False
    """Also write synthetic.parquet, with the claim inside the file."""
    json: bool = False
    """End with one JSON object on the last line."""

    def run(self) -> int:
        """Carries out `sordino generate`: makes the records, writes them with their claim; returns the exit code."""
        given, own = read_run_flags(self, Generate)
        if "epsilon" not in given:
            raise ValueError("--epsilon: how private are the records to be? Usual is 1 to 8")
        if self.out.exists() and any(self.out.iterdir()):
            raise ValueError(f"--out {self.out}: is there and not empty; name another folder")
        made = self._generate(own, Wishes(**given))
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

    def _generate(self, own: OwnFile | None, wishes: Wishes) -> Generated:
        """Reads the data that `sordino generate` was given and makes synthetic records of it."""
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

    def _print_outcome(self, made: Generated, paths: list[Path]) -> None:
        """Prints the outcome of `sordino generate`: how good the records are, the claim, and where everything is."""
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
    [*flags_of(Wishes), *flags_of(OwnFlags, _LEFT_OUT)],
    bases=(Generate,),
    frozen=True,
    namespace={"help_page": Generate.help_page},
)
Command.__doc__ = "Write synthetic rows or texts by a privately trained generator."
