"""The settings that determine a measurement: the words to choose from, and one row per setting of the loop."""
