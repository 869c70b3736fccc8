"""What a run without a backend measures."""
