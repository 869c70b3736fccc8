"""The format: decoded pixels in one array, read when the store is opened."""

from collections.abc import Mapping
from pathlib import Path

from storebench.formats.base import Format, FormatInfo, Reader, ReaderInfo, Traits, Writer
from storebench.formats.memory.audit import PackReader
from storebench.formats.memory.held import MemoryNativeReader, MemoryPythonReader
from storebench.formats.memory.shared import MemorySharedReader
from storebench.formats.memory.write import MemoryWriter
from storebench.formats.options import Options
from storebench.manifest import Manifest, StoreSpec

_HELD = Traits(holds_pixels=True)
_ONCE_EACH = "each process that opens it holds all pixels once more"


class MemoryFormat(Format):
    """One array, read when the store is opened."""

    info = FormatInfo(
        name="memory",
        summary="decoded pixels in one array in memory, read at the opening",
        default_codec="raw",
        default_reader="python",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        """Return the paper's two readers, in Python and in C++, and one that shares a copy among all processes."""
        return {
            "python": ReaderInfo(
                reader=MemoryPythonReader,
                summary="one index per sample in Python, then collate",
                traits=_HELD,
                note=_ONCE_EACH,
            ),
            "native": ReaderInfo(
                reader=MemoryNativeReader,
                summary="one index_select per batch in C++ (ATen)",
                traits=_HELD,
                note=_ONCE_EACH,
            ),
            "shared": ReaderInfo(
                reader=MemorySharedReader,
                summary="one copy in shared memory for all processes",
                traits=_HELD,
                note="all processes of a machine share one copy; the first one fills it",
            ),
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        """Return the writer of the array, or of the pack of payloads."""
        return MemoryWriter(folder, spec)

    def auditor(self, store: Path, manifest: Manifest) -> Reader:
        """Return a reader that leaves the pixels on disk."""
        return PackReader(store, manifest, Options())
