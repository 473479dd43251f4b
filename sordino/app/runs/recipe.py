"""A recipe: every choice of a private training run, in four records: task, preparation, privacy, optimisation.

    recipe   = find("mnist", epsilon=3.0)             one of RECIPES, at this ε
    recipe   = recipe.but(steps=100)                  any field; what was measured is then forgotten
    recipe   = from_table(tomllib.load(file))         and back: recipe.table()
    prepared = prepare(recipe, sordino.app.data.load(recipe.dataset))     frozen features, cached on disk
    problem  = build(recipe, prepared, seed=0)        model, loss, optimizer, schedule of the learning rate
    σ        = noise_multiplier(recipe, prepared)     calibrated with PLD so that all of the run fits ε
    event(recipe, σ, prepared)                        what the whole run is going to release, by its own method

`prepare` and `build` touch no label and release nothing. On frozen features the model begins with a `Normalise` layer,
which divides channels by their typical sizes, public numbers. With `normalise` set,
`standardise(problem.model, prepared.train, multiplier, ledger, rng)` fits it once, before the first step, and charges the
ledger; with `pca`, `project` does the same for the projection that follows it. A run's own query is made from `method`,
`bound` and the multiplier by whoever runs it; `tell_noise` then tells it to an optimizer that wants to know.

**Privacy:** feature maps are frozen and act on each record alone, so they cost nothing. Fields are public; how they
were found is said in `tuned`, because tuning on the private data is a release that no ledger here has seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from sordino import validate
from sordino.app.suggestions import did_you_mean, refuse_unknown_fields, refuse_unknown_name

FEATURES = (
    "none",
    "scattering",
    "scattering-folded",
    "scattering-log",
    "efficientnet-lite0",
    "efficientnet-lite0-maps",
    "minilm",
    "tokens",
    "words",
)
OPTIMIZERS = ("sgd", "adagrad", "adam", "adamw", "adam-corrected")
SCHEDULES = ("constant", "linear", "cosine", "rise-and-fall")
PER = ("step", "epoch")
PLAIN = "dpsgd"
"""The method of a recipe that names none."""

_CHOICES = {"features": FEATURES, "optimizer": OPTIMIZERS, "schedule": SCHEDULES, "schedule_per": PER}
_NOT_EMPTY = ("name", "dataset", "model", "method")


@dataclass(frozen=True, kw_only=True)
class LearningTask:
    """What is learnt: the records, their features, the model and its loss."""

    dataset: str
    """Of `sordino data list`; or digits or spiral; or line, plane or cloud, which are numbers and have no classes."""
    features: str
    """A frozen feature map: none, scattering, scattering-folded, scattering-log, efficientnet-lite0; of texts minilm,
    tokens, words. efficientnet-lite0-maps is for the model efficientnet-end."""
    pixel_mean: float | tuple[float, ...] = 0.5
    """Without a feature map, pixels in [0, 1] become (x − pixel_mean) / pixel_deviation: public numbers, one for all
    channels or one for each."""
    pixel_deviation: float | tuple[float, ...] = 0.5
    """Without a feature map, centred pixels are divided by this."""
    model: str
    """A model of sordino.nn by its name; or FILE.py:FUNCTION, called with a record's shape and the number of classes."""
    widths: tuple[int, ...] | None = None
    """Of the hidden layers, in place of the model's own: of mlp, mnist-net and hidden-1000."""
    loss: str = "cross-entropy"
    """cross-entropy, of classes; squared or absolute, of numbers; hill or valley, landscapes for the model point."""
    class_weights: str | None = None
    """How much a record of each class counts in the loss: no=1,yes=20, which is public; or balanced, by a private histogram
    of the classes. None: all the same."""

    def __post_init__(self) -> None:
        """Checks every field by its type and range."""
        _convert_fields(self)
        for each in _as_tuple(self.pixel_deviation):
            validate.positive("pixel_deviation", each)
        for width in self.widths or ():
            validate.count("widths", width)


BALANCED = "balanced"
"""Class weights that make all classes count the same, from a private histogram of the classes."""


