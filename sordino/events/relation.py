"""Neighbouring relations: which two datasets count as neighbours."""

from __future__ import annotations

from enum import StrEnum


class Relation(StrEnum):
    """Which two datasets count as neighbours. A guarantee is meaningless without it.

    Examples:
        >>> [str(relation) for relation in Relation]
        ['add-or-remove-one', 'replace-one', 'zero-out-one']

    """

    ADD_OR_REMOVE = "add-or-remove-one"
    REPLACE = "replace-one"
    ZERO_OUT = "zero-out-one"

    @property
    def meaning(self) -> str:
        """The meaning of the neighbouring relation: how two neighbours differ, in words.

        >>> Relation.REPLACE.meaning
        'one record replaced by another'
        """
        return self.between("record")

    def between(self, unit: str) -> str:
        """Returns how two neighbours of a neighbouring relation differ, in words, where a unit is something else than a
        record.

        >>> Relation.ADD_OR_REMOVE.between("speaker")
        'one speaker added or removed'
        """
        return _MEANINGS[self].format(unit)


_MEANINGS = {
    Relation.ADD_OR_REMOVE: "one {} added or removed",
    Relation.REPLACE: "one {} replaced by another",
    Relation.ZERO_OUT: "one {}'s contribution replaced by nothing",
}
