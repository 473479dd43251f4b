"""Compiled C kernels that only add speed, and the Python that calls them: see README.md in this folder."""
