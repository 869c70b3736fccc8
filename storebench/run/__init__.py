"""A run: its cells, rounds and folder, and what this machine permits."""
