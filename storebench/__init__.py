"""Measure how image training data should lie on disk."""

from storebench._version import __version__

__all__ = ["__version__"]
