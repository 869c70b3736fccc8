"""A list of image files with their labels, one "PATH LABEL" per line, as Caffe's convert_imageset reads."""

import os
from collections import Counter
from pathlib import Path

from storebench.datasets.base import LIST_PREFIX, Dataset, Origin, Provenance
from storebench.datasets.files import FileDataset, FoundFiles, look_at
from storebench.datasets.listing import Listings, found_files
from storebench.datasets.sources import Statuses, read_file
from storebench.datasets.walk import ScanSnapshot
from storebench.errors import CorruptDataError, DataNotFoundError
from storebench.plain_text import text_of_name
from storebench.settings.words import Split
from storebench.units import number_of

MOST_LABEL = 99_999
"""Largest label: one class folder per label is written by the format ``files``."""

MOST_PATH = 4_095
"""Most characters of a path, as the kernel's PATH_MAX; a longer one is a sign of another kind of file."""


def open_list(
    path: Path, split: Split, image_size: int | None = None, listings: Listings | None = None
) -> Dataset:
    """Open ``list:FILE``: all its images are the train split, in the order of the lines.

    Relative paths begin at the folder of the list. Blank lines and a byte order mark are skipped; a tab separates as a
    space does.

    Parameters
    ----------
    image_size
        See `FileDataset`.
    listings
        See `storebench.datasets.listing.found_files`.

    Raises
    ------
    DataNotFoundError
        The list cannot be read; or the test split is asked for.
    CorruptDataError
        A line is not a path and a label, or there is none; the message names the line.
    """
    if split != Split.TRAIN:
        raise DataNotFoundError(
            "no test split: a list is training data", where=path, hint="Name a folder with train/ and val/."
        )

    def scan(seen: ScanSnapshot) -> tuple[FoundFiles, Statuses]:
        seen.look(path)
        return _scan_list(path)

    files = found_files(path.parent, ("list", path.name), scan, listings)
    return FileDataset(LIST_PREFIX + text_of_name(str(path)), split, files, image_size)


def _scan_list(path: Path) -> tuple[FoundFiles, Statuses]:
    text = read_file(path).decode("utf-8-sig", "surrogateescape")
    lines = enumerate(text.split("\n"), start=1)
    files = [_file(line, path, number) for number, line in lines if line.strip()]
    if not files:
        raise CorruptDataError("a list without a line", where=path, hint="Write one PATH LABEL per line.")
    names = tuple(map(str, range(max(label for _, label in files) + 1)))
    labels = {label for _, label in files}
    notes = [
        f"one class only, so every label is {next(iter(labels))}" if len(labels) == 1 else "",
        _repeated([name for name, _ in files]),
    ]
    source = Provenance(
        origin=Origin.REAL, source="image files in a list", note="; ".join(filter(None, notes))
    )
    return look_at(path.parent, files, names, source)


def _repeated(names: list[str]) -> str:
    """Return a note on files that are listed more than once, which count as so many samples; "" if there are none."""
    counts = Counter(map(os.path.normpath, names))
    several = sum(count > 1 for count in counts.values())
    return f"{number_of(several, 'file')} listed more than once, each time as a sample" if several else ""


def _file(line: str, where: Path, number: int) -> tuple[str, int]:
    """Return path and label of one line."""
    line = line.strip()
    at = max(line.rfind(" "), line.rfind("\t"))
    name, label = line[: max(at, 0)].rstrip(), line[at + 1 :]
    if not (name and "\0" not in name and len(name) <= MOST_PATH and _is_label(label)):
        raise CorruptDataError(
            f"a line without a path and a label from 0 to {MOST_LABEL:,}",
            where=f"{where}:{number}",
            hint="Write one PATH LABEL per line, without a heading, quotes or commas.",
        )
    return name, int(label)


def _is_label(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= MOST_LABEL
