"""Places beyond this disk: object stores, the servers that stand for them on one machine, and what both cost."""
