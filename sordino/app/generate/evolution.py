"""Private Evolution for tables (Lin et al. 2023, arXiv:2305.15560): rows that records vote for have children.

    population ← random rows of the declared columns
    each round:  every record votes for the row that is nearest to it
                 h ← votes for each row + noise                                     one release
                 rows are drawn in proportion to max(0, h − threshold), each with a changed copy

No model is trained. The records are asked one question a round, by `sd.ask`.

Privacy: a record gives one vote a round, so one record more or less moves the histogram by 1. The rounds are one Gaussian
release each, composed by the ledger. Rows, and what becomes of them, are post-processing of the noisy histograms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

import sordino as sd
from sordino.accounting import PLD, calibrate
from sordino.app.generate.row_tokens import RowTokens
from sordino.events import Gaussian, Repeat
from sordino.release.noise import Noise
from sordino.statistics.clipped_sum import ClippedSum

_THRESHOLD = 1.0
"""In standard deviations of the noise: fewer votes than that are taken for none."""
_RANGE = 1000
"""How far apart the ends of a column of numbers are."""
_NAME = 707
"""Of a name's own coordinate: two names are as far apart as the ends of a range, 707 · √2."""


@dataclass(frozen=True)
class EvolutionPlan:
    """How many rows there are, how often they are voted on, and how much children differ."""

    epsilon: float
    delta: float = 1e-5
    population: int = 1500
    rounds: int = 20
    change: float = 0.3
    """The share of cells that a child changes in the first round; it falls to a tenth of that."""


@dataclass(frozen=True, eq=False)
class Votes:
    """The statistic of one round: how many records are nearest to each row of the population."""

    population: Tensor
    """(rows, features), by `RowDistance`."""
    noise: Noise

    @property
    def sums(self) -> Sequence[ClippedSum]:
        """One sum: each record's vote is a vector with a single 1."""
        return (ClippedSum(1.0, self.noise, self.vote),)

    def vote(self, records: Tensor) -> Tensor:
        """Returns each record's vote in a round of Private Evolution, (B, rows): 1 at the row that is nearest to it."""
        # ‖x − y‖² − ‖x‖² = ‖y‖² − 2 x·y: whole numbers, so that sums are exact in any order and a record's vote does not
        # depend on the batch it is in. Of several rows that are equally near, the first one has the vote.
        rows = self.population.to(records)
        nearest = ((rows * rows).sum(1) - 2 * records @ rows.T).argmin(1)
        return functional.one_hot(nearest, len(self.population)).to(records)

    def value(self, noisy: Sequence[Tensor], records: Callable[[], float]) -> Tensor:
        """Returns the noisy histogram."""
        return noisy[0]


class RowDistance:
    """Rows as vectors of whole numbers whose distances say how unlike two rows are: names differ or not, numbers by how
    far.
    """

    def __init__(self, tokens: RowTokens) -> None:
        self._columns = tokens.columns

    def features(self, rows: Tensor) -> Tensor:
        """Returns rows of tokens as vectors, (N, features), by whose distances records vote in Private Evolution."""
        parts = []
        for place, column in enumerate(self._columns):
            cells = rows[:, place]
            if column.categories:
                parts.append(_NAME * functional.one_hot(cells, column.count).double())
            else:
                parts.append((_RANGE * cells.double() / max(1, column.count - 1)).round()[:, None])
        return torch.cat(parts, dim=1)


def evolve_rows(
    rows: Tensor,
    tokens: RowTokens,
    plan: EvolutionPlan,
    count: int,
    ledger: sd.Ledger,
    generator: torch.Generator,
    *,
    seed: int | None = None,
    show_round: Callable[[int], None] = lambda number: None,
) -> Tensor:
    """Returns `count` synthetic rows of tokens by Private Evolution; the ledger has one release for each round."""
    # All rounds have the same noise, found so that together they meet ε.
    multiplier = calibrate(lambda sigma: Repeat(Gaussian(sigma), plan.rounds), PLD(), plan.epsilon, plan.delta)
    noise = sd.Gaussian(multiplier)
    distance = RowDistance(tokens)
    records = distance.features(rows)
    population = _draw_even_rows(tokens, plan.population, generator)
    votes = torch.ones(plan.population)
    for number in range(1, plan.rounds + 1):
        # One noisy histogram is all that a round learns of the records.
        asked = Votes(distance.features(population), noise)
        votes = sd.ask(asked, records, ledger=ledger, seed=None if seed is None else seed + number).float()
        votes = torch.where(votes > _THRESHOLD * multiplier, votes, 0.0)
        if not bool(votes.sum() > 0):
            votes = torch.ones_like(votes)  # noise alone: every row is as good as another
        show_round(number)
        if number == plan.rounds:
            break
        # Half of the next population are the rows with many votes, the other half their changed copies.
        parents = population[torch.multinomial(votes, plan.population, replacement=True, generator=generator)]
        kept = plan.population // 2
        share = plan.change * max(0.1, 1 - (number - 1) / plan.rounds)
        children = _change_cells(parents[kept:], parents, tokens, share, generator)
        population = torch.cat([parents[:kept], children])
    return population[torch.multinomial(votes, count, replacement=True, generator=generator)]


def _draw_even_rows(tokens: RowTokens, count: int, generator: torch.Generator) -> Tensor:
    """Returns rows whose cells are drawn evenly from the declared values."""
    columns = [torch.randint(0, many, (count,), generator=generator) for many in tokens.counts]
    return torch.stack(columns, dim=1)


def _change_cells(
    children: Tensor, parents: Tensor, tokens: RowTokens, share: float, generator: torch.Generator
) -> Tensor:
    """Returns the children in a round of Private Evolution with some cells changed: most taken from other parents, some
    drawn evenly.
    """
    changes = torch.rand(children.shape, generator=generator) < share
    others = parents[torch.randint(0, len(parents), (len(children),), generator=generator)]
    fresh = _draw_even_rows(tokens, len(children), generator)
    is_fresh = torch.rand(children.shape, generator=generator) < 0.3
    return torch.where(changes, torch.where(is_fresh, fresh, others), children)
