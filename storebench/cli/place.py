"""``storebench place``: servers on this machine that stand for storage beyond its disk."""

import signal
from typing import Annotated

import typer

from storebench.cli.common import exit_codes, put, put_json
from storebench.cli.options import JsonOption, finite
from storebench.errors import UnknownNameError, UsageError

place = typer.Typer(
    help="Run a server on this machine that stands for storage beyond its disk.", no_args_is_help=True
)

KINDS = ("s3",)

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a server; there is nothing that they could interrupt."""


@place.callback()
def root() -> None:
    """Run a server on this machine that stands for storage beyond its disk."""


@place.command()
def up(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="s3: SeaweedFS, an object store.")],
    first_byte_ms: Annotated[
        float,
        typer.Option(min=0, callback=finite, help="Hold back each answer until so long after its request."),
    ] = 0,
    mb_s: Annotated[
        float | None,
        typer.Option(
            min=0,
            callback=finite,
            help="Megabytes per second of all answers. [default: as many as there are]",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start a server on loopback, print its place and what it achieves, and end it with Ctrl-C.

    \b
      storebench place up s3 --first-byte-ms 20
      storebench run jpeg:objects lmdb+jpeg --place s3:http://127.0.0.1:PORT/storebench

    What is emulated is stored beside the data, and stands in every record of a run that reads them.
    """  # noqa: D301 - the character that keeps lines of help as they are
    with exit_codes():
        if kind not in KINDS:
            raise UnknownNameError.of("kind of place", kind, KINDS)
        if mb_s == 0:
            raise UsageError(
                "0 MB/s would deliver nothing", where="--mb-s", hint="Leave it out for no limit."
            )
        import dataclasses
        import json

        from storebench.places.objects import ABOUT, ObjectStore, measured
        from storebench.places.servers import ObjectServer

        with ObjectServer() as server:
            url, facts = server.behind(first_byte_ms, mb_s)
            facts = measured(url, facts)
            # Said in the bucket, so that every run that reads there records it.
            ObjectStore(server.url).put(ABOUT, json.dumps(dataclasses.asdict(facts)).encode())
            if as_json:
                put_json({"place": f"s3:{url}", **dataclasses.asdict(facts)})
            else:
                put(f"--place s3:{url}", facts.title, facts.achieved)
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
            signal.sigwait(ENDS)
