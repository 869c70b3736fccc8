"""``storebench inspect``: the cost of a random read from any LMDB or HDF5 file."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from storebench.cli.common import exit_codes, put, put_json

if TYPE_CHECKING:
    from storebench.stores.inspection import Inspection, Reads, SampleSet

_MOST_SHOWN = 8
_SAMPLES = 200
_IMAGE_FILES = ("JPEG", "PNG", "WebP")
_NEXT = (
    "to compare formats on these images, write them as files into a folder, one subfolder per class, and run: "
    "storebench run original lmdb+original lmdb -d FOLDER --compute none --replicates 3"
)


def inspect(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="An LMDB or HDF5 file, or the folder that holds data.mdb or data.h5.",
        ),
    ],
    database: Annotated[str | None, typer.Option(help="A named database of LMDB. [default: all]")] = None,
    samples: Annotated[
        int,
        typer.Option(
            min=0,
            max=10_000,
            metavar="N",
            help="Random samples to read, cold and warm; 0 reads none, and evicts nothing.",
        ),
    ] = _SAMPLES,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Report what random reads of LMDB or HDF5 cost.

    The file may be of any program. Random samples are read through the format's own library for a few seconds, first
    with the file evicted from the page cache, then from it. The last line says what a sample costs; the advice says how
    to reduce it. Nothing is written to the file.
    """
    with exit_codes():
        from storebench.stores import inspection

        inspected = inspection.inspect(path, database=database, samples=samples)
        if as_json:
            put_json(_facts(inspected))
        else:
            put(*_lines(inspected))


def _facts(inspection: "Inspection") -> dict[str, object]:
    parts = [{**dataclasses.asdict(part), "amplification": part.amplification} for part in inspection.parts]
    main = inspection.main.name if inspection.main else None
    return {**dataclasses.asdict(inspection), "path": str(inspection.path), "parts": parts, "main": main}


def _lines(inspection: "Inspection") -> list[str]:
    frac = inspection.resident_frac
    cached = "residency cannot be counted here" if frac is None else f"{frac:.0%} in the page cache"
    lines = [f"{inspection.path}: {inspection.kind}, {inspection.file_bytes / 1e6:,.1f} MB, {cached}"]
    for part in inspection.parts[:_MOST_SHOWN]:
        lines += [f"  {line}" for line in _part_lines(part, inspection)]
    if len(inspection.parts) > _MOST_SHOWN:
        lines.append(f"  {len(inspection.parts) - _MOST_SHOWN} smaller parts: --json lists them")
    lines += [f"  {name}: {text}" for name, text in inspection.notes.items()]
    if inspection.main is not None and any(kind in inspection.main.content for kind in _IMAGE_FILES):
        lines.append(f"  {_NEXT}")
    return [*lines, _summary(inspection)]


def _part_lines(part: "SampleSet", inspection: "Inspection") -> list[str]:
    about = "" if part.exact else "about "
    lines = [f"{_named(part)}: {about}{part.samples:,} {_samples_word(part)}{_sizes(part)}; {part.layout}"]
    if part.touched_bytes is not None and part.amplification is not None and part.samples:
        lines.append(
            f"  a random read: at least {part.touched_bytes:,.0f} bytes, "
            f"{part.amplification:,.2f} times the sample's own"
        )
    if part.unread:
        lines.append(f"  not read: {part.unread}")
    if part.warm is not None and part is not inspection.main:  # whose costs are in the last line
        lines.append(f"  measured: {_costs(part)}")
    if part.advice:
        lines.append(f"  {part.advice}")
    return lines


def _named(part: "SampleSet") -> str:
    return part.name or "the unnamed database"


def _samples_word(part: "SampleSet") -> str:
    return f"samples ({part.content})" if part.content else "samples"


def _sizes(part: "SampleSet") -> str:
    if part.sample_bytes is None or not part.samples:
        return ""
    shortest, median, longest = part.sample_bytes
    if shortest == longest:
        return f", {median:,} bytes each"
    return f", {shortest:,} to {longest:,} bytes, median {median:,}"


def _summary(inspection: "Inspection") -> str:
    """Return the last line: bytes and time of one random sample here, cold and warm."""
    part = inspection.main
    if part is None or not part.samples:
        return "a random sample here: there are no samples in it"
    if part.sample_bytes is None or part.warm is None:
        return f"a random sample here: not measured ({part.unread or 'no samples were to be read'})"
    return f"a random sample here ({_named(part)}): {part.sample_bytes[1]:,} bytes; {_costs(part)}"


def _costs(part: "SampleSet") -> str:
    return f"cold {_cost(part.cold)}, warm {_cost(part.warm)}"


def _cost(reads: "Reads | None") -> str:
    if reads is None or reads.median_s is None:
        return f"not measured ({reads.reason})" if reads else "not measured"
    read = f"{reads.read_bytes:,.0f} bytes read in " if reads.read_bytes else ""
    doubt = "" if reads.verified else f" (not verified: {reads.reason})"
    return f"{read}{_time(reads.median_s)}{doubt}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
