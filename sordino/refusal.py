"""The error for models, losses and data that cannot be trained privately as they are."""

from __future__ import annotations


class Refusal(ValueError):
    """What was given, what is needed, what to do; nothing was released."""
