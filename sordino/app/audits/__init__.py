"""Audits of training runs: replays, the one-run audit, and runs as subjects of a selftest."""
