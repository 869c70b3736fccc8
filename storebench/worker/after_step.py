"""The work in the pause after a step: keep samples for the proof, read the kernel's counters, play games."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from storebench.loading.batch import LOOP_WORKER, LoadedBatch
from storebench.probes.batch_io import METER


class AfterStep:
    """The work between two steps of one epoch, for `storebench.training.loop.run_epoch`."""

    def __init__(
        self,
        keep: Callable[[LoadedBatch], bool],
        paused: Callable[[int], None],
        play: Callable[[], bool] | None = None,
    ) -> None:
        self._keep = keep
        self._paused = paused
        self._play = play
        self.own_reads = 0

    def __enter__(self) -> Self:
        METER.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.own_reads = METER.end()

    def __call__(self, batch: LoadedBatch) -> bool:
        """Return whether the time that this took is a pause."""
        kept, read = self._keep(batch), self._read(batch)
        played = self._play is not None and self._played(self._play)
        return kept or read or played

    def _played(self, play: Callable[[], bool]) -> bool:
        """Play a tournament if one is due; return True if it was."""
        start = time.perf_counter_ns()
        played = play()
        if played:
            self._paused(time.perf_counter_ns() - start)
        return played

    def _read(self, batch: LoadedBatch) -> bool:
        """Read the counters if the loop made the batch; return True if it did."""
        if batch.io is not None or batch.worker != LOOP_WORKER:
            return False
        start = time.perf_counter_ns()
        batch.io = METER.read()
        self._paused(time.perf_counter_ns() - start)
        return True
