"""``storebench place``: a server on this machine that stands for an object store."""

import signal
from typing import Annotated

import typer

from storebench.cli.arguments import JsonOption, finite
from storebench.cli.output import exit_codes, put, put_json
from storebench.errors import UsageError
from storebench.settings.words import Place
from storebench.units import number_of

place = typer.Typer(help="Run an object store on this machine, or clean one.", no_args_is_help=True)

# Signals that end a server; there is nothing that they could interrupt.
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@place.callback()
def root() -> None:
    """Run an object store on this machine, or clean one."""


@place.command()
def up(
    first_byte_ms: Annotated[
        float | None,
        typer.Option(min=0, callback=finite, help="Hold back each answer until this long after its request."),
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
      storebench place up --first-byte-ms 20
      storebench run jpeg:objects --place s3:http://127.0.0.1:PORT/storebench

    What is emulated is stored beside the data, and stands in every record of a run that reads them.
    """  # noqa: D301 - the character that keeps lines of help as they are
    with exit_codes():
        asked = {"first-byte-ms": first_byte_ms, "mb-s": mb_s}
        given = "&".join(f"{name}={value:g}" for name, value in asked.items() if value is not None)
        try:
            emulated = Place("s3:here" + (f"?{given}" if given else "")).emulated
        except ValueError as error:
            raise UsageError(str(error)) from error
        import dataclasses

        from storebench.places.copying import announce, measured
        from storebench.places.servers import ObjectServer

        with ObjectServer() as server:
            url, facts = server.behind(emulated)
            facts = measured(url, server.direct, facts)
            announce(server.direct, facts)  # so that every run that reads there records it
            if as_json:
                put_json({"place": f"s3:{url}", **dataclasses.asdict(facts)})
            else:
                put(f"--place s3:{url}", facts.title, facts.achieved)
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

        count = copying.clean(url)
        if as_json:
            put_json({"place": name, "removed": count})
        else:
            put(f"removed {number_of(count, 'object')} from {url}")
