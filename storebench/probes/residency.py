"""Sample the resident share of some files during a timed epoch, from a small separate process."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from storebench.probes.page_count import PAGE_BYTES, OpenFiles, Residency
from storebench.record.figures import ResidencyCurve
from storebench.system.processes import end_with_parent

# Of more files, this many are chosen at random and counted.
MOST_FILES = 512

# The share of chosen files is within this of the share of all (95%, at worst, which is half of the store resident).
SAMPLING_ERROR_FRAC = 0.044

MOST_POINTS = 200

# A count above the limit of a cell's page cache is repeated at most this many times.
RECOUNTS = 8

# A reader that knew the selection could have all other files read ahead.
_RANDOM = random.SystemRandom()

_FIRST_S = 0.002
_GROWTH = 0.06  # each pause is this share of the time since the start: about 40 points per factor of 10
_REST = 20
_START_S = 30.0
_STOP_S = 10.0
_BEGIN, _STOP, _COUNTED = b"b", b"s", b"c"

# The parent's own path, so that the sampler runs exactly the same package.
_CHILD = (
    "import json, sys; job = json.loads(sys.stdin.buffer.readline()); sys.path[:] = job['path']; "
    "from storebench.probes.residency import sample; "
    "sample(job['files'], late=job['late'], limit_bytes=job['limit_bytes'])"
)


class Sampler:
    """Sample the residency of `paths` from `begin` to `stop`; `late` opens them only at `begin`: inodes stay cold."""

    def __init__(
        self, paths: Sequence[Path | str], *, late: bool = False, limit_bytes: int | None = None
    ) -> None:
        self._late = late
        chosen = [str(path) for path in chosen_files(paths)]
        all_counted = len(chosen) == len(paths)
        self._error_frac = 0.0 if all_counted else SAMPLING_ERROR_FRAC
        job = {
            "path": sys.path,
            "files": chosen,
            "late": late,
            "limit_bytes": limit_bytes if all_counted else None,
        }
        # A library that only holds arrays needs no team of threads, and Ctrl-C is handled by the loop.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
            bufsize=0,
        )
        self._failure = ""
        self._send(json.dumps(job).encode() + b"\n")
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _START_S)
        if not ready or self._process.stdout.readline() != b"ready\n":
            self._failure = self._end()

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self) -> None:
        """Begin to sample, and return after the first count, or at once if `late`, because a clock is then running."""
        self._send(_BEGIN)
        assert self._process.stdout is not None
        if not self._late and not self._failure:
            select.select([self._process.stdout], [], [], _START_S)

    def stop(self) -> ResidencyCurve:
        """Take a last count, end the sampler and return its curve."""
        if self._failure:
            return ResidencyCurve(reason=self._failure)
        try:
            out, _ = self._process.communicate(_STOP, timeout=_STOP_S)
            curve: dict[str, Any] = json.loads(out.removeprefix(_COUNTED))
        except (subprocess.TimeoutExpired, ValueError, OSError):
            return ResidencyCurve(reason=self._end())
        curve |= {"at_ns": tuple(curve["at_ns"]), "resident_frac": tuple(curve["resident_frac"])}
        return ResidencyCurve(**curve, error_frac=self._error_frac)

    def close(self) -> None:
        if self._process.returncode is None:
            self._end()

    def _send(self, data: bytes) -> None:
        if self._failure:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
        except OSError as error:
            self._failure = f"the sampler of resident pages is gone ({error.strerror})"

    def _end(self) -> str:
        self._process.kill()
        _, errors = self._process.communicate()
        lines = errors.decode(errors="replace").strip().splitlines() if errors else []
        return f"the sampler of resident pages failed ({lines[-1] if lines else 'without a message'})"


def chosen_files(paths: Sequence[Path | str]) -> list[Path | str]:
    """Return the files that represent `paths`: all of them, or `MOST_FILES` that no reader can know beforehand."""
    if len(paths) <= MOST_FILES:
        return list(paths)
    return _RANDOM.sample(paths, MOST_FILES)


def settled(count: Callable[[], Residency], limit_bytes: int | None) -> tuple[Residency, int]:
    """Count again while there is more than `limit_bytes`; return the smallest count and the repetitions."""
    least = count()
    for repetitions in range(RECOUNTS):
        resident = least.pages_resident
        if limit_bytes is None or resident is None or resident * PAGE_BYTES <= limit_bytes:
            return least, repetitions
        again = count()
        if again.pages_resident is None or again.pages_resident < resident:
            least = again
    return least, RECOUNTS


def sample(paths: Sequence[str], *, late: bool, limit_bytes: int | None) -> None:
    """Run in the sampler's process: count between the parent's two messages, then print the counts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(signal.SIGKILL)
    files = None if late else OpenFiles(paths)
    if files is not None:
        files.resident()
    os.write(sys.stdout.fileno(), b"ready\n")
    if _word(None) != _BEGIN:
        return
    started_s = time.process_time()
    counts = _counts(files or OpenFiles(paths), limit_bytes)
    counts["cpu_s"] = time.process_time() - started_s
    sys.stdout.write(json.dumps(counts))


def _counts(files: OpenFiles, limit_bytes: int | None) -> dict[str, Any]:
    began_ns = time.perf_counter_ns()
    at_ns: list[int] = []
    fracs: list[float] = []
    sparser, going, recounts = 1.0, True, 0
    while True:
        now_ns = time.perf_counter_ns()
        residency, repetitions = settled(files.resident, limit_bytes)
        recounts += repetitions
        cost_s = (time.perf_counter_ns() - now_ns) / 1e9
        if residency.frac is None:
            return {"at_ns": [], "resident_frac": [], "reason": residency.reason, "recounts": recounts}
        at_ns.append(now_ns)
        fracs.append(residency.frac)
        if not going:
            return {"at_ns": at_ns, "resident_frac": fracs, "reason": "", "recounts": recounts}
        if len(at_ns) == 1:
            os.write(sys.stdout.fileno(), _COUNTED)
        if len(at_ns) >= MOST_POINTS:
            # The largest stays: it decides whether a limit was kept.
            kept = sorted({*range(0, len(fracs), 2), fracs.index(max(fracs))})
            sparser, at_ns, fracs = 2 * sparser, [at_ns[n] for n in kept], [fracs[n] for n in kept]
        pause_s = sparser * max(_FIRST_S, _GROWTH * (now_ns - began_ns) / 1e9)
        # Any message, or the end of the input if the parent has ended, stops the sampling.
        going = _word(max(pause_s, _REST * cost_s)) is None


def _word(timeout_s: float | None) -> bytes | None:
    """Return the parent's next message, empty if the parent has ended; None after the timeout."""
    ready, _, _ = select.select([0], [], [], timeout_s)
    return os.read(0, 1) if ready else None
