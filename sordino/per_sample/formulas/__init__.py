"""Formulas for norms, sums and products of per-sample gradients, one file for each kind of parameter."""
