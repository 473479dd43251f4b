"""Checks of a selftest: one file for each part of the mechanism."""
