"""Records what a forward pass does with parameters: the tape, its uses, and where tensors have their samples."""
