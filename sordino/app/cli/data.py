"""`sordino data`: fetches, lists and checks data sets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from sordino.app.data import NAMES, NotFetched, cache, data_catalogue
from sordino.app.data import check as checked
from sordino.app.data import fetch as fetched
from sordino.app.data import files as filed


@dataclass(frozen=True)
class Command:
    """Get, list and check data sets."""

    action: Annotated[Literal["fetch", "list", "check"], tyro.conf.Positional]
    """What to do."""
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Which data sets; all of them if none is named."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Carries out the action; returns 1 if a data set is unavailable or damaged."""
        names = self.names or (NAMES if self.action == "fetch" else (*NAMES, *filed.FILES))
        for name in names:
            if name not in filed.FILES and name not in NAMES:
                raise ValueError(f"data set {name!r}: there is {', '.join((*NAMES, *filed.FILES))}")
        rows = {name: self._describe_data_set(name) for name in names}
        if self.json:
            print(json.dumps(rows))
        else:
            for name, (state, about) in rows.items():
                print(f"{name:<14} {state:<11} {about}")
        bad = {"unavailable", "damaged"}
        return 1 if any(state in bad for state, _ in rows.values()) else 0

    def _describe_data_set(self, name: str) -> tuple[str, str]:
        return self._describe_files(name) if name in filed.FILES else self._describe_images(name)

    def _describe_files(self, name: str) -> tuple[str, str]:
        """Returns the state and the description of a data set of raw files."""
        entry = filed.find_files(name)
        about = f"{entry.about}; licence: {entry.licence}"
        if self.action == "fetch":
            try:
                filed.fetch_files(name, lambda text: None if self.json else print(text))
            except NotFetched as error:
                return "unavailable", str(error)
            return "fetched", about
        state = filed.cache_state(name)
        return ("cached" if state == "good" and self.action == "list" else state), about

    def _describe_images(self, name: str) -> tuple[str, str]:
        """Returns the state and the description of a data set of images."""
        entry = data_catalogue.find_entry(name)
        about = f"{entry.sizes[0]:,} + {entry.sizes[1]:,} images {'×'.join(map(str, entry.shape))}; {entry.about}"
        if self.action == "fetch":
            try:
                fetched(name, lambda text: None if self.json else print(text))
            except NotFetched as error:
                return "unavailable", str(error)
            return "fetched", about
        if self.action == "check":
            try:
                return ("good" if checked(name) else "not cached"), about
            except ValueError as error:
                return "damaged", f"{error}; get it again with `sordino data fetch {name}`"
        return ("cached" if cache.find_arrays(entry) is not None else "not cached"), about
