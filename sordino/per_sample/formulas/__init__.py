"""Formulas for norms, sums and products of per-sample gradients, by kind of parameter."""
