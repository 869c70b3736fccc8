"""Rules that results must keep before anybody believes them: of one record, of a run, and across records."""
