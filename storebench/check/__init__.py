"""Compare two run folders: a verdict per cell, and one exit code; `against` makes two such folders."""
