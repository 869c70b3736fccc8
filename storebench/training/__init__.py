"""Networks and the timed loop."""
