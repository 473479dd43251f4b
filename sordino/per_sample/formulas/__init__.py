"""What layers are computed by."""
