"""Lots: the records of one draw, loaded in batches, as per-sample gradients."""
