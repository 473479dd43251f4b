"""The settings of a run, from a recipe's name, a TOML file and flags, and which of them may change when it goes on.

Later sources win, and all are checked before data is read.

When a run goes on, a field that has changed is one of three kinds:
  - it cannot change a sum, a draw or the noise (`HARMLESS`): the run goes on as if nothing had happened;
  - it changes the sums of the steps to come (`ADJUSTABLE`): the run may go on, but never by a replay;
  - anything else would make it another run, and is refused.

Privacy: a replay uses noise again, so every field counts that is not known to be harmless; a new field is of the third kind
until it is named here.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from sordino import validate
from sordino.app.option_names import use_own_names
from sordino.app.runs import own_code
from sordino.app.runs.declared_file import OwnFile, own_file_from_table, recipe_for_own_data
from sordino.app.runs.given_data import GivenData
from sordino.app.runs.known_recipes import find
from sordino.app.runs.methods import words_of
from sordino.app.runs.recipe import FIELDS, MEASURED, Recipe, from_table
from sordino.app.suggestions import refuse_unknown_fields, refuse_unknown_name

_TABLES = ("recipe", "options", "parameters", "data")
_TABLES_OF_A_RUN = ("resolved", "versions")  # by a run into its own config.toml, which may be run again
_REPORT = "report"  # of the command that reads the file, not of the run
_MOST_BYTES = 1 << 20
_RECIPE = tuple(FIELDS)


DIAGNOSTICS = ("cosines", "lengths", "classes", "substeps")
"""What can be recorded of every step, see diagnosis.py."""


def parse_diagnostics(text: str | None) -> tuple[str, ...]:
    """Returns the diagnostics that a run's settings list by commas, in the order of `DIAGNOSTICS`; refuses unknown ones.

    >>> parse_diagnostics("lengths,cosines"), parse_diagnostics(None)
    (('cosines', 'lengths'), ())
    """
    if text is None:
        return ()
    if not isinstance(text, str):
        raise TypeError(f"diagnose={text!r}: must be text, such as cosines,lengths")
    # Names may come in any order; they are kept in one, so that equal requests are equal settings.
    given = [name.strip() for name in text.split(",")]
    for name in given:
        refuse_unknown_name(f"diagnose={text!r} with {name!r}", name, DIAGNOSTICS)
    return tuple(name for name in DIAGNOSTICS if name in given)


NONPRIVATE = "nonprivate"
"""The baseline that is the same network, trained without privacy."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a recipe is run."""

    seed: int | None = None
    """For tests: the run can be repeated, and the claim says that it does not cover who knows the seed."""
    init_seed: int = 0
    """Of the initial weights, which are public."""
    records: int | None = None
    """Train on the first so many records only."""
    batch_size: int | None = None
    """Records in a lot on average, in place of the rate, which is then this over the number of records."""
    epochs: float | None = None
    """Passes over the data, in place of steps: as many steps as draw about so many times all records."""
    budget: float | None = None
    """Stop before ε exceeds this."""
    non_private: bool = False
    """The baseline: no bound, no noise, no guarantee."""
    baseline: str | None = None
    """nonprivate: train the same network without privacy afterwards, for comparison. Its measures say something of the
    records that no ε covers: the claim names them, and they must not be published as private. The network is deleted."""
    show_private: bool = False
    """Show training loss and training accuracy; the claim then lists them as not covered."""
    diagnose: str | None = None
    """Of every step into metrics.jsonl, with commas: cosines of updates; and, listed in the claim as not covered,
    lengths of gradients, classes of lots, substeps of the query projected."""
    trace: bool = False
    """Keep the network of every evaluation, for `sordino compare`; the claim covers them all."""
    evaluate_every: int | None = None
    """Steps between evaluations; None: twenty evaluations in all."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; None: twenty checkpoints in all."""
    physical_batch: int | None = None
    """Records processed at once; None: by the model's size."""
    expected_batch: float | None = None
    """The public number that every sum is divided by; None: rate × N, and the claim says that the step tells N."""
    strict: bool = False
    """Stop with an error where the run loses its guarantee; otherwise it warns and goes on without one."""
    isolate: bool = False
    """Load, collate and run every record by itself: slower, and the claim then rests on nothing tested."""
    keep_key: bool = False
    """Keep the noise key when the run is finished, for `sordino audit replay`; it is as secret as the data."""
    device: str | None = None
    """Where to compute: auto, cpu, or a device such as cuda:0; None: where the model is, which is the CPU for models
    that recipes name."""

    def __post_init__(self) -> None:
        """Checks the type and range of every option."""
        # Counts first, then other numbers, then what is true or false.
        for name, least in (("seed", 0), ("init_seed", 0), ("records", 1), ("physical_batch", 1)):
            if getattr(self, name) is not None:
                validate.count(name, getattr(self, name), least=least)
        for name in ("evaluate_every", "checkpoint_every", "batch_size"):
            if getattr(self, name) is not None:
                validate.count(name, getattr(self, name))
        if self.epochs is not None:
            validate.positive("epochs", self.epochs)
        # Refuses unknown diagnostics before any data is read.
        parse_diagnostics(self.diagnose)
        if self.expected_batch is not None:
            validate.positive("expected_batch", self.expected_batch)
        if self.baseline is not None:
            refuse_unknown_name(f"baseline={self.baseline!r}", str(self.baseline), (NONPRIVATE,))
        if self.baseline is not None and self.non_private:
            raise ValueError("baseline beside non_private: this run has no privacy itself; leave one of them out")
        if self.budget is not None:
            validate.positive("budget", self.budget)
        if self.device is not None:
            validate.instance("device", self.device, str, "the name of a device, such as auto, cpu or cuda:0")
        for name in ("non_private", "show_private", "trace", "isolate", "strict", "keep_key"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}={getattr(self, name)!r}: must be true or false")


