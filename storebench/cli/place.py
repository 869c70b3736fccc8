"""``storebench place``: servers on this machine that stand for storage beyond its disk."""

import signal
from typing import Annotated

import typer

from storebench.cli.common import exit_codes, put, put_json
from storebench.cli.options import JsonOption, finite
from storebench.errors import UnknownNameError, UsageError
from storebench.settings.words import EMULATED, Place
from storebench.units import number_of

place = typer.Typer(help="Run a server that stands for storage beyond this disk.", no_args_is_help=True)

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a server; there is nothing that they could interrupt."""


@place.callback()
def root() -> None:
    """Run a server that stands for storage beyond this disk."""


@place.command()
def up(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="s3 (SeaweedFS, an object store), nfs (NFS-Ganesha), ssh (OpenSSH by sshfs) or weed (SeaweedFS by FUSE).",
        ),
    ],
    first_byte_ms: Annotated[
        float | None,
        typer.Option(
            min=0, callback=finite, help="s3: hold back each answer until so long after its request."
        ),
    ] = None,
    round_trip_ms: Annotated[
        float | None,
        typer.Option(min=0, callback=finite, help="nfs, ssh: delay all that the server sends by so much."),
    ] = None,
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
      storebench run jpeg:objects --place s3:http://127.0.0.1:PORT/storebench

    What is emulated is stored beside the data, and stands in every record of a run that reads them.
    """  # noqa: D301 - the character that keeps lines of help as they are
    with exit_codes():
        asked = {"first-byte-ms": first_byte_ms, "round-trip-ms": round_trip_ms, "mb-s": mb_s}
        given = "&".join(f"{name}={value:g}" for name, value in asked.items() if value is not None)
        if kind not in EMULATED:
            raise UnknownNameError.of("kind of place", kind, EMULATED)
        try:
            emulated = Place(f"{kind}:here" + (f"?{given}" if given else "")).emulated
        except ValueError as error:
            raise UsageError(str(error)) from error
        import dataclasses

        from storebench.places.copying import announce, measured
        from storebench.places.servers import SERVERS

        with SERVERS[kind]() as server:
            url, facts = server.behind(emulated)
            facts = measured(url, server.direct, facts)
            announce(server.direct, facts)  # so that every run that reads there records it
            name = f"s3:{url}" if kind == "s3" else url.removeprefix("file://").replace("//", "", 1)
            if as_json:
                put_json({"place": name, **dataclasses.asdict(facts)})
            else:
                put(f"--place {name}", facts.title, facts.achieved)
                if kind == "s3":
                    put("other programs: any access key and any secret key")
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
            while signal.sigtimedwait(ENDS, 1) is None:
                server.require_running()


@place.command()
def clean(
    name: Annotated[str, typer.Argument(metavar="PLACE", help="s3:http://HOST:PORT/BUCKET.")],
    as_json: JsonOption = False,
) -> None:
    """Delete what runs have put into an object store: copies of stores, and two objects to measure it."""
    with exit_codes():
        try:
            url = Place(name).url
        except ValueError as error:
            raise UsageError(str(error)) from error
        if not url:
            hint = "Remove the stores in a folder with 'rm -r'."
            raise UsageError("only a server that has an address is cleaned", where=name, hint=hint)
        from storebench.places import copying

        count = copying.clean(copying.about(url)[1])
        if as_json:
            put_json({"place": name, "removed": count})
        else:
            put(f"removed {number_of(count, 'object')} from {url}")
