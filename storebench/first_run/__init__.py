"""What a run measures if it names no backend: the image files as they are, and the stores that they could become."""
