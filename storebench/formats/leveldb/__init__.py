"""LevelDB: sorted tables of records."""
