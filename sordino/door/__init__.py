"""The door: what leaves the private data, with what noise, and what may be said about it."""
