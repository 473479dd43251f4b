"""Integrations with Hugging Face, Lightning, skorch and scikit-learn.

Each imports its library when it is used.
"""

from sordino.integrations.privacy import Privacy

__all__ = ["Privacy"]
