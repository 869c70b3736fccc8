"""How long does the report of a very large result folder take? ``python -m benchmarks.report``.

Plants a run of 10,000 cells with 1,000 steps each (the step tables are of a few kinds, linked under every cell's name),
then times ``storebench report`` on it in a process of its own: wall time, and its peak resident memory.

    python -m benchmarks.report [--cells N] [--steps N]
"""

import argparse
import dataclasses
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from storebench.results import Record
from storebench.runs.records import STEPS_DIR, append_records
from tests.support.planted import FORMATS, make_record, steps_table

MOST_S, MOST_BYTES = 30.0, 1 << 30
KINDS = 20
BACKENDS = [name for name in FORMATS if name != "null"]


def planted(cells: int, steps: int) -> Iterator[Record]:
    """Yield one record per cell: backends, cold and warm, and enough batch sizes."""
    for number in range(cells):
        backend = BACKENDS[number % len(BACKENDS)]
        rest = number // len(BACKENDS)
        yield make_record(
            backend,
            cache=("cold", "warm")[rest % 2],
            batch_size=1 + rest // 2,
            steps=steps,
            wait_ms=1.0 + number % 17,
        )


def write(folder: Path, cells: int, steps: int) -> None:
    """Write the run's folder."""
    (folder / STEPS_DIR).mkdir(parents=True)
    for number, record in enumerate(planted(cells, steps)):
        name = f"{STEPS_DIR}/{number:05d}.parquet"
        if number < KINDS:
            steps_table(record).to_parquet(folder / name)
        else:
            os.link(folder / f"{STEPS_DIR}/{number % KINDS:05d}.parquet", folder / name)
        append_records(folder, [dataclasses.replace(record, steps_file=name)])


def main() -> int:
    """Plant, report, print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run, out = Path(scratch) / "run", Path(scratch) / "report"
        write(run, options.cells, options.steps)
        start = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "storebench",
            "report",
            str(run),
            "--out",
            str(out),
            "--allow-invalid",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        took_s = time.monotonic() - start
        page = (out / "report.html").stat().st_size
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    good = took_s < MOST_S and peak < MOST_BYTES
    print(
        f"{options.cells:,} cells x {options.steps:,} steps: {took_s:.1f} s, {peak / 2**20:.0f} MiB at most, "
        f"a page of {page / 2**20:.1f} MiB: {'within' if good else 'ABOVE'} {MOST_S:.0f} s and 1 GiB"
    )
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
