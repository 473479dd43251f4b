"""The private gradient of a run by name: published variants, and the building blocks they are made of.

    --method automatic                                     a published variant
    --sampler sorted-top-k --clipping batch-median         lots of the longest gradients, clipped to their median
    --sampler threshold --clipping logarithmic             coins by a record's own length, a bound that falls in each pass

A method is declared where its noun is (`sordino/registry.py`); those that join nouns of several packages are declared here.
It is an alias of words, one for each part that is not DP-SGD's own. A word is a method that is one part, or one of DP-SGD's
own. The parameters of a word are given by name; where two words have one of the same name, with the part before it:
`--parameter clipping.threshold=2`. The recipe's field of the clipping rule has its former name, `weigher`, because stored
trainings are found by a digest of the fields; programs and the command line may say either.

**Privacy:** names decide nothing here. The parts are asked what they promise, and the event of a run is that of what they
release together; a combination that one of them cannot bound is refused, or ends in `NoGuarantee`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sordino import clipping, queries, sampling
from sordino.app.runs import own_code
from sordino.app.runs.recipe import PLAIN, Recipe
from sordino.app.suggestions import refuse_unknown_name
from sordino.matrix_factorization.strategies import Banded, Buffered, InverseBanded
from sordino.per_sample import JL, Captured, Loop, PerformanceOptions, Vmap
from sordino.queries.noisy_sum import NoisySum
from sordino.registry import PARTS, Declaration, Example, Method, NamedSampler, Parameters, RunNumbers
from sordino.release.correlated_noise import Correlated
from sordino.release.noise import Gaussian, Laplace

DECLARED = Declaration(
    (),
    methods=(
        Method(
            "jl",
            "norms estimated from random directions, and charged for how often they are short (Bu et al. 2021)",
            backend=lambda run, own: JL(int(own["projections"])),
            parameters=lambda run: {"projections": 50.0},
        ),
        Method(
            "dp-gd-laplace",
            "all records in every step, bounded in L1, with Laplace noise",
            words={"sampler": "full", "clipping": "flat-l1", "noise": "laplace"},
        ),
        Method(
            "dp-gd-laplace-exact",
            "all records in every step, measured and bounded in L1, with Laplace noise",
            words={"sampler": "full", "query": "l1-sum", "noise": "laplace"},
        ),
        # Correlated noise needs draws for which it has a price, so each of these names its sampler too.
        Method(
            "banded",
            "noise that cancels between steps, on cyclic draws: BandMF (Choquette-Choo et al. 2023)",
            noise=lambda run, own: Correlated(run.multiplier, Banded(int(own["bands"]))),
            words={"sampler": "cyclic-poisson"},
            parameters=lambda run: {"bands": 16.0},
        ),
        Method(
            "inverse-banded",
            "noise that cancels between steps, in a fixed order: BISR (Kalinin et al. 2025)",
            noise=lambda run, own: Correlated(run.multiplier, InverseBanded(int(own["bands"]))),
            words={"sampler": "fixed-order"},
            parameters=lambda run: {"bands": 16.0},
        ),
        Method(
            "buffered",
            "noise that cancels between steps, in a fixed order: BLT (McMahan et al. 2024)",
            noise=lambda run, own: Correlated(run.multiplier, Buffered.for_steps(int(own["buffers"]), run.steps)),
            words={"sampler": "fixed-order"},
            parameters=lambda run: {"buffers": 3.0},
        ),
    ),
    examples=(
        Example(
            "dp-gd-laplace",
            "DP gradient descent with Laplace noise: every record in every step, pure ε where δ = 0 is asked for",
            query="sd.NoisySum(sd.FlatL1(bound=1.0, dimension=41), sd.Laplace(multiplier=30.0))",
            sampler="sd.Full()",
        ),
    ),
)
"""Methods that join nouns of several packages."""

DECLARATIONS = (*clipping.DECLARATIONS, *queries.DECLARATIONS, *sampling.DECLARATIONS, DECLARED)
"""Of the whole library."""

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in sorted(
        (method for found in DECLARATIONS for method in found.methods),
        key=lambda method: (method.name != PLAIN, method.name),
    )
}


def method_by_name(name: str) -> Method:
    """Returns the published method, a variant of the private gradient, by its name.

    >>> method_by_name("automatic").about
    'every gradient normalised to the bound (Bu et al. 2022)'
    """
    refuse_unknown_name(f"method={name!r}", name, METHODS)
    return METHODS[name]


@dataclass(frozen=True)
class Word:
    """A building block by its name."""

    name: str
    about: str
    build: Callable[..., Any]
    """As `declared.Method` has it for this part."""
    parameters: Callable[[RunNumbers], dict[str, float]] = field(default=lambda run: {})


PLAIN_WORDS: Mapping[str, str] = {
    "sampler": "poisson",
    "clipping": "flat",
    "query": "noisy-sum",
    "noise": "gaussian",
    "backend": "captured",
}
"""DP-SGD's."""

FIELD_OF_PART: Mapping[str, str] = {"clipping": "weigher"}
"""The field of a recipe that has a part's word, where the two have different names."""