@dataclass(frozen=True, kw_only=True)
class PreparationPlan:
    """What is released of the records before the first step; each multiplier is None where nothing is."""

    ranges: float | None = None
    """Of own data: noise multiplier of the private bounds of columns that were given none."""
    normalise: float | None = None
    """Noise multiplier of the private means and variances of the features' channels; None: they stay as they are."""
    pca: float | None = None
    """Noise multiplier of a private PCA of the features, the directions of which are then fixed; None: no PCA."""
    histogram: float | None = None
    """Noise multiplier of the private histogram of the classes, for balanced class weights; None: no histogram."""
    components: int = 60
    """How many principal directions the model sees, if there is a PCA."""

    def __post_init__(self) -> None:
        """Checks every field by its type and range."""
        _convert_fields(self)
        for name in ("ranges", "normalise", "pca", "histogram"):
            if getattr(self, name) is not None:
                validate.positive(name, getattr(self, name))
        validate.count("components", self.components)


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """How records are drawn and protected, and at which price."""

    rate: float
    """Poisson rate: the chance of each record, or unit, to be in a lot."""
    bound: float
    """Clip bound on each record's gradient."""
    epsilon: float | None = None
    """The whole run's, everything that touches the data counted; the noise is calibrated to it."""
    noise_multiplier: float | None = None
    """Instead of epsilon; 0 trains without noise, and without a guarantee."""
    delta: float
    """The δ of the claim."""
    method: str = "dpsgd"
    """The private gradient, a name for words: `sordino recipes --methods` lists them. Or say the words:"""
    sampler: str | None = None
    """How lots are drawn; `sordino recipes --words` lists these and the next. None: the method's own."""
    weigher: str | None = None
    """How much each record's gradient counts: a word, or a clipping rule of your own as FILE.py:NAME. None: the method's
    own."""
    query: str | None = None
    """What is asked of each lot. None: the method's own."""
    noise: str | None = None
    """gaussian or laplace; or banded, inverse-banded or buffered, which cancel between steps and need cyclic-poisson or
    fixed-order draws. None: the method's own."""
    backend: str | None = None
    """How per-sample gradients are computed. None: the method's own."""
    unit: str | None = None
    """What is drawn, clipped and claimed in place of a record: a column of own data, or speaker of friends."""
    unit_records: int = 16
    """At most so many records of a unit are in a lot, others each time."""

    def __post_init__(self) -> None:
        """Checks every field, and that exactly one of epsilon and noise_multiplier is given."""
        # Fields are converted first, so that the checks see values of the declared types.
        _convert_fields(self)
        validate.rate("rate", self.rate)
        validate.fraction("delta", self.delta)
        validate.positive("bound", self.bound)
        validate.count("unit_records", self.unit_records)
        # Each of the two follows from the other, so both could contradict each other and neither leaves the noise open.
        if (self.epsilon is None) == (self.noise_multiplier is None):
            given = "both" if self.epsilon is not None else "neither"
            raise ValueError(f"epsilon and noise_multiplier: {given} given; need one, the other follows from it")
        if self.epsilon is not None:
            validate.positive("epsilon", self.epsilon)
        # Zero is allowed: it is training without noise, of which no guarantee is claimed.
        if self.noise_multiplier is not None:
            validate.non_negative("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """How released gradients become steps; nothing here costs privacy."""

    steps: int
    """Lots to draw."""
    optimizer: str = "sgd"
    """sgd, adagrad, adam, adamw or adam-corrected."""
    learning_rate: float
    """Of the optimizer."""
    momentum: float = 0.0
    """SGD's; Adam's first moment if it is not 0; AdaGrad has none."""
    weight_decay: float = 0.0
    """λ of the optimizer, after the noise, which costs no privacy: sgd, adagrad and adam add λθ to the released gradient,
    as in torch; adamw and adam-corrected decay apart from it, θ ← (1 − ηλ)θ."""
    penalty: float = 0.0
    """λ of an L2 penalty inside each record's gradient, g + λθ, before it is clipped."""
    schedule: str = "constant"
    """Of the learning rate: constant; linear or cosine, from learning_rate down to final_rate; rise-and-fall, from
    final_rate up to learning_rate over the steps of warm_up (half of them, if it is 0) and down again."""
    schedule_steps: int | None = None
    """Steps until final_rate is reached, after which the rate stays there. None: all of the run."""
    schedule_per: str = "step"
    """step or epoch: whether the rate changes at every step, or at the beginning of every pass over the data."""
    final_rate: float = 0.0
    """Where linear, cosine and rise-and-fall end."""
    warm_up: int = 0
    """Steps over which the rate rises from nearly 0, before the schedule begins."""
    ema: float = 0.0
    """Decay of an average of the parameters, which is then what is tested; 0 tests the last ones."""

    def __post_init__(self) -> None:
        """Checks every field by its type and range."""
        _convert_fields(self)
        validate.count("steps", self.steps)
        validate.positive("learning_rate", self.learning_rate)
        # Zero switches each of these off.
        for name in ("weight_decay", "penalty", "final_rate"):
            validate.non_negative(name, getattr(self, name))
        # At 1 the average would stand still, and momentum would add up without end.
        for name in ("momentum", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r}: must lie in [0, 1)")
        validate.count("warm_up", self.warm_up, least=0)
        if self.schedule_steps is not None:
            validate.count("schedule_steps", self.schedule_steps)


@dataclass(frozen=True, kw_only=True)
class MeasuredFigures:
    """What was measured of a recipe, apart from its settings."""

    accuracy: float | None = None
    """Measured: mean test accuracy over `seeds` runs, as a fraction."""
    spread: float | None = None
    """Measured: standard deviation over the seeds."""
    seeds: int | None = None
    seconds: float | None = None
    """Measured: CPU time of one run on one core, features cached."""

    def __post_init__(self) -> None:
        """Checks every field by its type."""
        _convert_fields(self)


@dataclass(frozen=True, init=False, kw_only=True)
class Recipe:
    """A training run, before it is run.

    It is written flat, `Recipe(name="mine", dataset="mnist", rate=0.01, …)`, as in a file or on the command line; every
    field goes to the record that holds it. It is read either way: `recipe.rate` is `recipe.privacy.rate`.

    Examples:
        >>> from sordino.app.runs import find
        >>> recipe = find("mnist")
        >>> recipe.dataset, recipe.epsilon, recipe.optimisation.momentum
        ('mnist', 3.0, 0.9)

    """

    name: str
    """Of the recipe; give one of your own when you change everything."""
    task: LearningTask
    preparation: PreparationPlan
    privacy: PrivacyPlan
    optimisation: Optimisation
    tuned: str = ""
    """How the fields were found."""
    measured: MeasuredFigures

    def __init__(self, *, name: str, tuned: str = "", **given: Any) -> None:
        """Sorts flat fields into their records; a record that is given is taken, and flat fields replace its own.

        Raises:
            TypeError: if a field is missing, unknown, or of the wrong type.
            ValueError: if a field is out of range, or fields do not go together.

        """
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "tuned", tuned)
        for record, kind in _RECORDS.items():
            # A flat field wins over the same field of a record that was given, as in replace(recipe, rate=0.1).
            own = {field.name: given.pop(field.name) for field in fields(kind) if field.name in given}
            former = given.pop(record, None)
            object.__setattr__(self, record, kind(**own) if former is None else replace(former, **own))
        if given:
            close = did_you_mean(next(iter(given)), FIELDS)
            raise TypeError(f"{', '.join(given)}: not a field of a recipe; there is {', '.join(FIELDS)}{close}")
        _convert_fields(self, only=("name", "tuned"))
        # The fields of different records that concern each other.
        plan = self.preparation
        before = (plan.ranges, plan.normalise, plan.pca, plan.histogram)
        if (self.task.class_weights == BALANCED) != (plan.histogram is not None):
            raise ValueError(
                f"class_weights={self.task.class_weights!r} with histogram={plan.histogram}: balanced weights come from a "
                "private histogram of the classes, and nothing else does; give both, as in histogram=20"
            )
        if self.privacy.unit is not None and any(one is not None for one in before):
            raise ValueError(
                f"unit={self.privacy.unit!r}: ranges, normalise, pca and histogram are bounded by record, not by unit; "
                "leave them out"
            )

    def __getattr__(self, name: str) -> Any:
        """Returns a field of one of the records."""
        if name not in _RECORD_OF:
            raise AttributeError(f"a recipe has no field {name!r}")
        return getattr(getattr(self, _RECORD_OF[name]), name)

    def describe(self) -> str:
        """Returns the recipe's private gradient in words: the method, and the words given besides it.

        >>> from sordino.app.runs import find
        >>> find("mnist").but(sampler="sorted-top-k", weigher="batch-median").describe()
        'sorted-top-k × batch-median'
        """
        return describe_gradient(vars(self.privacy))

    def but(self, **changes: Any) -> Recipe:
        """Returns another recipe with some fields changed; unless nothing changes, its measured figures are dropped.

        Giving epsilon drops noise_multiplier and the other way round.
        """
        refuse_unknown_fields(changes, FIELDS, "a field of a recipe")
        # ε and σ decide each other, so giving one drops the other.
        for given, other in (("epsilon", "noise_multiplier"), ("noise_multiplier", "epsilon")):
            if changes.get(given) is not None and other not in changes:
                changes[other] = None
        # Measured figures belong to the exact recipe that was measured.
        changed = replace(self, **changes)
        if changed == self or any(name in changes for name in MEASURED):
            return changed
        return replace(changed, measured=MeasuredFigures())

    def flat_fields(self) -> dict[str, Any]:
        """Returns all fields by name, whichever record holds them."""
        return {name: getattr(self, name) for name in FIELDS}

    def table(self) -> dict[str, Any]:
        """Returns the fields of the recipe that are set, as TOML and JSON can hold them."""
        # TOML has neither null nor tuples.
        given = {name: value for name, value in self.flat_fields().items() if value is not None}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


