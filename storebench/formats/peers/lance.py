"""Lance: a columnar data set of versions and fragments, whose take reads scattered rows."""

import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from storebench.formats.base import Format, FormatInfo, ReaderInfo, Traits, Writer
from storebench.formats.peers.arrow import record_batch, schema
from storebench.formats.peers.rows import IMAGE, LABEL, BlocksWriter, Row, RowsReader
from storebench.manifest import StoreSpec

FOLDER = "data.lance"
RELEASE_S = 0.2


class LanceWriter(BlocksWriter):
    """Hand blocks to a thread in which the library pulls them: it writes a whole data set in one call."""

    def _start(self) -> None:
        self._blocks: queue.Queue[Any] = queue.Queue(maxsize=1)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._pull, name="storebench-lance", daemon=True)
        self._thread.start()

    def _write(self, payloads: list[bytes], labels: list[int]) -> None:
        self._hand_over(record_batch(payloads, labels))

    def _finish(self) -> None:
        self._hand_over(None)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def abort(self) -> None:
        with contextlib.suppress(*self.library_errors):
            self._hand_over(InterruptedError("the writer was aborted"))
        self._thread.join()

    def _hand_over(self, block: Any) -> None:
        while self._failure is None:
            with contextlib.suppress(queue.Full):
                self._blocks.put(block, timeout=0.1)
                return
        raise self._failure

    def _pull(self) -> None:
        import lance
        import pyarrow as pa

        try:
            blocks = pa.RecordBatchReader.from_batches(schema(), self._taken())
            lance.write_dataset(blocks, self.folder / FOLDER)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that writes
            self._failure = error

    def _taken(self) -> Iterator[Any]:
        while (block := self._blocks.get()) is not None:
            if isinstance(block, InterruptedError):
                raise block
            yield block


class LanceReader(RowsReader):
    """One ``take`` per batch."""

    library = "Lance"

    def _open(self) -> npt.ArrayLike:
        import lance

        self._dataset = lance.dataset(self.store / FOLDER)
        self.hold("_dataset")
        labels: npt.ArrayLike = self._dataset.to_table(columns=[LABEL])[LABEL].to_numpy()
        return labels

    def _close(self) -> None:
        super()._close()
        # The library's threads close files a moment after the data set is gone.
        folder, patience = str(self.store.absolute()), time.monotonic() + RELEASE_S
        while time.monotonic() < patience and any(path.startswith(folder) for path in _open_files()):
            time.sleep(0.001)

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        rows: list[bytes] = self._dataset.take(numbers, columns=[IMAGE])[IMAGE].to_pylist()
        return rows


def _open_files() -> list[str]:
    import psutil

    return [file.path for file in psutil.Process().open_files()]


class LanceFormat(Format):
    """A columnar data set in a folder."""

    info = FormatInfo(
        name="lance",
        summary="a Lance data set: columns image and label, as write_dataset makes it by default",
        default_codec="jpeg",
        default_reader="take",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {
            "take": ReaderInfo(
                reader=LanceReader,
                summary="dataset.take(indices), one call per batch",
                traits=Traits(forks=False),
                note="one call per sample is ten times slower",
            )
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        return LanceWriter(folder, spec)
