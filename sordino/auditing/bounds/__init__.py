"""Lower bounds on ε from what an attack got right, each with its confidence."""
