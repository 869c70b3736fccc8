"""One side of a check: its model, and the readers of each source."""