@dataclass(frozen=True)
class Settings:
    """A recipe, how it is run, the parameters of its words, and the user's own data if there is any."""

    recipe: Recipe
    options: Options = field(default_factory=Options)
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Of its words."""
    own: OwnFile | GivenData | None = None
    """The user's own data, in place of the recipe's dataset."""

    @property
    def budget(self) -> float | None:
        """The ε that the run keeps to; None where it has no target."""
        return self.options.budget if self.options.budget is not None else self.recipe.epsilon

    def table(self) -> dict[str, Any]:
        """Returns the settings as TOML holds them."""
        table = {"recipe": self.recipe.table(), "options": vars(self.options), "parameters": dict(self.parameters)}
        return table | ({"data": self.own.table()} if isinstance(self.own, OwnFile) else {})


_OPTIONS = tuple(f.name for f in fields(Options))
SAME_CHOICE = (("batch_size", "rate"), ("epochs", "steps"))
"""Options, and the fields of a recipe that say the same in another way."""


def resolve_batch_and_epochs(settings: Settings, drawn: int) -> Settings:
    """Returns the settings of a run with a rate and a number of steps in place of a batch size and a number of epochs.

    Args:
        settings: of a run.
        drawn: how many records, or units, lots are drawn of.

    Privacy:
        A rate that is made of the number of records tells it. The claim of a run names the dataset size as not covered
        in any case, because sums are divided by the rate times this number.

    """
    recipe, options = settings.recipe, settings.options
    if options.batch_size is None and options.epochs is None:
        return settings
    # A batch size is a rate once the number of records is known.
    changes: dict[str, Any] = {}
    if options.batch_size is not None:
        if recipe.unit is not None:
            raise ValueError(
                f"batch_size={options.batch_size} beside unit={recipe.unit!r}: lots are of units; give the rate"
            )
        if options.batch_size > drawn:
            raise ValueError(f"batch_size={options.batch_size}: must be at most the number of records, {drawn}")
        changes["rate"] = options.batch_size / drawn
    # Epochs mean as many steps as draw about as many records, at whichever rate holds.
    if options.epochs is not None:
        rate = changes.get("rate", recipe.rate)
        changes["steps"] = max(1, math.ceil(options.epochs / rate - 1e-9))
    return replace(settings, recipe=recipe.but(**changes), options=replace(options, batch_size=None, epochs=None))


def write_class_weights(given: Any, names: Sequence[str] | None = None) -> Any:
    """Returns the setting of class weights as the text that a recipe holds; a text is returned as it is.

    People have them as torch's losses do, one number for each class, or by class. `names` are the declared classes, in
    whose order numbers stand; without them classes are numbered from 0.

    >>> write_class_weights([1.0, 20.0]), write_class_weights({"yes": 20}), write_class_weights("balanced")
    ('0=1.0,1=20.0', 'yes=20', 'balanced')
    """
    if hasattr(given, "tolist"):
        given = given.tolist()
    if isinstance(given, Mapping):
        return ",".join(f"{name}={weight}" for name, weight in given.items())
    if isinstance(given, list | tuple):
        if names is not None and len(names) != len(given):
            raise ValueError(f"class_weights: {len(given)} numbers for {len(names)} classes; give one for each")
        return write_class_weights(dict(zip(names or range(len(given)), given, strict=True)))
    return given


def make_settings(
    recipe: str | Recipe | None,
    given: Mapping[str, Any],
    parameters: Mapping[str, Any] | None = None,
    *,
    budget_stop: bool = False,
    own: OwnFile | GivenData | None = None,
) -> Settings:
    """Returns the settings of a run from a recipe, or its name, and fields of `Recipe` and `Options`; a field that is
    None is not given.

    >>> make_settings("mnist", {"epsilon": 2.0, "steps": 100, "seed": 1}).recipe.steps
    100
    """
    # Sort the fields into those of the recipe and those of the options; unknown names are refused.
    known_fields = (*_RECIPE, *_OPTIONS)
    given_fields = use_own_names({name: value for name, value in given.items() if value is not None}, known_fields)
    refuse_unknown_fields(given_fields, known_fields, "a field")
    if "class_weights" in given_fields:
        names = own.classes if isinstance(own, OwnFile) else None
        given_fields["class_weights"] = write_class_weights(given_fields["class_weights"], names)
    for name, other in SAME_CHOICE:
        if name in given_fields and other in given_fields:
            raise ValueError(f"{name}={given_fields[name]} beside {other}={given_fields[other]}: give one of the two")
    changes = {name: value for name, value in given_fields.items() if name in _RECIPE and name not in MEASURED}
    options = {name: value for name, value in given_fields.items() if name in _OPTIONS}
    # With `budget_stop`, ε is a limit and no calibration target.
    if budget_stop and "budget" not in options:
        if "epsilon" not in changes:
            raise ValueError("budget_stop: needs the budget; give epsilon")
        options["budget"] = changes.pop("epsilon") if "noise_multiplier" in changes else changes["epsilon"]
    # The non-private baseline has no ε.
    if options.get("non_private"):
        changes.pop("epsilon", None)
        changes["noise_multiplier"] = 0.0
    if changes.get("weigher") is not None:
        changes["weigher"] = own_code.with_absolute_path("clipping", changes["weigher"])
    chosen = _choose_recipe(recipe, changes) if own is None else _choose_own_recipe(recipe, own, changes)
    settings = Settings(chosen, Options(**options), _check_numbers(parameters or {}), own)
    words_of(settings.recipe)  # refuses a name that is not there
    return settings


@dataclass(frozen=True)
class Config:
    """The tables of a TOML file."""

    recipe: dict[str, Any]
    options: dict[str, Any]
    parameters: dict[str, Any]
    data: dict[str, Any]
    """Of own data, if it is about such."""
    resolved: dict[str, Any]
    """By the process that wrote it, if a run did."""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of `Recipe` and `Options`."""
        return {name: value for name, value in {**self.recipe, **self.options}.items() if name != _REPORT}

    @property
    def report(self) -> bool:
        """Whether the settings in a TOML file ask for a report at the end."""
        wanted = self.options.get(_REPORT, True)
        if not isinstance(wanted, bool):
            raise TypeError(f"report={wanted!r}: must be true or false")
        return wanted

    def to_settings(self) -> Settings:
        """Returns the settings of a run from its TOML file, in which every field was written down."""
        # Whether to write a report is a matter of the command, not of the run.
        options = {name: value for name, value in self.options.items() if name != _REPORT}
        refuse_unknown_fields(options, _OPTIONS, "an option")
        # The table [data] is there only in runs on own data.
        own = own_file_from_table(self.data) if self.data else None
        settings = Settings(from_table(self.recipe), Options(**options), _check_numbers(self.parameters), own)
        words_of(settings.recipe)
        return settings


