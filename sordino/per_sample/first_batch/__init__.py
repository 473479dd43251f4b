"""Learns a model from its first batch: layouts, memory format, fastest formulas, and a comparison with autograd."""
