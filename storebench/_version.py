"""The version of storebench, alone in a module so that nothing is imported to read it."""

__version__ = "0.1.0"
