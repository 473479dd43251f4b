"""The plan of a fine-tuning: every choice of it, as a function of public numbers.

    head       a linear layer on the frozen encoder's vectors: few numbers, so little of a step is noise
    adapters   then adapters in the last layer, the weights of the mean and the head together, in larger lots
    choice     whether the adapters classify more of the texts correctly than the head before them, as one noisy count
    last head  then the head again, on the vectors that were chosen: adapted or frozen

All of them are one run in one ledger. The noise of the head's lots is `HEAD_NOISE` times what it would be if the head had
the whole budget, which leaves more than half of the budget to the adapters; their noise is what then meets ε. Where the
numbers say that the adapters' lots would be little but noise, the head has everything and `adapters` is None.

The learning rates are Adam's. Under noise Adam divides every coordinate by about the noise's deviation σC/L, so these
rates fit any ε. The numbers below were found on held-out training texts of R8 and 20 Newsgroups (`bench/minilm.py`). They
are for coordinates of size 1, as the texts' vectors have. Rows of a table, most of whose coordinates are 0, need weights
that are many times as large and are trained by `sordino train`, whose steps and rates fit them.

Privacy: number of records, classes, width, ε and δ decide, and nothing that is read off a record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sordino import validate
from sordino.accounting import PLD, calibrate
from sordino.events import Event, Gaussian, compose
from sordino.events.training import training_event
from sordino.finetuning.last_layer import PLACES
from sordino.optim.step_noise import StepNoise

BOUND = 1.0
"""The length that each record's gradient is clipped to; Adam divides its scale out again."""
HEAD_RATE, HEAD_STEPS, HEAD_LEARNING_RATE = 0.4, 200, 0.01
"""Of the head: in large lots, and half of the steps before the adapters and half after them."""
LAST_LEARNING_RATE = 5e-3
HEAD_NOISE = 1.45
CHOICE_SHARE = 0.02
"""The share of the budget that the choice has, in terms of 1/σ²."""
ADAPTER_RATE, ADAPTER_STEPS = 0.6, 30
RANKS = (4, 2)
"""Ranks of the adapters, the first of which promises enough is taken."""
ENOUGH_FOR_RANK = {4: 2.5, 2: 1.2}
"""The public signal to noise of the adapters' lots (`StepNoise`) from which on a rank is worth its noise."""
ADAPTED = ("query", "value", "narrower")
ADAPTER_LEARNING_RATES = {"mean.": 3e-2, "head.": 8e-3, "query.up.": 1e-2, "up.": 3e-3}
"""By a part of a parameter's name; the first that fits counts. Other parameters are frozen."""
DIRECTION_SCALE = 0.3
"""Of the fixed A: with less of it, less of a record's clipped gradient is the adapters' and more the head's."""


@dataclass(frozen=True)
class Phase:
    """Lots of one kind: what each of them trains, how many there are, and their noise."""

    rate: float
    """The chance of each record to be in a lot."""
    steps: int
    learning_rate: float
    multiplier: float
    """σ, of the noise on the sum of a lot."""
    trained: int
    """How many numbers are trained."""

    def step_noise(self, records: int) -> StepNoise:
        """Returns how much of a step of this phase will be noise."""
        lot = self.rate * records
        return StepNoise(self.multiplier * BOUND / lot, self.trained, BOUND, lot, self.steps)


