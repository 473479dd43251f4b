"""Other libraries' loops: Hugging Face, Lightning, skorch, scikit-learn. Each imports its library when used."""

from sordino.integrations.privacy import Privacy

__all__ = ["Privacy"]
