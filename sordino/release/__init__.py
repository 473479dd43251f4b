"""Noise and release: the only place where private values become public, with noise and an event."""
