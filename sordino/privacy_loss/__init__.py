"""Privacy losses: dominating pairs, their lattices, their composition."""
