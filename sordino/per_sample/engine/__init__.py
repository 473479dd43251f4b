"""Computes exact per-sample gradients from one forward and one pruned backward pass."""
