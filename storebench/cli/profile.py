"""``storebench profile``: what limits the loop of a training script."""

import importlib.util
import json
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated

import typer

from storebench.cli.common import exit_codes
from storebench.errors import UsageError

# No module of the script's project is imported in place of one of Python.
_START = "from storebench.profiling.script import main; main()"


def profile(
    script: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT",
            help="The script, then its own arguments: options of this command stand before it.",
        ),
    ],
    as_module: Annotated[
        bool, typer.Option("-m", help="SCRIPT is the name of a module, as after python -m.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for a file of all figures.")] = None,
) -> None:
    """Run a training script, and name what limits it.

    The script is not edited. Its output, traceback and exit code are its own; the verdict goes to standard error in the
    end. Each process of a job profiles itself: torchrun --nproc-per-node N -m storebench profile SCRIPT.
    """
    with exit_codes():
        name, package = script[0], script[0].partition(".")[0]
        here = [os.getcwd()]  # noqa: PTH109
        if as_module and not (PathFinder.find_spec(package, here) or importlib.util.find_spec(package)):
            raise UsageError("there is no module of this name", where=name)
        if not as_module and not os.path.isfile(name):  # noqa: PTH113 - Path raises where the text cannot be a path
            raise UsageError("there is no such script", where=name, hint="With -m, name a module.")
        options: dict[str, bool | str] = {"as_module": as_module}
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            options["out"] = str(out.absolute())
        sys.stdout.flush()
        sys.stderr.flush()
        # A new program, so that nothing of this one (handlers of signals, modules) is in the script's way.
        os.execv(  # noqa: S606
            sys.executable,
            [sys.executable, "-P", "-c", _START, json.dumps(options), *script],
        )
