"""C that only adds speed, and the Python that calls it: see README.md in this folder."""
