"""Randomness as an argument: keys, key streams, normal values."""