_DPSGD_WORDS: Mapping[str, tuple[Word, ...]] = {
    "sampler": (),
    "clipping": (),
    "query": (
        Word(
            "noisy-sum",
            "the weighted sum of a lot's gradients, plus noise: DP-SGD",
            lambda run, own, clipping, noise: NoisySum(clipping, noise),
        ),
    ),
    "noise": (
        Word("gaussian", "for a bound in L2", lambda run, own: Gaussian(run.multiplier)),
        Word("laplace", "for a bound in L1", lambda run, own: Laplace(run.multiplier)),
    ),
    "backend": (
        # Nothing is measured, so that a replay computes the same bits.
        Word("captured", "the fast engine", lambda run, own: Captured(PerformanceOptions(measure=False))),
        Word("vmap", "torch.func", lambda run, own: Vmap()),
        Word("loop", "one record at a time by autograd: slow, and the oracle", lambda run, own: Loop()),
    ),
}


def _word_of_sampler(one: NamedSampler) -> Word:
    """Returns a named sampler as a word, one of the building blocks that methods are made of."""
    return Word(
        one.name, one.about, lambda run, own: one.build(run.rate, run.records, **own), lambda run: dict(one.parameters)
    )


def _words_of_part(part: str) -> dict[str, Word]:
    """Returns all words for one part of a method, from the declarations of the library, with the one of
    DP-SGD first.
    """
    # Every declared method that is one part is a word for that part.
    words = list(_DPSGD_WORDS[part])
    for declared in DECLARATIONS:
        if part == "sampler":
            words += [_word_of_sampler(one) for one in declared.samplers]
        words += [
            Word(one.word or one.name, one.about, build, one.parameters)
            for one in declared.methods
            if (build := getattr(one, part)) is not None
        ]
    return {one.name: one for one in sorted(words, key=lambda one: (one.name != PLAIN_WORDS[part], one.name))}


WORDS: Mapping[str, Mapping[str, Word]] = {part: _words_of_part(part) for part in PARTS}
"""By part, DP-SGD's own first."""


def find_word(part: str, name: str) -> Word:
    """Returns the building block of methods of this name; a clipping rule may come from a user's file, as FILE.py:NAME.

    >>> find_word("clipping", "psac").name
    'psac'
    """
    if part == "clipping" and own_code.names_own_code(name):
        # Read once, because the file is run for that.
        defaults = own_code.rule_parameters(name)
        return Word(
            name,
            "a clipping rule of your own",
            lambda run, own: own_code.build_own_rule(name, run.bound, own),
            lambda run: dict(defaults),
        )
    more = ", or FILE.py:NAME" if part == "clipping" else ""
    refuse_unknown_name(f"{part}={name!r}", name, WORDS[part], more)
    return WORDS[part][name]


def words_of(recipe: Recipe) -> dict[str, str]:
    """Returns the word of every part of the private gradient: what the recipe says, else its method's word, else
    DP-SGD's.

    >>> from sordino.app.runs import find
    >>> words_of(find("mnist").but(method="sorted-top-k", weigher="psac"))
    {'sampler': 'sorted-top-k', 'clipping': 'psac', 'query': 'noisy-sum', 'noise': 'gaussian', 'backend': 'captured'}
    """
    # A method is a name for some of the words.
    method_words = {} if recipe.method == PLAIN else method_by_name(recipe.method).words_by_part()
    result = {}
    # A word beside a method may repeat what the method means, but never contradict it.
    for part in PARTS:
        given_word = getattr(recipe, FIELD_OF_PART.get(part, part))
        if given_word is not None:
            find_word(part, given_word)  # refuses a word that is not there
        if given_word is not None and method_words.get(part, given_word) != given_word:
            raise ValueError(
                f"{part}={given_word!r}: the method {recipe.method} means "
                f"{part}={method_words[part]!r}; "
                "leave it out, or leave out the method and say its parts"
            )
        result[part] = given_word or method_words.get(part) or PLAIN_WORDS[part]
    return result


def is_plain_dpsgd(recipe: Recipe) -> bool:
    """Returns whether a recipe's method is DP-SGD with Poisson sampling and exact gradients, so that its cost needs no
    data.
    """
    # Backends that compute exact norms cost the same; an estimating one does not.
    exact_backends = {"captured", "vmap", "loop"}
    return all(word == PLAIN_WORDS[part] or word in exact_backends for part, word in words_of(recipe).items())


def assign_parameters(words: Mapping[str, str], run: RunNumbers, given: Parameters) -> dict[str, dict[str, float]]:
    """Returns the parameters of each part of a method: the defaults, replaced by those that were given."""
    # Defaults first, by the public numbers of the run.
    parameters_by_part = {part: find_word(part, word).parameters(run) for part, word in words.items()}
    known_names = {part: frozenset(own) for part, own in parameters_by_part.items()}
    # A name is looked up in all parts; where two have it, the user must say which one is meant.
    for name, value in given.items():
        part, dot, name_in_part = name.partition(".")
        part = "clipping" if part == "weigher" else part
        owners = (
            [part]
            if dot and name_in_part in known_names.get(part, ())
            else [part for part in PARTS if name in known_names[part]]
        )
        if len(owners) > 1:
            raise ValueError(
                f"parameter {name!r}: {' and '.join(owners)} both have it; "
                f"say {' or '.join(f'{owner}.{name}' for owner in owners)}"
            )
        if not owners:
            there = (
                ", ".join(f"{name} ({words[part]})" for part in PARTS for name in sorted(known_names[part])) or "none"
            )
            raise ValueError(f"parameter {name!r}: not one of this method's; there is {there}")
        parameters_by_part[owners[0]][name_in_part if dot else name] = value
    return parameters_by_part
