"""One file for each figure or table; each ends with `EXPERIMENT`."""
