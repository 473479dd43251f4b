"""Optimizers, averages and measures for noisy gradients: post-processing, which costs no privacy."""

from sordino.optim.adam_corrected import AdamCorrected
from sordino.optim.average import Average
from sordino.optim.noise_scale import noise_scale
from sordino.optim.signal_to_noise import SignalToNoise
from sordino.optim.step_noise import StepNoise

__all__ = ["AdamCorrected", "Average", "SignalToNoise", "StepNoise", "noise_scale"]
