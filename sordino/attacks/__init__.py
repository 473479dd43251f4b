"""Attacks as risk reports: what known attacks do to a run. They show what can be done, never that no more can be."""
