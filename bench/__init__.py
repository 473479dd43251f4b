"""Measurements: one script per claim of speed or memory, JSON out."""
