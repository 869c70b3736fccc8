"""The format: one HDF5 file that describes itself."""

from collections.abc import Mapping
from pathlib import Path

from storebench.formats.base import Format, FormatInfo, ReaderInfo, Writer
from storebench.formats.hdf5.direct import Hdf5DirectReader
from storebench.formats.hdf5.get import Hdf5GetReader
from storebench.formats.hdf5.write import Hdf5Writer
from storebench.manifest import StoreSpec


class Hdf5Format(Format):
    """One file that describes itself."""

    info = FormatInfo(
        name="hdf5",
        summary="one file: data [N,H,W,C] and label; or payload, offset and label",
        default_codec="raw",
        default_reader="get",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        """Return the reader that uses the library, and the one that does not."""
        return {
            "get": ReaderInfo(
                reader=Hdf5GetReader,
                summary="one hyperslab per sample (h5py, low level)",
                note="h5py lets one thread of a process in at a time",
            ),
            "direct": ReaderInfo(
                reader=Hdf5DirectReader,
                summary="explicit planned reads at the data's offset",
                note="compressed data still goes through the library",
            ),
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        """Return the writer of ``data.h5``."""
        return Hdf5Writer(folder, spec)
