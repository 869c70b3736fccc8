"""One replicate: its process, its job, and the figures and cache states that it measures."""
