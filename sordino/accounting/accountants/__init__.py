"""From an event to ε and δ."""
