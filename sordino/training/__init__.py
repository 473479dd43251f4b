"""Training runs: recipes carried out, watched, kept and resumed."""
