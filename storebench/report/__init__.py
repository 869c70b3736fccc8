"""Records into tables, plots, verdicts and one page."""
