"""Finds which fields of a run's configuration changed, and whether the run may go on.

A field is one of three kinds:
  - it cannot change a sum, a draw or the noise (`HARMLESS`): the run goes on as if nothing had happened;
  - it changes the sums of the steps to come (`ADJUSTABLE`): the run may go on, but never by a replay;
  - anything else would make it another run, and is refused.

Privacy: a replay uses noise again, so every field counts that is not known to be harmless; a new field is of the third kind
until it is named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sordino.app.runs.recipe import MEASURED

HARMLESS = frozenset(
    (
        *MEASURED,
        "name",
        "tuned",
        "delta",
        "budget",
        "show_private",
        "trace",
        "keep_key",
        "report",
        "evaluate_every",
        "checkpoint_every",
    )
)
ADJUSTABLE = frozenset(
    (
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

Table = Mapping[str, Mapping[str, Any]]


def find_changes(saved: Table, current: Table) -> tuple[str, str]:
    """Returns, in words, the changes that would make it another run and those that only forbid a replay.

    >>> find_changes({"recipe": {"learning_rate": 1.0, "bound": 1.0}}, {"recipe": {"learning_rate": 0.5, "bound": 1.0}})
    ('', 'learning_rate was 1.0, is 0.5')
    """
    forbidden_changes: list[str] = []
    replay_breaking_changes: list[str] = []
    # Fields missing on one side count as None, so that a field added or removed is a change as well.
    for table in sorted({*saved, *current}):
        old, new = saved.get(table, {}), current.get(table, {})
        for field in sorted({*old, *new}):
            if field not in HARMLESS and old.get(field) != new.get(field):
                words = f"{field} was {old.get(field)}, is {new.get(field)}"
                (replay_breaking_changes if field in ADJUSTABLE else forbidden_changes).append(words)
    return ", ".join(forbidden_changes), ", ".join(replay_breaking_changes)


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Loads the saved moments of an optimizer but keeps its options as config.toml has them now."""
    options = [{name: group[name] for name in group if name != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, now in zip(optimizer.param_groups, options, strict=True):
        group.update(now)
