"""Readers that remember, fail, wait or die: a format for the tests of loaders, over the stores of `memory`."""

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any

import torch

from storebench.formats.base import Batch, Fetched, FormatInfo, Indices, Reader, ReaderInfo, Traits
from storebench.formats.memory.format import MemoryFormat, MemoryPythonReader
from storebench.testing.doubles import failing, slow

BAD = 40
"""The sample at which something happens."""

LOOP = os.getpid()

FADING = "STOREBENCH_TEST_FADING"
"""The environment variable that names the folder in which `FadingReader` and its test leave each other word."""


class RecordingReader(MemoryPythonReader):
    """Say at the end what was planned and what was asked for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._planned: list[int] = []
        self._plans = 0
        self._asked: list[int] = []
        self._closed = 0

    def _plan(self, batches: Sequence[Indices]) -> None:
        self._plans += 1
        self._planned += [index for batch in batches for index in batch.tolist()]

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        self._asked += indices.tolist()
        return super()._fetch_into(indices, out)

    def notes(self) -> dict[str, str]:
        return {
            "planned": repr(self._planned),
            "asked": repr(self._asked),
            "plans": str(self._plans),
            "closed": str(self._closed),
        }

    def _close(self) -> None:
        self._closed += 1
        super()._close()


FailingReader = failing(at=BAD, error=lambda: ValueError("nobody expected this"))(MemoryPythonReader)
SlowReader = slow(seconds=0.02)(MemoryPythonReader)


class UnpicklableError(Exception):
    """An error that does not survive a journey between processes as it is."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.lock = open(os.devnull)  # noqa: PTH123, SIM115 - something that cannot be pickled


class UnpicklableReader(MemoryPythonReader):
    """Raise an error that cannot be sent anywhere."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        if BAD in indices:
            raise UnpicklableError(1, 2)
        return super()._fetch_into(indices, out)


class DyingReader(MemoryPythonReader):
    """Be killed in a worker, as the kernel kills who takes too much memory."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        if BAD in indices and os.getpid() != LOOP:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._fetch_into(indices, out)


class FadingReader(MemoryPythonReader):
    """Answer no more in a worker, a moment before dying: when others ask for what it has sent, it is still there.

    It stops answering when its batch has been sent, says so with a file, and dies when the loop asks for that.
    """

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        if BAD in indices and os.getpid() != LOOP:
            threading.Thread(target=self._fade, daemon=True).start()
        return super()._fetch_into(indices, out)

    def _fade(self) -> None:
        folder = Path(os.environ[FADING])
        time.sleep(0.5)
        resource_sharer.stop()
        (folder / "fading").touch()
        while not (folder / "die").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


class ComputingReader(MemoryPythonReader):
    """Say with how many threads torch would compute where batches are made."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._threads: set[int] = set()

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        self._threads.add(torch.get_num_threads())
        return super()._fetch_into(indices, out)

    def notes(self) -> dict[str, str]:
        return {"threads": repr(self._threads)}


class UnopenableReader(MemoryPythonReader):
    """Fail at the opening with what no reader should raise."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        raise ValueError("it does not open")


class ExclusiveReader(MemoryPythonReader):
    """Refuse to be opened or closed while another one is being opened or closed."""

    _lock = threading.Lock()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._alone()

    def _close(self) -> None:
        self._alone()
        super()._close()

    def _alone(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ValueError("two at a time")
        time.sleep(0.02)
        self._lock.release()


class OddFormat(MemoryFormat):
    """What the readers above belong to; they do not say that they hold pixels, so that each worker has its own."""

    info = FormatInfo(
        name="odd", summary="for tests", default_codec="raw", default_reader="recording", borrows="memory+raw"
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        private: list[type[Reader]] = [
            RecordingReader, UnpicklableReader, DyingReader, UnopenableReader, ExclusiveReader, ComputingReader,
            FadingReader,
        ]  # fmt: skip
        own = {reader.__name__.removesuffix("Reader").lower(): reader for reader in private}
        own |= {"failing": FailingReader, "slow": SlowReader}
        return {
            "shared": ReaderInfo(reader=RecordingReader, summary="shared", traits=Traits(holds_pixels=True)),
            **{
                name: ReaderInfo(reader=reader, summary=reader.__doc__ or "", traits=Traits())
                for name, reader in own.items()
            },
        }