_RECORDS: Mapping[str, Any] = {
    "task": LearningTask,
    "preparation": PreparationPlan,
    "privacy": PrivacyPlan,
    "optimisation": Optimisation,
    "measured": MeasuredFigures,
}
_RECORD_OF: Mapping[str, str] = {field.name: record for record, kind in _RECORDS.items() for field in fields(kind)}
FIELDS: Mapping[str, Field[Any]] = {
    field.name: field
    for kind in (Recipe, *_RECORDS.values())
    for field in fields(kind)
    if kind is not Recipe or field.name not in _RECORDS
}
"""Every flat field of a recipe by name: the order of a file and of the command line."""
SETTING_RECORDS = (LearningTask, PreparationPlan, PrivacyPlan, Optimisation)
"""The records that hold what a run is asked for."""
MEASURED = tuple(field.name for field in fields(MeasuredFigures))


def describe_gradient(table: Mapping[str, Any]) -> str:
    """Returns the private gradient that a recipe's table asks for, in words."""
    # Words of one's own stand alone beside plain DP-SGD, and after the name of any other method.
    names = ("sampler", "weigher", "query", "noise", "backend")
    given_words = [_without_folder(str(table[name])) for name in names if table.get(name)]
    method = str(table.get("method") or "unknown")
    return " × ".join(given_words if given_words and method == PLAIN else [method, *given_words])


