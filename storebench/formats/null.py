"""The reference that stores nothing: a few real batches in memory, served in rotation."""

from collections.abc import Mapping
from pathlib import Path

from storebench.errors import UsageError
from storebench.formats.base import Format, FormatInfo, ReaderInfo, Traits, Writer
from storebench.formats.memory.format import PackReader
from storebench.record.manifest import StoreSpec


class NullFormat(Format):
    """A few ready batches, served in rotation."""

    info = FormatInfo(
        name="null",
        summary="no storage: a few real batches that are in memory already, the ceiling of every backend",
        default_codec="raw",
        default_reader="ready",
        borrows="memory+raw",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {
            "ready": ReaderInfo(
                reader=PackReader,
                summary="serve a few real batches in turn",
                traits=Traits(holds_pixels=True, ready_made=True),
                note="its samples are real ones, but not those of the plan",
            )
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:  # noqa: ARG002 - refused in any case
        """Refuse: there is nothing to write."""
        raise UsageError(
            "the backend null stores nothing", where=folder, hint="It is only for 'run' and 'bench'."
        )
