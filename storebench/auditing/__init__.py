"""Whether a loader serves each sample once, well shuffled, to the right rank, and the right ones after a resume."""
