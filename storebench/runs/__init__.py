"""The folder of a run: its records and step tables, the lock on it, and reading it again."""
