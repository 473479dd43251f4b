"""What a selftest tries, a file for each part of the mechanism."""
