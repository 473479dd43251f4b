"""Every experiment by its id, found in the files of `experiments/`."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module

import sordino_lab.experiments as package
from sordino_lab.experiment import Experiment
from sordino_lab.order import ORDER


@cache
def experiments() -> Mapping[str, Experiment]:
    """All of them, in the order of the papers."""
    found: dict[str, Experiment] = {}
    for module in pkgutil.iter_modules(package.__path__):
        one = getattr(import_module(f"{package.__name__}.{module.name}"), "EXPERIMENT", None)
        if isinstance(one, Experiment):
            if one.id.replace("-", "_") != module.name:
                raise ValueError(f"experiments/{module.name}.py: its id is {one.id!r}; need the name of the file")
            found[one.id] = one
    places = {name: number for number, name in enumerate(ORDER)}
    return dict(sorted(found.items(), key=lambda item: (places.get(item[0], len(places)), item[0])))


def experiment(name: str) -> Experiment:
    """The experiment of this id."""
    known = experiments()
    if name not in known:
        near = [one for one in known if name in one or one.startswith(name[:4])]
        raise ValueError(
            f"{name!r}: no experiment; {'near it: ' + ', '.join(near) if near else 'see `sordino lab list`'}"
        )
    return known[name]


def chosen(names: Sequence[str], *, everything: bool = False) -> list[Experiment]:
    """Experiments by id, by source (`000` … `004`), or `seconds`: all that take seconds."""
    known = list(experiments().values())
    if everything:
        return known
    found: dict[str, Experiment] = {}
    for name in names:
        if name == "seconds":
            some = [one for one in known if one.of_seconds]
        elif any(one.source == name for one in known):
            some = [one for one in known if one.source == name]
        else:
            some = [experiment(name)]
        found.update({one.id: one for one in some})
    if not found:
        raise ValueError("nothing named: give ids, a source such as 000, `seconds`, or --all; see `sordino lab list`")
    return list(found.values())
