"""What decides a measurement: the words that settings are chosen from, and one row per setting of the loop."""
