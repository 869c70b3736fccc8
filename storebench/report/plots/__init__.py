"""Plots of results, one question each."""
