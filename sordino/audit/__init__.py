"""Audits: what was measured of a run, beside what is claimed of it."""
