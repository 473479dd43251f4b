"""Reads texts with labels from the files of Orange.

A file has three heading lines, then a label and a text on each line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sordino.app.data.files import files_folder

_HEADING = 3

_PARTS = {
    "r8": ("reuters-r8-train.tab", "reuters-r8-test.tab"),
    "20news": ("20newsgroups-train.tab", "20newsgroups-test.tab"),
}


@dataclass(frozen=True)
class Texts:
    """A data set of texts; the names of the classes are public."""

    name: str
    train: list[str]
    train_labels: list[int]
    test: list[str]
    test_labels: list[int]
    classes: tuple[str, ...]


def load_texts(name: str) -> Texts:
    """Returns a data set of labelled texts by name; fetches it if necessary."""
    if name not in _PARTS:
        raise ValueError(f"texts {name!r}: there is {', '.join(_PARTS)}")
    place = files_folder(name)
    (train, labels), (test, test_labels) = (read_tab(place / file) for file in _PARTS[name])
    classes = tuple(sorted(set(labels)))
    places = {label: i for i, label in enumerate(classes)}
    return Texts(name, train, [places[one] for one in labels], test, [places[one] for one in test_labels], classes)


def read_tab(path: Path) -> tuple[list[str], list[str]]:
    """Returns texts and labels of a file of Orange with labelled texts; a line without a text is refused by
    its number.
    """
    texts, labels = [], []
    # Lines are split at the newline alone: `splitlines` would also split texts at separators inside them.
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if number <= _HEADING or not line:
            continue
        label, tab, text = line.partition("\t")
        if not tab:
            # A line of nothing but spaces is no record; one with a word and no tab is a damaged one.
            if not text and not label.strip():
                continue
            raise ValueError(f"{path.name}, line {number}: need a label, a tab and a text")
        texts.append(text)
        labels.append(label)
    return texts, labels
