"""Measurements from the kernel: page cache, counters, device rates, environment."""
