"""Faster ways to run and measure some layers, of equal result; `sordino/accelerations.py` lists them all."""