def read_config(path: str | Path) -> Config:
    """Reads the settings in a TOML file that is flat or has the tables of a run's config.toml."""
    name = str(path)
    # The file may be anything: its size is limited, and every error becomes a message that names it.
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{name}: cannot be read ({error.strerror})") from error
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{name}: larger than a configuration can be")
    try:
        table = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 text (byte {error.start})") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{name}: not TOML ({error})") from error
    # Fields outside a table belong to the options or to the recipe, by their name.
    tables: dict[str, dict[str, Any]] = {key: {} for key in (*_TABLES, *_TABLES_OF_A_RUN)}
    for key, value in table.items():
        if isinstance(value, dict) != (key in _TABLES or key in _TABLES_OF_A_RUN):
            what = "no" if key in tables else "not a"
            raise ValueError(f"{name}: {key} is {what} table; there is {', '.join(_TABLES)}")
        if isinstance(value, dict):
            tables[key] = value
        elif key != "format":
            tables["options" if key in (*_OPTIONS, _REPORT) else "recipe"][key] = value
    return Config(tables["recipe"], tables["options"], tables["parameters"], tables["data"], tables["resolved"])


def _choose_recipe(recipe: str | Recipe | None, changes: Mapping[str, Any]) -> Recipe:
    """Returns the recipe of a run's settings, by object or by name, or built from the given fields alone, with the
    changes.
    """
    if isinstance(recipe, Recipe):
        return recipe.but(**changes)
    # Without a recipe the fields may name a known one, or be a recipe of the user's own.
    if recipe is None:
        if "name" not in changes:
            raise ValueError("no recipe: name one, as in `sordino train mnist`; `sordino recipes` lists them")
        if not isinstance(changes["name"], str):
            raise TypeError(f"name={changes['name']!r}: must be text")
        try:
            recipe = changes["name"]
            known_recipe = find(recipe)
        except ValueError:
            return from_table(changes)  # a recipe of the user's own
        return _tuned_nearest(known_recipe, recipe, changes)
    # Whatever is left must be the name of a known recipe.
    if not isinstance(recipe, str):
        raise TypeError(f"recipe={recipe!r}: must be a name or a Recipe")
    return _tuned_nearest(find(recipe), recipe, changes)


