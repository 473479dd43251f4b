"""Attacks as risk reports: they show what can be done to a run, never that no more can be."""