@dataclass(frozen=True)
class Plan:
    """Every choice of a fine-tuning. `make_plan` makes one of public numbers; print it to read it.

    Examples:
        >>> plan = make_plan(7000, classes=2, width=384, epsilon=8.0, delta=1e-5)
        >>> plan.rank, plan.adapters.trained
        (4, 4613)
        >>> make_plan(500, classes=2, width=384, epsilon=1.0, delta=1e-5).adapters is None
        True

    """

    records: int
    epsilon: float
    delta: float
    head: Phase
    adapters: Phase | None = None
    last_head: Phase | None = None
    rank: int = 0
    choice_multiplier: float | None = None
    """σ of the noisy count by which the last head goes on from adapted or from frozen vectors; None without adapters."""

    @property
    def phases(self) -> dict[str, Phase]:
        """The phases that there are by name, in order."""
        named = {"head": self.head, "adapters": self.adapters, "last head": self.last_head}
        return {name: phase for name, phase in named.items() if phase is not None}

    def event(self) -> Event:
        """Returns what the whole fine-tuning does to the data."""
        return _compose_phases(self.phases.values(), self.choice_multiplier)

    def describe(self) -> str:
        """Returns the plan in lines: what each phase trains, and what share of its steps will be noise."""
        lines = [f"Fine-tuning of {self.records:,} texts within epsilon = {self.epsilon:g} at delta = {self.delta:.2g}"]
        for name, phase in self.phases.items():
            noise = phase.step_noise(self.records)
            lines.append(
                f"  {name:<10} {phase.trained:,} numbers, {phase.steps} lots of {noise.lot:,.0f}, noise multiplier "
                f"{phase.multiplier:.3g}; {noise.share:.0%} of a step will be noise, signal to noise over all steps "
                f"about {noise.signal_to_noise:.2g}"
            )
        if self.choice_multiplier is not None:
            share = self.choice_multiplier / self.records
            noisy = f"by a noisy count of correct texts (± {share:.2%})"
            lines.append(f"  choice     adapters or frozen vectors for the last head, {noisy}")
        if self.adapters is None:
            lines.append(
                "  no adapters: with so many texts at this epsilon their steps would be little but noise, or the encoder "
                "has no layer of BERT's shape"
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.describe()


def make_plan(records: int, *, classes: int, width: int, epsilon: float, delta: float, can_adapt: bool = True) -> Plan:
    """Returns the plan of a fine-tuning from public numbers.

    Args:
        records: how many texts there are, or a public figure near it.
        classes: how many classes there are.
        width: of the encoder's vectors.
        epsilon: what the whole may cost, at
        delta: this δ.
        can_adapt: whether the encoder's last layer can have adapters.

    """
    validate.count("records", records)
    validate.count("classes", classes, least=2)
    validate.count("width", width)
    validate.positive("epsilon", epsilon)
    validate.fraction("delta", delta)
    # The head alone, with the whole budget.
    in_head = classes * (width + 1)
    alone = calibrate(lambda sigma: training_event(HEAD_RATE, Gaussian(sigma), HEAD_STEPS), PLD(), epsilon, delta)
    head_only = Phase(HEAD_RATE, HEAD_STEPS, HEAD_LEARNING_RATE, alone, in_head)
    if not can_adapt:
        return Plan(records, epsilon, delta, head_only)
    # Adapters with what the head's lots leave of the budget, in the largest rank that promises enough.
    half = HEAD_STEPS // 2
    first = Phase(HEAD_RATE, half, HEAD_LEARNING_RATE, alone * HEAD_NOISE, in_head)
    last = Phase(HEAD_RATE, half, LAST_LEARNING_RATE, alone * HEAD_NOISE, in_head)
    # T lots of rate q cost about T q²/σ², as one release of the whole would with a multiplier of σ / (q √T); the choice has
    # a small share of that.
    choice = alone / (HEAD_RATE * math.sqrt(HEAD_STEPS * CHOICE_SHARE))

    def with_adapters(sigma: float, rank: int = RANKS[0]) -> Phase:
        trained = in_head + count_adapter_parameters(width, rank)
        return Phase(ADAPTER_RATE, ADAPTER_STEPS, ADAPTER_LEARNING_RATES["up."], sigma, trained)

    sigma = calibrate(lambda s: _compose_phases([first, with_adapters(s), last], choice), PLD(), epsilon, delta)
    for rank in RANKS:
        adapters = with_adapters(sigma, rank)
        if adapters.step_noise(records).signal_to_noise >= ENOUGH_FOR_RANK[rank]:
            return Plan(records, epsilon, delta, first, adapters, last, rank, choice)
    return Plan(records, epsilon, delta, head_only)


def count_adapter_parameters(width: int, rank: int) -> int:
    """Returns how many numbers a plan with adapters trains besides the head: B of each adapter, and the scores of the
    weighted mean.

    >>> count_adapter_parameters(384, 4)
    3843
    """
    ranks = [1 if name == "query" else rank for name in ADAPTED]  # all of them have `width` outputs
    return width * sum(ranks) + width + PLACES


def _compose_phases(phases: Iterable[Phase], choice_multiplier: float | None = None) -> Event:
    """Returns the event of several phases of lots on the same records, and of the choice between two of them."""
    lots = [training_event(phase.rate, Gaussian(phase.multiplier), phase.steps) for phase in phases]
    return compose(lots if choice_multiplier is None else [*lots, Gaussian(choice_multiplier)])
