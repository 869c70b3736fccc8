"""``storebench profile`` and ``audit``: what limits the loop of a script, and whether its samples are right."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated, Any

import typer

from storebench.cli.output import exit_codes
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
    repeat: Annotated[
        bool, typer.Option("--repeat", help="Run the script twice: do both starts serve the same?")
    ] = False,
) -> None:
    """Run a training script, and check the samples of its loaders.

    The script is not edited, and its output and traceback are its own; the report goes to standard error in the end.
    Let it train for two epochs. Exit codes of a script that ends well: 0 sound, 1 a fault, 4 cannot be told. All ranks
    of a job are audited together: torchrun --nproc-per-node N -m storebench audit SCRIPT.
    """
    _run(_START.format("auditing", "audit"), script, as_module=as_module, out=out, key=key, repeat=repeat)


def _run(
    start: str,
    script: list[str],
    *,
    as_module: bool,
    out: Path | None,
    key: str | None = None,
    repeat: bool = False,
) -> None:
    with exit_codes():
        name, package = script[0], script[0].partition(".")[0]
        here = [os.getcwd()]  # noqa: PTH109
        if as_module and not (PathFinder.find_spec(package, here) or importlib.util.find_spec(package)):
            raise UsageError("there is no module of this name", where=name)
        if not as_module and not os.path.isfile(name):  # noqa: PTH113 - Path raises where the text cannot be a path
            raise UsageError("there is no such script", where=name, hint="With -m, name a module.")
        if repeat and "LOCAL_WORLD_SIZE" in os.environ:
            raise UsageError("a job of ranks cannot start twice", hint="Leave out torchrun, or --repeat.")
        options: dict[str, Any] = {"as_module": as_module, "key": key}
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            options["out"] = str(out.absolute())
        command = [sys.executable, "-P", "-c", start]
        if repeat:
            starts = tempfile.TemporaryFile()  # noqa: SIM115 - the second start inherits it
            os.set_inheritable(starts.fileno(), True)
            options["starts"] = starts.fileno()
            first = subprocess.run([*command, json.dumps(options), *script], check=False, close_fds=False)
            if first.returncode:
                raise SystemExit(first.returncode)
            os.lseek(starts.fileno(), 0, os.SEEK_SET)
        sys.stdout.flush()
        sys.stderr.flush()
        # A new program, so that nothing of this one (handlers of signals, modules) is in the script's way.
        os.execv(sys.executable, [*command, json.dumps(options), *script])  # noqa: S606
