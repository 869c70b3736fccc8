"""LMDB: one memory-mapped B+-tree in one file."""
