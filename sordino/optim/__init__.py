"""After the door: what makes more of a noisy gradient. All of it is post-processing and costs no privacy."""

from sordino.optim.adam_corrected import AdamCorrected
from sordino.optim.average import Average

__all__ = ["AdamCorrected", "Average"]
