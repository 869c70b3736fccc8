"""The format: image files in class folders, one file per sample, as other tools read them."""

from collections.abc import Mapping
from pathlib import Path

from storebench.formats.base import Format, FormatInfo, ReaderInfo, Writer
from storebench.formats.files.get import FilesReader
from storebench.formats.files.threads import FilesThreadsReader
from storebench.formats.files.write import FilesWriter
from storebench.formats.options import Options
from storebench.manifest import Manifest, StoreSpec


class FilesFormat(Format):
    """One file per image."""

    info = FormatInfo(
        name="files",
        summary="one file per image in class folders, labels beside them",
        default_codec="png",
        default_reader="get",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        """Return the sequential reader, and the one with threads."""
        return {
            "get": ReaderInfo(
                reader=FilesReader,
                summary="open, read, close; one sample at a time",
                note="most of PNG's time is decoding, not reading",
            ),
            "threads": ReaderInfo(
                reader=FilesThreadsReader,
                summary="open, read and decode in threads",
                note="decoding is done by the reader's own threads",
            ),
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        """Return the writer of image files."""
        return FilesWriter(folder, spec)

    def locate(self, store: Path, manifest: Manifest, index: int) -> Path:
        """Return the file of sample `index`."""
        with FilesReader(store, manifest, Options()) as reader:
            return Path(reader.path(index))
