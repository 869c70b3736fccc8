"""Sentences: what is said of results, derived from facts and from nothing else."""
