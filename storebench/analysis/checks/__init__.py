"""The rules that records obey."""
