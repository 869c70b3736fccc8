"""Ask the kernel what really happened: page cache, counters, environment."""
