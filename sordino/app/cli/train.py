"""`sordino train RECIPE`: trains privately by a recipe and leaves a run directory with the claim.

    sordino train --data people.csv --target income --epsilon 3          trains on a file of your own

The flags are the fields of `Recipe`, of `Options` and of `OwnFlags`, and a few of the command's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import tyro

from sordino import validate
from sordino.app.cli.flags import default_of_unset_flag, was_given
from sordino.app.cli.help_page import HelpPage
from sordino.app.cli.run_flags import (
    RUN_GROUPS,
    RUN_NOTE,
    RUN_VALUES,
    describe_defaults,
    make_run_command,
    read_run_flags,
)
from sordino.app.cli.training_command import carry_out_training, report_outcome, report_several_outcomes
from sordino.app.runs import find
from sordino.app.runs.declared_file import own_file_from_table
from sordino.app.runs.fit import carry_out_run
from sordino.app.runs.progress_view import View
from sordino.app.runs.recipe import Recipe
from sordino.app.runs.settings import SAME_CHOICE, Config, Settings, make_settings, read_config
from sordino.app.runs.several_seeds import SeveralSeeds, carry_out_several
from sordino.distributed.process_group import ranks_of


@dataclass(frozen=True)
class Train:
    """The flags of the command itself, and what it does."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            ("A table of your own, to ε = 3:", "sordino train --data people.csv --target income --epsilon 3"),
            ("Texts:", "sordino train --data reviews.jsonl --text review --target stars --epsilon 8"),
            ("Images, in a folder for each class:", "sordino train --data pictures --epsilon 8 --epochs 20"),
            ("A recipe with a measured accuracy:", "sordino train mnist --epsilon 3"),
            (
                "Choices of your own:",
                "sordino train mnist --eps 3 --batch-size 600 --epochs 15 --lr 0.5 --clip 0.1 --out runs/mine",
            ),
        ),
        groups=RUN_GROUPS,
        values=RUN_VALUES,
        defaults=describe_defaults(),
        notes=(RUN_NOTE,),
    )
    recipe: Annotated[str | None, tyro.conf.Positional] = None
    """A name that `sordino recipes` lists; left out with --data, or when --config names it."""
    config: str | None = None
    """A TOML file of fields, such as the config.toml of another run; flags win over it."""
    parameter: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """Parameters of the words, as in threshold=2.0; clipping.threshold=2.0 where two words have one of that name. Several
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
    report: Annotated[bool, tyro.conf.arg(help_behavior_hint="(default: True)")] = field(
        default=default_of_unset_flag(True)
    )
    """Write report.html, PRIVACY.md and MODEL_CARD.md at the end."""
    json: bool = False
    """End with one JSON object on the last line."""

    def run(self) -> int:
        """Carries out `sordino train`: trains, evaluates and prints the claim; returns the exit code."""
        config = None if self.config is None else read_config(self.config)
        settings = self.settings(config)
        # A flag wins over the file, and the file over the default.
        report = bool(self.report) if config is None or was_given(self, "report") else config.report
        if validate.count("seeds", self.seeds) == 1:
            return carry_out_training(
                "train",
                settings.options.device,
                quiet=self.json,
                train=lambda view: carry_out_run(settings, self.out, view, self.budget),
                report=lambda history: report_outcome(history, report=report, as_json=self.json),
            )
        if self.budget is not None:
            raise ValueError("--budget with --seeds: need one run to enter; make the runs one after the other")
        return carry_out_training(
            "train",
            settings.options.device,
            quiet=self.json,
            train=lambda view: self._train_with_seeds(settings, view),
            report=lambda several: report_several_outcomes(several, report=report, as_json=self.json),
        )

    def settings(self, config: Config | None = None) -> Settings:
        """Returns what the flags of `sordino train` ask for, on top of a configuration file's fields."""
        flags, own = read_run_flags(self, Train)
        # Own data comes from the flags or, without them, from the file.
        own = own_file_from_table(config.data) if own is None and config is not None and config.data else own
        # Flags win over the fields of the file.
        given: dict[str, Any] = {} if config is None else dict(config.fields)
        same_choice = (*SAME_CHOICE, ("epsilon", "noise_multiplier"))
        for name, other in (*same_choice, *((second, first) for first, second in same_choice)):
            if name in flags:
                given.pop(other, None)  # a flag for one takes the place of the other in a file
        given.update(flags)
        parameters: dict[str, Any] = {} if config is None else dict(config.parameters)
        parameters.update(_parse_parameters(self.parameter))
        # `--without` empties fields of the recipe.
        recipe: str | Recipe | None = self.recipe
        if self.without:
            if self.recipe is None:
                raise ValueError("--without: leaves out fields of a recipe, and none is named")
            recipe = find(self.recipe).but(**dict.fromkeys(self.without))
        return make_settings(recipe, given, parameters, budget_stop=self.budget_stop, own=own)

    def _train_with_seeds(self, settings: Settings, view: View) -> SeveralSeeds:
        """Carries out `sordino train` with several seeds, one run after the other; refuses several ranks, which share
        one run.
        """
        if ranks_of(None) is not None:
            raise ValueError(f"seeds={self.seeds}: one run at a time on several ranks; leave it out")
        return carry_out_several(settings, self.seeds, self.out, view)


Command = make_run_command(
    Train,
    "Train by a recipe, or on data of your own; any field can be given by flag or in a TOML file.",
    leave_out=("budget",),
)


def _parse_parameters(parameters: tuple[tuple[str, ...], ...]) -> dict[str, float]:
    """Returns the numbers of all --parameter flags of `sordino train` by name; raises ValueError if one is no number or
    is named twice.
    """
    result: dict[str, float] = {}
    for text in (one for several in parameters for one in several):
        # A parameter that is named twice is a mistake, and which one was meant is unknown.
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
