"""`sordino train RECIPE`: trains privately by a recipe and leaves a run directory with the claim.

    sordino train --data people.csv --target income --epsilon 3          trains on a file of your own

The flags are the fields of `Recipe`, of `Options` and of `OwnFlags`, and a few of the command's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass
from functools import partial
from typing import Annotated, Any

import tyro

from sordino import validate
from sordino.app.cli.dataclass_flags import flags, unsaid, was_given
from sordino.app.cli.launcher import launched
from sordino.app.cli.training_outcome import finish, finish_several, followed, guarded
from sordino.app.runs import find, own_file
from sordino.app.runs.fit import carry_out
from sordino.app.runs.own_file import OwnFlags, from_flags
from sordino.app.runs.progress_view import Silent, watching
from sordino.app.runs.recipe import MEASURED, Recipe
from sordino.app.runs.settings import Config, Options, Settings, read, settle
from sordino.app.runs.several_seeds import carry_out_several
from sordino.distributed.process_group import ranks_of


@dataclass(frozen=True)
class Train:
    """The flags of the command itself, and what it does."""

    recipe: Annotated[str | None, tyro.conf.Positional] = None
    """A name that `sordino recipes` lists; left out with --data, or when --config names it."""
    config: str | None = None
    """A TOML file of fields, such as the config.toml of another run; flags win over it."""
    parameter: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """Parameters of the words, as in threshold=2.0; weigher.threshold=2.0 where two words have one of that name. Several
    may follow one flag, and the flag may be given several times."""
    without: tuple[str, ...] = ()
    """Fields of the recipe that are to be empty, such as pca or normalise."""
    budget_stop: bool = False
    """With both --epsilon and --noise-multiplier: stop before ε is exceeded."""
    budget: str | None = None
    """A file of `sordino budget` that the run is entered in before it begins; refused if it does not fit."""
    seeds: int = 1
    """So many runs, each with other initial weights, lots and noise: mean and spread, and what all cost together."""
    out: str | None = None
    """The run directory, new or empty; otherwise one in `runs`. With --seeds, the folder of all."""
    report: Annotated[bool, tyro.conf.arg(help_behavior_hint="(default: True)")] = field(default=unsaid(True))
    """Write report.html and PRIVACY.md at the end."""
    json: bool = False
    """End with one JSON object on the last line."""

    def run(self) -> int:
        """Trains, evaluates and prints the claim; returns the exit code."""
        config = None if self.config is None else read(self.config)
        settings = self.settings(config)
        with launched() as first:
            return self._carried_out(settings, config, first=first)

    def settings(self, config: Config | None = None) -> Settings:
        """Returns what the flags ask for, on top of a configuration file's fields."""
        flags = {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if one.name not in _OWN and was_given(self, one.name)
        }
        # Own data comes from the flags or, without them, from the file.
        own = from_flags({name: flags.pop(name, None) for name in _DATA})
        own = own_file.from_table(config.data) if own is None and config is not None and config.data else own
        # Flags win over the fields of the file.
        given: dict[str, Any] = {} if config is None else dict(config.fields)
        for name, other in (("epsilon", "noise_multiplier"), ("noise_multiplier", "epsilon")):
            if name in flags:
                given.pop(other, None)  # a flag for one takes the place of the other in a file
        given.update(flags)
        parameters: dict[str, Any] = {} if config is None else dict(config.parameters)
        parameters.update(_parsed(self.parameter))
        # `--without` empties fields of the recipe.
        recipe: str | Recipe | None = self.recipe
        if self.without:
            if self.recipe is None:
                raise ValueError("--without: leaves out fields of a recipe, and none is named")
            recipe = find(self.recipe).but(**dict.fromkeys(self.without))
        return settle(recipe, given, parameters, budget_stop=self.budget_stop, own=own)

    def _carried_out(self, settings: Settings, config: Config | None, *, first: bool) -> int:
        """Trains on this rank; only the first rank shows progress and prints. Returns the exit code."""
        view = watching(quiet=self.json) if first else Silent()
        run = partial(carry_out, settings, self.out, view, self.budget)
        if not first and self.seeds == 1:
            return guarded("train", lambda: followed(run()))
        report = bool(self.report) if config is None or was_given(self, "report") else config.report
        if validate.count("seeds", self.seeds) > 1:
            if ranks_of(None) is not None:
                raise ValueError(f"seeds={self.seeds}: one run at a time on several ranks; leave it out")
            if self.budget is not None:
                raise ValueError("--budget with --seeds: need one run to enter; make the runs one after the other")
            several = partial(carry_out_several, settings, self.seeds, self.out, view)
            return guarded("train", lambda: finish_several(several(), report=report, as_json=self.json))
        return guarded("train", lambda: finish(run(), report=report, as_json=self.json))


_OWN = tuple(one.name for one in fields(Train))
_DATA = tuple(one.name for one in fields(OwnFlags))

Command = make_dataclass(
    "Command", [*flags(OwnFlags), *flags(Recipe, MEASURED), *flags(Options, ("budget",))], bases=(Train,), frozen=True
)
Command.__doc__ = "Train by a recipe, or on data of your own; any field can be given by flag or in a TOML file."


def _parsed(parameters: tuple[tuple[str, ...], ...]) -> dict[str, float]:
    """Returns the numbers of all --parameter flags by name; raises ValueError if one is no number or is named twice."""
    result: dict[str, float] = {}
    for text in (one for several in parameters for one in several):
        name, equals, value = text.partition("=")
        if name in result:
            raise ValueError(f"parameter {name!r}: given twice; leave one out")
        try:
            result[name] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise ValueError(f"parameter {text!r}: need name=number, as in threshold=2.0")
    return result
