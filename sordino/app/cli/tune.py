"""`sordino tune`: searches for hyper-parameters, with the price of the search in the claim.

    sordino tune RECIPE --grid FIELD=VALUE,VALUE …

The flags of `sordino train` for fields of the recipe can be given too; --epsilon is that of the whole search.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from sordino.app.cli.help_page import HelpPage
from sordino.app.cli.run_flags import (
    RUN_GROUPS,
    RUN_NOTE,
    RUN_VALUES,
    describe_defaults,
    make_run_command,
    read_run_flags,
)
from sordino.app.cli.training_command import STOPPED, measure_lines, run_and_report_failures
from sordino.app.option_names import use_own_names
from sordino.app.runs.fit import folder_for
from sordino.app.runs.progress_view import choose_view
from sordino.app.runs.recipe import FIELDS
from sordino.app.runs.search import (
    SINGLE_RUN_OPTIONS,
    WINNER,
    NegativeBinomial,
    PoissonNumber,
    SearchResult,
    carry_out_search,
    plan_search,
)
from sordino.app.runs.settings import make_settings
from sordino.ledger import claims


@dataclass(frozen=True)
class Tune:
    """The flags of the command itself, and what it does."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            (
                "Three learning rates on a table of your own, everything within ε = 3:",
                "sordino tune --data people.csv --target income --epsilon 3 --grid lr=0.01,0.02,0.05",
            ),
            (
                "Two fields of a recipe, about 20 trials:",
                "sordino tune digits --epsilon 3 --grid lr=0.5,1,2 momentum=0,0.9 --runs 20",
            ),
        ),
        groups={"Search": ("grid", "runs", "law", "score_noise"), **RUN_GROUPS},
        values={**RUN_VALUES, "grid": "FIELD=A,B,… …"},
        defaults={**describe_defaults(), "runs": "10"},
        notes=(RUN_NOTE,),
    )
    recipe: Annotated[str | None, tyro.conf.Positional] = None
    """A name that `sordino recipes` lists; none with --data."""
    grid: tuple[str, ...] = ()
    """Fields of the recipe with the values to try, as in learning_rate=0.5,1,2 momentum=0,0.9."""
    runs: float = 10.0
    """How many trials are made on average; how many really are is drawn at random and stays secret."""
    law: Literal["geometric", "logarithmic", "poisson"] = "geometric"
    """Of the number of trials: logarithmic costs least and varies most, poisson costs most and varies least."""
    score_noise: float | None = None
    """Score trials by the number of training records they classify rightly, with noise of this deviation, in the claim;
    without it by the test set, which is then declared public."""
    budget: str | None = None
    """A file of `sordino budget` that the search is entered in before it begins."""
    out: str | None = None
    """The folder of the search; a search that was stopped or killed goes on from it, given the same flags."""
    json: bool = False
    """End with one JSON object on the last line."""

    def run(self) -> int:
        """Carries out `sordino tune`: searches, releases the best trial and prints the claim; returns the exit code."""
        given, own_file = read_run_flags(self, Tune)
        if self.recipe is None and own_file is None:
            raise ValueError("nothing to search for: name a recipe, as in `sordino tune mnist`, or give --data")
        settings = make_settings(self.recipe, given, own=own_file)
        # The law of the number of trials is public; the number that is drawn stays secret.
        shapes = {"geometric": 1.0, "logarithmic": 0.0}
        number = PoissonNumber(self.runs) if self.law == "poisson" else NegativeBinomial(self.runs, shapes[self.law])
        view = choose_view(quiet=self.json)
        planned_search = plan_search(settings, _parse_grid(self.grid), number, self.score_noise, view.say)
        folder = Path(self.out) if self.out is not None else folder_for(f"tune-{settings.recipe.name}")
        budget = None if self.budget is None else Path(self.budget)
        return run_and_report_failures(
            "tune", lambda: self._report_result(carry_out_search(planned_search, folder, budget, view.say))
        )

    def _report_result(self, result: SearchResult) -> int:
        """Prints the result of the search of `sordino tune`; returns the exit code."""
        if self.json:
            # Nothing about other trials is printed: how many there were and how they did is secret.
            last = result.last_row
            summary = {
                "status": "finished" if result.finished else "stopped",
                "chosen": dict(result.chosen),
                "test_accuracy": None if last is None else last.test_accuracy,
                "test_loss": None if last is None else last.test_loss,
                "measures": None if last is None else last.measures,
                "claim": claims.claim_to_json(result.claim),
                "run": str(result.folder / WINNER),
            }
            print(json.dumps(summary))
        elif not result.finished:
            print(f"stopped and saved; the same command with --out {result.folder} goes on")
        # A Poisson number of trials may be 0, and the claim holds all the same.
        elif result.last_row is None:
            print(f"\nchance made no trial, so nothing was trained\n\n{result.claim}")
        else:
            chosen = ", ".join(f"{name}={value}" for name, value in result.chosen.items())
            score = result.last_row.test_accuracy
            last_result = (
                f"test loss {result.last_row.test_loss:.4g}" if score is None else f"test accuracy {score:.2%}"
            )
            print(f"\nbest: {chosen}; {last_result}")
            for line in measure_lines(result.last_row.measures or {}):
                print(line)
            print(f"\n{result.claim}\n")
            print(f"winner         {result.folder / WINNER}")
        return 0 if result.finished else STOPPED


Command = make_run_command(
    Tune, "Search for hyper-parameters; the claim has the price of the search in it.", leave_out=SINGLE_RUN_OPTIONS
)


def _parse_grid(given: tuple[str, ...]) -> dict[str, tuple[Any, ...]]:
    """Returns the values that `sordino tune` is to try for each field of the recipe."""
    values_by_field: dict[str, tuple[Any, ...]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        # A grid takes the names that flags take.
        (name,) = use_own_names({name.replace("-", "_"): None}, FIELDS)
        if not equals or not name or not all(values.split(",")):
            raise ValueError(f"grid {text!r}: need a field and values, as in learning_rate=0.5,1,2")
        if name in values_by_field:
            raise ValueError(f"grid {text!r}: {name} was given before; give each field once, with all its values")
        values_by_field[name] = tuple(map(_parse_value, values.split(",")))
    return values_by_field


def _parse_value(text: str) -> Any:
    """Returns a value that `sordino tune` is to try as a number if its text is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
