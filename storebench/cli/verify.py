"""``storebench verify``: read every sample of a store back and compare it with what was written."""

from pathlib import Path
from typing import Annotated

import typer

from storebench.cli.common import exit_codes, progress, put, put_json, say


def verify(
    store: Annotated[Path, typer.Argument(help="The store's folder, as 'convert' printed it.")],
    reader: Annotated[
        str | None, typer.Option(help="Reader, such as get. [default: the format's default]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Read a store's samples back, and compare their digests.

    Every sample is decoded, and its digest is compared with the one from writing. The first sample that differs is
    named; the exit code is then 5.
    """
    with exit_codes():
        from storebench.stores.verify import verify_store

        verified = verify_store(store, reader, progress=progress, say=say)
        if as_json:
            facts = {
                "path": str(verified.store),
                "backend": verified.backend,
                "count": verified.count,
                "samples_digest": verified.manifest.samples_digest,
                "seconds": verified.seconds,
            }
            put_json(facts)
        else:
            put(
                f"{verified.store}: {verified.count:,} samples read back through {verified.backend} in "
                f"{verified.seconds:.1f} s, all as written, digest {verified.manifest.samples_digest}"
            )
