"""The command line, as ``python -m storebench`` and as the script ``storebench``."""

from storebench.interrupts import install


def main() -> None:
    """Run the command line. From here on an interrupt is one line and exit code 130."""
    install()
    from storebench.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
