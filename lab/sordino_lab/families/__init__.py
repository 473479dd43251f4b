"""Families of figures that share their plans or their subject; each module ends with `FIGURES`, by id."""