def _choose_own_recipe(recipe: str | Recipe | None, own: OwnFile | GivenData, changes: Mapping[str, Any]) -> Recipe:
    """Returns the recipe of the settings for a run on the user's own data, with the changes."""
    if isinstance(recipe, Recipe):
        return recipe.but(**changes)
    if recipe is not None:
        # A shell splits at blanks, so the second value of an option arrives as the name of a recipe.
        cure = "join several values of one option by commas" if "=" in str(recipe) else "leave one of them out"
        raise ValueError(f"recipe {recipe!r} and own data: a recipe has data of its own; {cure}")
    return recipe_for_own_data(own, changes)


def _tuned_nearest(default_recipe: Recipe, name: str, changes: Mapping[str, Any]) -> Recipe:
    """Returns the recipe of a run's settings that was tuned nearest to the ε asked for, with the changes."""
    # A recipe is tuned at several ε; the nearest one is the best start.
    epsilon = changes.get("epsilon")
    if epsilon is not None and default_recipe.epsilon is not None:
        default_recipe = find(name, validate.positive("epsilon", epsilon))
    other_changes = {key: value for key, value in changes.items() if (key, value) != ("name", name)}
    return default_recipe.but(**other_changes)


def _check_numbers(parameters: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): validate.number(f"parameter {name}", value) for name, value in parameters.items()}


HARMLESS = frozenset(
    (
        *MEASURED,
        "name",
        "tuned",
        "delta",
        "budget",
        "show_private",
        "trace",
        "strict",
        "keep_key",
        "report",
        "evaluate_every",
        "checkpoint_every",
    )
)
ADJUSTABLE = frozenset(
    (
        "device",
        "learning_rate",
        "momentum",
        "weight_decay",
        "penalty",
        "schedule",
        "schedule_steps",
        "schedule_per",
        "final_rate",
        "warm_up",
    )
)

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "recipe": {name: one.default for name, one in FIELDS.items() if one.default is not MISSING},
    "options": {one.name: one.default for one in fields(Options)},
}
"""By table, what a field is where a file does not name it."""

Table = Mapping[str, Mapping[str, Any]]


def find_changes(saved: Table, current: Table) -> tuple[str, str]:
    """Returns, in words, which changes of a run's settings would make another run of it, and which only forbid a
    replay.

    >>> find_changes({"recipe": {"learning_rate": 1.0, "bound": 1.0}}, {"recipe": {"learning_rate": 0.5, "bound": 1.0}})
    ('', 'learning_rate was 1.0, is 0.5')
    """
    forbidden_changes: list[str] = []
    replay_breaking_changes: list[str] = []
    for table in sorted({*saved, *current}):
        old, new, defaults = saved.get(table, {}), current.get(table, {}), _DEFAULTS.get(table, {})
        for name in sorted({*old, *new}):
            # A checkpoint of an earlier version lacks fields that came later. It trained as their defaults say, because
            # a new field's default is what was done before the field was there. Elsewhere a missing field is None.
            before, now = old.get(name, defaults.get(name)), new.get(name)
            if name not in HARMLESS and before != now:
                words = f"{name} was {before}, is {now}"
                (replay_breaking_changes if name in ADJUSTABLE else forbidden_changes).append(words)
    return ", ".join(forbidden_changes), ", ".join(replay_breaking_changes)
