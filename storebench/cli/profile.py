"""``storebench profile``: what limits the loop of a training script."""

import importlib.util
import os
import sys
from typing import Annotated

import typer

from storebench.cli.common import exit_codes
from storebench.errors import UsageError

AS_GIVEN = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""Settings of the command: everything after the script's name is the script's own."""


def profile(
    script: Annotated[
        list[str], typer.Argument(metavar="SCRIPT", help="The script, then its own arguments.")
    ],
    as_module: Annotated[
        bool, typer.Option("-m", help="SCRIPT is the name of a module, as after python -m.")
    ] = False,
) -> None:
    """Run a training script, and name what limits it.

    The script is not edited. Its output, traceback and exit code are its own; the verdict goes to standard error in the
    end. Each process of a job profiles itself: torchrun --nproc-per-node N -m storebench profile SCRIPT.
    """
    with exit_codes():
        name = script[0]
        if as_module and importlib.util.find_spec(name.partition(".")[0]) is None:
            raise UsageError("there is no module of this name", where=name)
        if not as_module and not os.path.isfile(name):  # noqa: PTH113 - Path raises where the text cannot be a path
            raise UsageError("there is no such script", where=name, hint="With -m, name a module.")
        sys.stdout.flush()
        sys.stderr.flush()
        # A new program, so that nothing of this one (handlers of signals, modules) is in the script's way.
        os.execv(  # noqa: S606
            sys.executable,
            [sys.executable, "-m", "storebench.profiling.script", *(["-m"] if as_module else []), *script],
        )
