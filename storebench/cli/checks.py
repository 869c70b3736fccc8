"""Checks before long work begins, for several verbs."""

import math
import os
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from storebench.errors import StorebenchError, UsageError, from_os_error
from storebench.filesystem import nearest_folder

if TYPE_CHECKING:
    from storebench.results import Cell


def finite(number: float | None) -> float | None:
    """Return the value of an option."""
    if number is not None and not math.isfinite(number):
        raise typer.BadParameter(f"must be a finite number, not '{number}'")
    return number


def permitted_to_drop(asked: bool) -> bool:
    """Return the value of --drop-caches; raise `typer.BadParameter` if this process may not drop them."""
    if asked and not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        raise typer.BadParameter("it needs root; without it, files are evicted one by one")
    return asked


def require_devices(cells: Iterable["Cell"], *, nodes: int = 1) -> None:
    """Refuse cells of a device that is not there, and ranks that would have to share a GPU."""
    on_gpus = [cell for cell in cells if cell.device != "cpu"]
    if on_gpus:  # torch takes longer to import than most commands take
        from storebench.training.devices import require_devices as require

        require({cell.device for cell in on_gpus}, ranks=max(cell.ranks // nodes for cell in on_gpus))


@contextmanager
def about(place: str) -> Iterator[None]:
    """Name an argument or option in an error that does not say where it is."""
    try:
        yield
    except UsageError as error:
        if error.where is not None:
            raise
        raise type(error)(error.what, where=place, hint=error.hint) from None


def refuse_places(backends: Sequence[str]) -> None:
    """Refuse folders and datasets where backends belong, and say where they belong."""
    for word in backends:
        kind = _kind_of_place(word)
        if kind:
            raise UsageError(
                f"{kind}, not a backend",
                where=word,
                hint=f"Write '--dataset {shlex.quote(word)}'; without a BACKEND, sensible ones are chosen.",
            )


def _kind_of_place(word: str) -> str:
    """Return "a folder" or "a dataset" if a word names one instead of a backend, and "" otherwise."""
    from storebench.datasets.catalog import DATASETS
    from storebench.formats.registry import parse_backend

    if word in DATASETS:
        return "a dataset"
    if not os.path.isdir(word):  # noqa: PTH112 - Path raises where the text cannot be a path
        return ""
    try:
        parse_backend(word)
    except StorebenchError:
        return "a folder"
    return ""


def require_writable(folder: Path, option: str) -> None:
    """Refuse a folder that this process may not write, before any work."""
    try:
        tempfile.TemporaryFile(dir=nearest_folder(folder)).close()
    except OSError as error:
        failure = from_os_error(error, folder)
        hint = failure.hint and failure.hint.replace("--out", option)
        raise type(failure)(failure.what, where=failure.where, hint=hint) from error
