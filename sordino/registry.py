"""The registry: how a clipping rule, a sampler or a query declares itself in its own file.

Each of them is a class in a file of its own. At the end of that file stands one object:

    DECLARED = Declaration((PSAC,), methods=(Method("psac", "normalised, but …", clipping=…,
    example="sd.PSAC(bound=1.0)"),))

The packages `clipping`, `sampling` and `queries` find the files that have one. The names in `sordino`, the methods and
the samplers of the command line, the scripts of `examples/variants.py` and the tests of documents and contracts follow
from what they find, so that a new building block is one new file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, TypeAlias

from sordino.former_names import former_field

if TYPE_CHECKING:
    from sordino.clipping.clipping_rule import ClippingRule
    from sordino.per_sample.protocol import Backend
    from sordino.queries.noisy_sum import Query
    from sordino.release.noise import Noise
    from sordino.sampling.sampler import Sampler
    from sordino.schedules import Schedule


@dataclass(frozen=True)
class RunNumbers:
    """The public numbers of a run, which are all that a method may look at when it is built."""

    bound: float
    multiplier: float
    rate: float
    steps: int
    records: int
    tensors: int
    """Trainable tensors of the model."""
    trainable_numbers: int
    """Trainable numbers in them."""
    learning_rate: Schedule
    names: tuple[str, ...] = ()
    """Names of the trainable tensors, in the order of `named_parameters()`."""

    @property
    def expected_lot(self) -> float:
        """Records in a lot, on average."""
        return self.rate * self.records

    @property
    def lot_size(self) -> int:
        """Records in a lot on average, as a whole number of at least 1."""
        return max(1, round(self.expected_lot))

    @property
    def lots_in_a_pass(self) -> int:
        """Lots until as many records were drawn as there are."""
        return max(1, round(1 / self.rate))


Parameters: TypeAlias = Mapping[str, float]
"""A method's own parameters, by name."""


PARTS = ("sampler", "clipping", "query", "noise", "backend")
"""What a way to train is put together from."""


@former_field("weigher", "clipping")
@dataclass(frozen=True)
class Method:
    """A way to train by name: `sordino train mnist --method psac`.

    What is not given is that of DP-SGD: flat clipping, Gaussian noise, Poisson's lots, exact gradients. A method that
    gives one part is that part's word too, to be put together with others: `--clipping psac --sampler shuffle`. One that
    only names several parts' words is an alias.
    """

    name: str
    about: str
    clipping: Callable[[RunNumbers, Parameters], ClippingRule] | None = None
    query: Callable[[RunNumbers, Parameters, ClippingRule, Noise], Query] | None = None
    """Builds the query where it is not `NoisySum`; it gets the clipping rule and the noise of the run."""
    sampler: Callable[[RunNumbers, Parameters], Sampler] | None = None
    """Builds the sampler, where the method is a way to draw lots."""
    backend: Callable[[RunNumbers, Parameters], Backend] | None = None
    """Builds the backend, where the method is a way to compute gradients."""
    noise: Callable[[RunNumbers, Parameters], Noise] | None = None
    """Builds the noise, where the method is another noise; its multiplier is one of the run's numbers."""
    word: str = ""
    """What its part is called, where that is not the method's name."""
    words: Mapping[str, str] = field(default_factory=dict)
    """The words of an alias's parts."""
    parameters: Callable[[RunNumbers], dict[str, float]] = field(default=lambda run: {})
    """Names and defaults."""
    example: str = ""
    """The class as it is written in a script; empty where a script would show nothing new."""

    def words_by_part(self) -> dict[str, str]:
        """Returns the words that the method stands for, by part."""
        given = {part: self.word or self.name for part in PARTS if getattr(self, part) is not None}
        return {**given, **self.words}


@dataclass(frozen=True)
class NamedSampler:
    """A way to draw lots that any method can have: `sordino train mnist --sampler shuffle`."""

    name: str
    about: str
    build: Callable[..., Sampler]
    """Builds a sampler from a rate, the public number of records, and its parameters by name."""
    example: str
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Names and defaults of what can be said beside the rate: `--parameter groups=32`."""


@dataclass(frozen=True)
class Example:
    """A script that shows something else than one class of a method; code as text."""

    name: str
    about: str
    query: str = "sd.NoisySum(sd.Flat(bound=1.0), sd.Gaussian(multiplier=1.1))"
    sampler: str = "sd.Poisson(rate=0.1)"


@dataclass(frozen=True)
class Declaration:
    """All that the rest of the library needs to know of the file of a clipping rule, a sampler or a query."""

    classes: tuple[type[Any], ...]
    """Classes that `sordino` and the package offer by name."""
    methods: tuple[Method, ...] = ()
    samplers: tuple[NamedSampler, ...] = ()
    examples: tuple[Example, ...] = ()
    """Examples besides those of its methods and samplers."""

    def list_examples(self) -> list[Example]:
        """Returns the examples of all that a file declares in the registry."""
        examples = [_example_of(method) for method in self.methods if method.example]
        examples += [Example(one.name, one.about, sampler=one.example) for one in self.samplers]
        return [*examples, *self.examples]


def _example_of(method: Method) -> Example:
    """Returns the registry's example of a declared method, as a sampler or a query."""
    if method.sampler is not None:
        return Example(method.name, method.about, sampler=method.example)
    if method.query is not None:
        return Example(method.name, method.about, query=method.example)
    return Example(method.name, method.about, query=f"sd.NoisySum({method.example}, sd.Gaussian(multiplier=1.1))")


def find_declarations(package: str, path: Iterable[str]) -> tuple[Declaration, ...]:
    """Returns what the files of a package declare, in the order of their names."""
    modules = (import_module(f"{package}.{found.name}") for found in iter_modules(path))
    return tuple(vars(module)["DECLARED"] for module in modules if "DECLARED" in vars(module))


def classes_by_name(declarations: Iterable[Declaration]) -> dict[str, type[Any]]:
    """Returns the classes that were declared, by name."""
    return {noun.__name__: noun for one in declarations for noun in one.classes}
