"""Datasets: sequences of (uint8 image, label), read from the files that the world has."""
