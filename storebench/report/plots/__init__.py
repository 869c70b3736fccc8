"""One module a family of plots; every function returns the Axes it drew."""
