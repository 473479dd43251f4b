"""What the last bit of a result depends on, as runs ask for it (`sordino/environment.py`)."""

from sordino.environment import Environment, code, difference, here, kernels, processor

__all__ = ["Environment", "code", "difference", "here", "kernels", "processor"]
