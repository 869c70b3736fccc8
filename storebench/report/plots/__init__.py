"""One module per plot: its question, its answer in words, and its drawing."""
