"""Is it the data loading? Watch a user's own loop, and name what limits it."""
