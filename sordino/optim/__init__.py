"""Optimizers and averages for noisy gradients: post-processing, which costs no privacy."""

from sordino.optim.adam_corrected import AdamCorrected
from sordino.optim.average import Average
from sordino.optim.noise_scale import noise_scale

__all__ = ["AdamCorrected", "Average", "noise_scale"]
