"""Random numbers as an argument: keys, key streams, normal values."""
