"""The fast exact engine."""
