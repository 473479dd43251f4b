"""`sordino data`: fetches, lists and checks data sets, and proposes a schema for a file of your own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from sordino import events
from sordino.accounting import PLD
from sordino.app import atomic_files
from sordino.app.cli.help_page import HelpPage
from sordino.app.data import NAMES, NotFetched, cache, data_catalogue
from sordino.app.data import check as checked
from sordino.app.data import fetch as fetched
from sordino.app.data import files as filed
from sordino.app.data.own import rows
from sordino.app.data.own.bad_file import raise_faults
from sordino.app.data.own.inspection import propose_schema
from sordino.app.runs.declared_file import RANGES
from sordino.app.suggestions import refuse_unknown_name

_DELTA = 1e-5


def _describe_price(columns: int) -> str:
    """Returns what the command `sordino data inspect` prints about what the ways to know bounds and classes cost."""
    which = "the one column of numbers" if columns == 1 else f"all {columns} columns of numbers"
    price = PLD().epsilon(events.Gaussian(RANGES), _DELTA)
    return (
        "\nWhat this costs: the schema was read off the records without noise, which no ε covers. A run that uses it as\n"
        "it is says so in its claim. Replace it by what is known of the columns and delete `read_off_records`: that\n"
        f"costs nothing. Or leave bounds out: a run then finds those of {which} privately, for\n"
        f"ε = {price:.2f} at δ = {_DELTA:g} of its budget. Class weights from a private histogram cost the same."
    )


@dataclass(frozen=True)
class Command:
    """Get, list and check data sets, or inspect a file of your own and propose a schema for it."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            (
                "Propose a schema for a table of your own, to be edited:",
                "sordino data inspect people.csv --target income --out schema.toml",
            ),
            ("Get a data set:", "sordino data fetch mnist"),
            ("What is there:", "sordino data list"),
        ),
        groups={"Of inspect": ("target", "delimiter", "out"), "Output": ("json",)},
    )
    action: Annotated[Literal["fetch", "list", "check", "inspect"], tyro.conf.Positional]
    """What to do."""
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Which data sets; all of them if none is named. With inspect, the file."""
    target: str | None = None
    """With inspect: the column that is to be learnt."""
    delimiter: str | None = None
    """With inspect: between the cells of a CSV file; read off its first line without it."""
    out: Path | None = None
    """With inspect: the schema file to write; printed without it."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Carries out `sordino data`: fetches, lists, checks or inspects data; returns 1 if a data set is unavailable
        or damaged.
        """
        if self.action == "inspect":
            return self._inspect()
        # Without names, fetching means all image data sets; files are fetched by name.
        names = self.names or (NAMES if self.action == "fetch" else (*NAMES, *filed.FILES))
        for name in names:
            refuse_unknown_name(f"data set {name!r}", name, (*NAMES, *filed.FILES))
        # Every name was checked before the first download begins.
        rows = {name: self._describe_data_set(name) for name in names}
        if self.json:
            print(json.dumps(rows))
        else:
            for name, (state, about) in rows.items():
                print(f"{name:<14} {state:<11} {about}")
        bad = {"unavailable", "damaged"}
        return 1 if any(state in bad for state, _ in rows.values()) else 0

    def _inspect(self) -> int:
        """Carries out `sordino data inspect`: proposes a schema for a file, and says what it costs to use what was read
        off the records.
        """
        if len(self.names) != 1:
            raise ValueError("inspect: need one file, as in `sordino data inspect people.csv --target income`")
        path = Path(self.names[0])
        table = rows.read_table(path, self.delimiter)
        # A schema proposed from a file with faults would declare the faults to be values.
        raise_faults(table.path, table.faults)
        proposed = propose_schema(table, self.target)
        if self.json:
            print(json.dumps({"records": len(table.cells), "schema": proposed.table, "columns": dict(proposed.notes)}))
            return 0
        # A line about every column, then the schema, then what it costs.
        width = max(len(name) for name, _ in proposed.notes)
        print(f"{path.name}: {len(table.cells):,} records")
        for name, note in proposed.notes:
            print(f"  {name:<{width}}  {note}")
        # Without a file to write to, the schema is printed in the form in which it can be copied into one.
        if self.out is None:
            print(f"\n{proposed.render(path.name)}")
        else:
            atomic_files.write_file(self.out, proposed.render(path.name))
            print(f"schema  {self.out}")
        # The price comes last: the schema above was read off the records without noise, which no ε covers.
        print(_describe_price(len(proposed.table.get("bounds", ()))))
        return 0

    def _describe_data_set(self, name: str) -> tuple[str, str]:
        return self._describe_files(name) if name in filed.FILES else self._describe_images(name)

    def _describe_files(self, name: str) -> tuple[str, str]:
        """Returns the state and the description of a data set of raw files, for the list of `sordino data`."""
        entry = filed.find_files(name)
        about = f"{entry.about}; licence: {entry.licence}"
        if self.action == "fetch":
            # A data set that cannot be fetched is a line of the list; the others are still fetched.
            try:
                filed.fetch_files(name, lambda text: None if self.json else print(text))
            except NotFetched as error:
                return "unavailable", str(error)
            return "fetched", about
        state = filed.cache_state(name)
        return ("cached" if state == "good" and self.action == "list" else state), about

    def _describe_images(self, name: str) -> tuple[str, str]:
        """Returns the state and the description of a data set of images, for the list of `sordino data`."""
        entry = data_catalogue.find_entry(name)
        about = f"{entry.sizes[0]:,} + {entry.sizes[1]:,} images {'×'.join(map(str, entry.shape))}; {entry.about}"
        if self.action == "fetch":
            try:
                fetched(name, lambda text: None if self.json else print(text))
            except NotFetched as error:
                return "unavailable", str(error)
            return "fetched", about
        if self.action == "check":
            # A damaged data set is a line of the list, with its cure; it does not end the command.
            try:
                return ("good" if checked(name) else "not cached"), about
            except ValueError as error:
                return "damaged", f"{error}; get it again with `sordino data fetch {name}`"
        return ("cached" if cache.find_arrays(entry) is not None else "not cached"), about
