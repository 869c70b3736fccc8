"""Formats of other projects, each written and read through its own library.

No module here imports its library at the top: `storebench formats` describes a format without loading it.
"""
