"""Watch emulated nodes while they work: a thread reads the counters of links, disks and cores 20 times per second.

All processes of the nodes read one clock, so the counters of an epoch are those between its first and its last step.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from benchmarks.nodes.limits import WINDOW_S, Observed
from benchmarks.nodes.network import link_bytes
from benchmarks.nodes.node import Node

EVERY_S = 0.05
PER_NODE = 3
"""Counters of a node: bytes received, sent, and read."""

_IDLE, _WAITING, _FIELDS = 3, 4, 8
"""Fields of the first line of /proc/stat: idle, waiting for I/O, and all fields that are time of this machine."""

Counts = Sequence[float]
"""Counters of all nodes in turn, then the busy time and the total time of the cores, both in clock ticks."""


def counts_of(nodes: Sequence[Node]) -> Counts:
    """Return the counters of some nodes and of the cores."""
    counts: list[float] = []
    for node in nodes:
        counts += [*link_bytes(node.pid), node.read_bytes()]
    line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    ticks = [int(field) for field in line.split()[1 : 1 + _FIELDS]]
    return [*counts, sum(ticks) - ticks[_IDLE] - ticks[_WAITING], sum(ticks)]


class Watch:
    """Read counters while a with statement lasts.

    Parameters
    ----------
    read
        Returns the current counters.
    """

    def __init__(self, read: Callable[[], Counts]) -> None:
        self._read = read
        self._times: list[int] = []
        self._counts: list[Counts] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def between(self, start_ns: int, end_ns: int) -> Observed:
        """Return the traffic between two moments of `time.perf_counter_ns`."""
        times = np.asarray(self._times, dtype=np.float64)
        counts = np.asarray(self._counts, dtype=np.float64)
        return observed(times, counts, start_ns, end_ns)

    def _run(self) -> None:
        while True:
            with contextlib.suppress(OSError):  # the node is going
                counts = self._read()
                self._times.append(time.perf_counter_ns())
                self._counts.append(counts)
            if self._over.wait(EVERY_S):
                return


def observed(
    times: npt.NDArray[np.float64], counts: npt.NDArray[np.float64], start_ns: float, end_ns: float
) -> Observed:
    """Return the traffic between two moments.

    Parameters
    ----------
    times
        Moments at which counters were read, nanoseconds, [n].
    counts
        Their values, [n, counters], as `Counts` has them.
    """
    seconds = (end_ns - start_ns) / 1e9
    window_ns = min(WINDOW_S * 1e9, end_ns - start_ns)
    inside = times[(times > start_ns) & (times < end_ns - window_ns)]
    starts = np.concatenate([[start_ns], inside, [end_ns - window_ns]])
    grown, peaks = [], []
    # The readings around the epoch, because links and disks carry little just before and after it.
    before = max(0, int(np.searchsorted(times, start_ns, side="right")) - 1)
    after = min(len(times) - 1, int(np.searchsorted(times, end_ns)))
    moments = np.concatenate([starts, starts + window_ns])
    for column in counts.T:
        begins, ends = np.split(np.interp(moments, times, column), 2)
        grown.append(float(column[after] - column[before]))
        peaks.append(float((ends - begins).max() / (window_ns / 1e9)))
    *bytes_of, busy, whole = grown
    received, sent, read = (tuple(bytes_of[place::PER_NODE]) for place in range(PER_NODE))
    peak = [tuple(peaks[: len(bytes_of)][place::PER_NODE]) for place in range(PER_NODE)]
    return Observed(
        seconds=seconds,
        received_bytes=received,
        sent_bytes=sent,
        read_bytes=read,
        received_peak=peak[0],
        sent_peak=peak[1],
        read_peak=peak[2],
        busy_frac=busy / max(whole, 1.0),
    )
