"""Synthetic data: a model that is trained privately writes new rows or texts, and the claim travels with the file."""
