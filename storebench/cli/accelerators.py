"""``storebench accelerators``: list the named accelerators with their published training rates."""

import dataclasses
from typing import Annotated

import typer

from storebench.cli.common import exit_codes, put, put_json

_HEADS = ("accelerator", "device", "network", "precision", "images/s", "source")


def accelerators(
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """List the accelerators that --accelerator knows.

    Each has its published training rate and the source. A name alone means the first row of its device. Any
    other accelerator is given by its rate: --accelerator NAME=RATE, in images/s.
    """
    with exit_codes():
        from storebench.accelerators import ACCELERATORS
        from storebench.cli.formats import aligned

        if as_json:
            put_json(
                [dataclasses.asdict(accelerator) | {"key": accelerator.key} for accelerator in ACCELERATORS]
            )
            return
        rows = [
            (
                accelerator.key,
                accelerator.device,
                accelerator.network,
                accelerator.precision,
                f"{accelerator.images_per_s:,g}",
                str(accelerator.source),
            )
            for accelerator in ACCELERATORS
        ]
        put(*aligned([_HEADS, *rows]))
