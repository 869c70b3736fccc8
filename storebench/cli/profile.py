"""``storebench profile`` and ``audit``: what limits the loop of a script, and whether its samples are right."""

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
_START = "from storebench.{}.script_{} import main; main()"


Script = Annotated[
    list[str],
    typer.Argument(
        metavar="SCRIPT", help="The script, then its own arguments: options of this command stand before it."
    ),
]
AsModule = Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as after python -m.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder for a file of all figures.")]


def profile(script: Script, as_module: AsModule = False, out: Out = None) -> None:
    """Run a training script, and name what limits it.

    The script is not edited. Its output, traceback and exit code are its own; the verdict goes to standard error in the
    end. Each process of a job profiles itself: torchrun --nproc-per-node N -m storebench profile SCRIPT.
    """
    _run(_START.format("profiling", "profile"), script, as_module=as_module, out=out)


def audit(
    script: Script,
    as_module: AsModule = False,
    out: Out = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", help="Name of the field that tells who a sample is, where its content does not."
        ),
    ] = None,
) -> None:
    """Run a training script, and check the samples of its loaders.

    The script is not edited, and its output and traceback are its own; the report goes to standard error in the end.
    Let it train for two epochs. Exit codes of a script that ends well: 0 sound, 1 a fault, 4 cannot be told. All ranks
    of a job are audited together: torchrun --nproc-per-node N -m storebench audit SCRIPT.
    """
    _run(_START.format("auditing", "audit"), script, as_module=as_module, out=out, key=key)


def _run(start: str, script: list[str], *, as_module: bool, out: Path | None, key: str | None = None) -> None:
    with exit_codes():
        name, package = script[0], script[0].partition(".")[0]
        here = [os.getcwd()]  # noqa: PTH109
        if as_module and not (PathFinder.find_spec(package, here) or importlib.util.find_spec(package)):
            raise UsageError("there is no module of this name", where=name)
        if not as_module and not os.path.isfile(name):  # noqa: PTH113 - Path raises where the text cannot be a path
            raise UsageError("there is no such script", where=name, hint="With -m, name a module.")
        options: dict[str, bool | str | None] = {"as_module": as_module, "key": key}
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            options["out"] = str(out.absolute())
        sys.stdout.flush()
        sys.stderr.flush()
        # A new program, so that nothing of this one (handlers of signals, modules) is in the script's way.
        os.execv(  # noqa: S606
            sys.executable, [sys.executable, "-P", "-c", start, json.dumps(options), *script]
        )
