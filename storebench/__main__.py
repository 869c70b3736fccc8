"""``python -m storebench`` is the command line."""

from storebench.cli.main import main

main()
