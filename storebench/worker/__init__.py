"""One replicate: its process, the job it is given, and what it watches and measures."""
