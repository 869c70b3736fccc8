"""The sentences of a report, each derived from facts."""
