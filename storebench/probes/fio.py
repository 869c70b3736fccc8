"""Measure the rate of O_DIRECT reads of one file with fio, if it is installed."""

import json
import os
import shutil
import subprocess
from pathlib import Path

ENGINES = ("io_uring", "libaio")

_START_S = 20
"""In addition to the measured time: fio first maps shared memory and prepares its random numbers."""


def fio_path() -> str | None:
    """Return the path of fio; None if it is not installed."""
    return shutil.which("fio")


def fio_rate(path: Path | str, size: int, in_flight: int, limit_s: float, *, at_random: bool) -> float | None:
    """Return bytes per second by the first of fio's engines that works here; None if none does."""
    program = fio_path()
    length = Path(path).stat().st_size // size * size
    if program is None or not length:
        return None
    jobs = min(in_flight, 4, len(os.sched_getaffinity(0)))
    options = {
        "name": "storebench",
        "filename": str(path),
        "size": length,
        "bs": size,
        "rw": "randread" if at_random else "read",
        "direct": 1,
        "iodepth": in_flight // jobs,
        "numjobs": jobs,
        "runtime": f"{max(1, round(1000 * limit_s))}ms",
        "output-format": "json",
    }
    flags = ["--readonly", "--time_based", "--group_reporting", "--norandommap", "--allow_file_create=0"]
    command = [program, *(f"--{name}={value}" for name, value in options.items()), *flags]
    rates = (_run([*command, f"--ioengine={engine}"], limit_s) for engine in ENGINES)
    return next((rate for rate in rates if rate), None)


def _run(command: list[str], limit_s: float) -> float | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s + _START_S, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return read_rate(done.stdout) if done.returncode == 0 else None


def read_rate(text: str) -> float | None:
    """Return the bytes per second from fio's JSON output; None if there are none."""
    start = text.find("{")
    try:
        jobs = json.loads(text[start:])["jobs"] if start >= 0 else []
        rates = [float(job["read"]["bw_bytes"]) for job in jobs if not job.get("error")]
    except (ValueError, KeyError, TypeError):
        return None
    return sum(rates) or None
