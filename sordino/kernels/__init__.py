"""Compiled C kernels that only add speed, and the Python that calls them (README.md in this folder)."""
