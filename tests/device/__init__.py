"""Tests of code for accelerators, on a simulated one (`simulated/`). Each `check_*.py` runs in a process of its own."""
