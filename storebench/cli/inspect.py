"""``storebench inspect``: estimate the cost of a random read from any LMDB or HDF5 file."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from storebench.cli.common import exit_codes, put, put_json

if TYPE_CHECKING:
    from storebench.stores.inspection import Inspection, Part


def inspect(
    path: Annotated[
        Path, typer.Argument(help="An LMDB or HDF5 file, or the folder that holds data.mdb or data.h5.")
    ],
    database: Annotated[str | None, typer.Option(help="A named database of LMDB.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Report the cost of a random read from any LMDB or HDF5 file.

    The advice says how to reduce it. Nothing is written and no sample is read; the tree of an LMDB file is walked.
    """
    with exit_codes():
        from storebench.stores import inspection

        found = inspection.inspect(path, database=database)
        if as_json:
            put_json(_facts(found))
        else:
            put(*_lines(found))


def _facts(found: "Inspection") -> dict[str, object]:
    parts = [{**dataclasses.asdict(part), "amplification": part.amplification} for part in found.parts]
    return {**dataclasses.asdict(found), "path": str(found.path), "parts": parts}


def _lines(found: "Inspection") -> list[str]:
    frac = found.resident_frac
    there = "residency cannot be counted here" if frac is None else f"{frac:.0%} in the page cache"
    lines = [f"{found.path}: {found.kind}, {found.file_bytes / 1e6:,.1f} MB, {there}"]
    if not found.parts:
        lines.append("  it holds nothing that could be samples")
    for part in found.parts:
        lines += [f"  {line}" for line in _part_lines(part)]
    return lines + [f"  {name}: {text}" for name, text in found.notes.items()]


def _part_lines(part: "Part") -> list[str]:
    shortest, median, longest = part.sample_bytes
    sizes = f"{median:,} bytes each" if shortest == longest else f"{shortest:,} to {longest:,} bytes"
    lines = [
        f"{part.name or 'the unnamed database'}: {part.samples:,} records, {sizes}; {part.layout}",
        f"  a random read: at least {part.touched_bytes:,.0f} bytes, {part.amplification:,.2f} times the record's own",
    ]
    return [*lines, f"  {part.advice}"] if part.advice else lines
