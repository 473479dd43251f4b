"""From a wanted ε to the parameter that meets it."""
