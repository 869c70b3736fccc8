"""The root of the command line; every verb is a module of this package and fast to import."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from storebench.cli.bench import bench, scenarios
from storebench.cli.inventory import accelerators, data, doctor, formats
from storebench.cli.output import STORES_ENV, GroupedCommand, OneLineGroup, exit_codes, say
from storebench.cli.place import place
from storebench.cli.planning import plan
from storebench.cli.profile import audit, profile
from storebench.cli.results import check, export, report, share, trace, validate
from storebench.cli.run import run
from storebench.cli.store_verbs import convert, inspect, verify
from storebench.errors import EXIT_USAGE
from storebench.system import interrupts

app = typer.Typer(
    name="storebench",
    cls=OneLineGroup,
    help="Measure how to store image training data, under real training, with proof.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# Where to begin, for a command line without a verb.
BEGINNING = """\
storebench measures how to store image training data. Where to begin:

To find out in four minutes whether to convert a folder of images:
  storebench run --dataset PATH

To see what a random sample of your HDF5, LMDB or LevelDB file costs:
  storebench inspect FILE

To repeat the comparison of a paper, first in two minutes, then as a whole:
  storebench bench smoke --out runs/smoke
  storebench report runs/smoke
  storebench bench paper

To see in CI whether a change makes a format slower:
  storebench bench gate --against main

'storebench --help' lists all commands, 'storebench bench --help' explains one.""".splitlines()


def _version(asked: bool) -> None:
    if asked:
        from storebench.probes.code import storebench_version

        typer.echo(f"storebench {storebench_version()}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback acts on it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Measure how to store image training data, under real training, with proof."""
    if context.invoked_subcommand is None:
        with exit_codes():
            for line in BEGINNING:
                say(line)
            raise typer.Exit(EXIT_USAGE)


_VERBS: tuple[Callable[..., None], ...] = (
    *(convert, run, bench, scenarios, trace, report, export, check, plan),
    *(formats, accelerators, doctor, validate, share, verify, inspect),
)
for verb in _VERBS:
    app.command(verb.__name__, cls=GroupedCommand if verb in (run, bench) else None)(verb)
# Everything after the script's name is the script's own.
for verb in (profile, audit):
    app.command(verb.__name__, context_settings={"allow_interspersed_args": False})(verb)
app.add_typer(data, name="data")
app.add_typer(place, name="place")


def _refuse_places(words: Sequence[str]) -> None:
    """End with one line for a folder where a command belongs, and for an address: s3://bucket would become "s3:"."""
    names = {command.name for command in app.registered_commands} | {
        group.name for group in app.registered_groups
    }
    # Path would raise where the text cannot be a path.
    if words and words[0] not in names and os.path.isdir(words[0]):  # noqa: PTH112
        say(
            f"storebench: {words[0]}: a folder, not a command. To measure its images: "
            f"storebench run --dataset {shlex.quote(words[0])}"
        )
        raise SystemExit(EXIT_USAGE)
    places = tuple(os.environ.get(name, "") for name in (STORES_ENV, "STOREBENCH_RUNS", "STOREBENCH_DATA"))
    is_place, is_address = r"(--place=)?(copy:)?s3:https?://", r"(^|^-\w|[=:])[A-Za-z][A-Za-z0-9+.-]+://"
    for word in (*words, *places):
        if re.search(is_address, word) and not re.match(is_place, word):
            say(
                f"storebench: {word}: an address, not a path. Name an object store as "
                "--place s3:http://HOST:PORT/BUCKET; mount other servers, or copy the data."
            )
            raise SystemExit(EXIT_USAGE)


def main() -> None:
    interrupts.install()
    _refuse_places(sys.argv[1:])
    try:
        app()
    except SystemExit as end:
        # Between two of our lines, click itself may catch an interrupt, and it exits with 1.
        if interrupts.seen() and end.code:
            interrupts.leave()
        raise


if __name__ == "__main__":
    main()
