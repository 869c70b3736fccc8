"""The command line, as ``python -m storebench`` and as the script ``storebench``."""

import os
import sys


def main() -> None:
    """Run the command line; from here on an interrupt gives one line and exit code 130."""
    if sys.argv[1:2] in (["profile"], ["audit"]) and sys.path[0] == os.getcwd():  # noqa: PTH109
        del sys.path[0]  # by python -m: no module of the user's folder is imported in place of one of Python
    # Cron or a daemon may have closed a standard stream, which Python sets to None.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor is the stream's own, because those below it are open by now.
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115 - for the life of the process
            os.set_inheritable(stream.fileno(), True)  # our own processes inherit the stream
            setattr(sys, name, stream)
    from storebench.system.interrupts import install

    install()
    from storebench.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
