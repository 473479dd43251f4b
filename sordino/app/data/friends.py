"""Lines of a television series, classified as questions, exclamations or statements.

The class is the mark a line ends with, which is taken off before anybody sees the text. About every fifth speaker is held
out with all lines, so that the test is about people the model has never met. Of each the first 200 lines are used: six
speakers have five lines in six of the whole.

Privacy: a speaker's name alone decides where all their lines go, so one speaker more or fewer moves no other.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

from sordino.app.data.files import files_folder

_HEADING, _COLUMNS = 3, 6
_HELD_OUT_EVERY = 5
_MOST_LINES = 200
CLASSES = ("statement", "question", "exclamation")


@dataclass(frozen=True)
class SpokenLines:
    """Texts without their final marks, the classes given by those marks, and the speakers."""

    texts: list[str]
    labels: list[int]
    speakers: list[str]


def load_friends() -> tuple[SpokenLines, SpokenLines]:
    """Returns lines of the television series Friends to train on, and lines of other speakers to test on; fetches them
    if necessary.
    """
    path = files_folder("friends") / "friends-transcripts.tab"
    parts = SpokenLines([], [], []), SpokenLines([], [], [])
    count: Counter[str] = Counter()
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if number <= _HEADING or not line:
            continue
        # A line of another shape means another file, so nothing is guessed.
        columns = line.split("\t")
        if len(columns) != _COLUMNS:
            raise ValueError(f"{path.name}, line {number}: need {_COLUMNS} columns, the last two speaker and text")
        # At most 200 lines of a speaker are used, and the speaker's name alone decides on which side they are.
        speaker, spoken_line = columns[4].strip(), columns[5].strip()
        count[speaker] += 1
        if count[speaker] > _MOST_LINES:
            continue
        held_out = hashlib.sha256(speaker.encode()).digest()[0] % _HELD_OUT_EVERY == 0
        text, label = split_final_marks(spoken_line)
        lines_of_side = parts[held_out]
        lines_of_side.texts.append(text)
        lines_of_side.labels.append(label)
        lines_of_side.speakers.append(speaker)
    return parts


def split_final_marks(line: str) -> tuple[str, int]:
    """Returns a line of Friends without the marks at its end, and its class.

    >>> split_final_marks("Does he eat chalk?!"), split_final_marks("Sounds like a date to me.")
    (('Does he eat chalk', 1), ('Sounds like a date to me', 0))
    """
    text = line.rstrip(" .!?-…\"'")
    end = line[len(text) :]
    return text, 1 if "?" in end else 2 if "!" in end else 0