def _without_folder(word: str) -> str:
    """Returns the name of a user's own code as FILE.py:NAME without the folders before it; other words as they are.

    >>> _without_folder("/home/me/rules.py:Smooth"), _without_folder("automatic")
    ('rules.py:Smooth', 'automatic')
    """
    file, mark, name = word.partition(".py:")
    return f"{Path(file).name}{mark}{name}" if mark else word


def from_table(table: Mapping[str, Any]) -> Recipe:
    """Creates a recipe from the fields of a TOML or JSON file; unknown, missing and misspelt fields are refused.

    >>> from sordino.app.runs import RECIPES, from_table
    >>> all(from_table(recipe.table()) == recipe for recipe in RECIPES)
    True
    """
    if not isinstance(table, Mapping):
        raise TypeError(f"a recipe of type {type(table).__name__}: need a table of fields")
    refuse_unknown_fields(table, FIELDS, "a field of a recipe")
    # A recipe of the user's own needs every field that has no default.
    missing = [name for name, field in FIELDS.items() if field.default is MISSING and name not in table]
    if missing:
        raise ValueError(f"the recipe lacks {', '.join(missing)}: begin from a known one, or give all of its fields")
    return Recipe(**dict(table))


def _convert_fields(record: Any, only: tuple[str, ...] | None = None) -> None:
    """Converts the fields of one of a recipe's records to their types, in place, and refuses a name that is not there.

    A file may hold 1 for 1.0, but no boolean for a number.
    """
    # Every field is converted by its annotation, so that a file, a flag and a program are checked alike.
    kinds = get_type_hints(type(record))
    for name in only or kinds:
        value = _convert_to_kind(name, getattr(record, name), kinds[name])
        if name in _NOT_EMPTY and not value.strip():
            raise ValueError(f"{name}='': must not be empty")
        if name in _CHOICES:
            refuse_unknown_name(f"{name}={value!r}", value, _CHOICES[name])
        object.__setattr__(record, name, value)


def _convert_to_kind(name: str, value: object, kind: Any) -> Any:
    """Returns the value of a recipe's field as the field's type; a whole number is accepted as a float, a boolean is
    not.
    """
    # None and text are taken as they are; what is left is numbers and rows of numbers.
    allowed = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if value is None and NoneType in allowed:
        return None
    if str in allowed:
        if not isinstance(value, str):
            raise TypeError(f"{name}={value!r}: must be text, not {type(value).__name__}")
        return value
    rows = [one for one in allowed if get_origin(one) is tuple]
    if rows and isinstance(value, list | tuple):
        if not value:
            raise ValueError(f"{name}={value!r}: must not be empty")
        return tuple(_convert_to_kind(name, one, get_args(rows[0])[0]) for one in value)
    # A whole number is read as such before a float, and a single number may stand for a row of one.
    if int in allowed:
        return validate.count(name, value, least=0)
    if rows and float not in allowed:
        return (_convert_to_kind(name, value, get_args(rows[0])[0]),)
    return validate.number(name, value)


def _as_tuple(value: float | tuple[float, ...]) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)
