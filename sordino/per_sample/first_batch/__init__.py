"""Learns a model from its first batch: layouts, memory format, formulas, agreement with autograd."""
