"""Execute the notebooks in place and keep their outputs: ``python -m tests.docs.notebooks`` (``make docs``).

GitHub shows the outputs as they are saved, so plots are kept small: their colours are few, and a palette holds them.
"""

import asyncio
import base64
import io
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

from tests.docs.doc_files import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 300_000
"""Largest notebook; GitHub shows no large ones."""

COLOURS = 64
TIMEOUT_S = 120


def executed(path: Path) -> nbformat.NotebookNode:
    """Run a notebook as Jupyter would, in its own folder, and return it with its output."""
    book = nbformat.read(path, as_version=4)
    _execute(book, path.parent)
    return book


def executed_together(paths: Sequence[Path]) -> list[nbformat.NotebookNode]:
    """Run notebooks of one folder in one kernel, which imports only once; return them with their outputs.

    Names are deleted after each notebook, but libraries keep their state.
    """
    books = [nbformat.read(path, as_version=4) for path in paths]
    together = nbformat.v4.new_notebook()
    for number, book in enumerate(books):
        for cell in book.cells:
            cell.id = f"{number}-{cell.id}"  # unique over all notebooks
        together.cells += [nbformat.v4.new_code_cell("%reset -f"), *book.cells]
    _execute(together, paths[0].parent)
    return books


def _execute(book: nbformat.NotebookNode, folder: Path) -> None:
    client = NotebookClient(
        book, timeout=TIMEOUT_S, record_timing=False, resources={"metadata": {"path": folder}}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pyzmq about event loops
        asyncio.run(client.async_execute())


def compact(book: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Give every plot of a notebook a palette, and drop what differs from machine to machine."""
    for cell in book.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                data["image/png"] = small_png(data["image/png"])
    book.metadata.language_info = {"name": "python"}
    return book


def small_png(text: str) -> str:
    """Return a PNG image in base64 with a palette of `COLOURS`."""
    picture = Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")
    content = io.BytesIO()
    picture.quantize(COLOURS).save(content, "PNG", optimize=True)
    return base64.b64encode(content.getvalue()).decode() + "\n"


def main() -> int:
    """Execute every notebook and write it back; return 1 if one is too large."""
    code = 0
    for path in NOTEBOOKS:
        nbformat.write(compact(executed(path)), path)
        size = path.stat().st_size
        print(f"{path.relative_to(ROOT)}: {size:,} bytes")
        if size > MOST_BYTES:
            print(f"{path.name} has more than {MOST_BYTES:,} bytes: show fewer or smaller plots")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
