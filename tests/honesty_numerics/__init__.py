"""Arithmetic that cannot make a claim false: norms that are not low, sums whose rounding the noise covers."""
