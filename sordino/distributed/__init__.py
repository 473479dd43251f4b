"""Several processes that train one model: what they share, what they must agree on, and how they say so."""
