"""Measurements: one script for each statement about speed, memory or accuracy, with JSON results."""
