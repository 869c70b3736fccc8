"""Decoded pixels in one array in memory."""
