"""What a model's first batch teaches the engine."""
