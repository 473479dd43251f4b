"""Attacks on training runs as risk reports: membership inference, model inversion, and a game."""
