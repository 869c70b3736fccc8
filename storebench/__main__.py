"""The command line, as ``python -m storebench`` and as the script ``storebench``."""

import os
import sys

from storebench.system.interrupts import install


def main() -> None:
    """Run the command line. From here on an interrupt is one line and exit code 130."""
    _open_closed_streams()
    install()
    from storebench.cli.main import main as run

    run()


def _open_closed_streams() -> None:
    """Open ``/dev/null`` where cron or a daemon closed a standard stream, which Python then calls None.

    Else the next file that is opened would get the stream's descriptor, and what is said would be written into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor is the stream's own: those below it are open by now.
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115 - pathlib is not loaded yet; open to the end
            os.set_inheritable(stream.fileno(), True)  # our own processes have the stream, too
            setattr(sys, name, stream)


if __name__ == "__main__":
    main()
