"""The engine of explicit reads: planned, merged, and past the page fault."""
