"""A run's folder: its records and step tables, who may write it, and reading it again."""
