"""Time conversions of one store into another, each in a fresh process, and record them in a run's folder.

``python -m storebench.conversion_rounds JOB.json`` is such a process. It evicts the source from the page
cache, converts it into a temporary folder beside it, reads the result back, and removes it.
"""

import dataclasses
import datetime as dt
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storebench._version import __version__
from storebench.codecs import any_size
from storebench.errors import StorebenchError
from storebench.fileio.whole_files import write_message
from storebench.formats import get_format, parse_backend
from storebench.formats.registry import store_name_of, traits_of
from storebench.probes.page_cache import evict, resident
from storebench.progress import Say, mute
from storebench.results import Cell, Status
from storebench.runs.conversions import SAMPLES_OF, ConversionRecord, append_conversion, read_conversions
from storebench.scenario import TIMEOUT_S, Scenario
from storebench.stores.convert import BuildOptions, convert_to
from storebench.stores.find import StoreSamples
from storebench.system.interrupts import Held
from storebench.system.processes import end_processes, expend, marked
from storebench.system.scratch import scratch_folder
from storebench.worker.cell_process import end
from storebench.worker.launch import ending, out_of_time

FIRST_SOURCE = "files+png"


@dataclass(frozen=True, kw_only=True)
class TimedConversion:
    """A conversion to time: a store, and the target format and codec for its samples."""

    cell: Cell
    source: Path
    source_name: str
    target_name: str


@dataclass(frozen=True, kw_only=True)
class ConversionRounds:
    """The conversions of a run.

    Attributes
    ----------
    repeats
        How often each conversion is timed: once per round, in an order drawn from `seed`.
    environment
        Environment variables of the processes.
    timeout_s
        Seconds after which a process is killed.
    """

    folder: Path
    run_id: str
    repeats: int
    seed: int
    environment: Mapping[str, str]
    timeout_s: float = TIMEOUT_S

    @classmethod
    def of(
        cls, folder: Path, run_id: str, scenario: Scenario, environment: Mapping[str, str]
    ) -> "ConversionRounds":
        """Return the conversions that a scenario requests."""
        return cls(
            folder=folder,
            run_id=run_id,
            repeats=scenario.conversions,
            seed=scenario.seed,
            environment=environment,
            timeout_s=scenario.timeout_s,
        )

    def left(
        self, stores: Mapping[Cell, Path], *, retry_failed: bool = False
    ) -> list[tuple[int, TimedConversion]]:
        """Return round and pair of every conversion that is not recorded yet, in the order to run them.

        Parameters
        ----------
        stores
            The store of each cell; the paths are not accessed.
        retry_failed
            Include failed conversions.
        """
        if not self.repeats:
            return []
        done = {
            record.key
            for record in read_conversions(self.folder)
            if not (retry_failed and record.status is Status.FAILED)
        }
        pairs = list(conversion_pairs(stores))
        left: list[tuple[int, TimedConversion]] = []
        for replicate in range(self.repeats):
            ordered = list(pairs)
            random.Random(f"{self.seed}:convert:{replicate}").shuffle(ordered)
            left += [(replicate, pair) for pair in ordered if self._record(pair, replicate).key not in done]
        return left

    def execute(self, stores: Mapping[Cell, Path], say: Say = mute, *, retry_failed: bool = False) -> None:
        """Time every conversion that is `left`, reporting to `say`; a failed conversion is recorded as failed."""
        for replicate, pair in self.left(stores, retry_failed=retry_failed):
            say(f"converting {pair.source_name} into {pair.target_name}, {replicate + 1} of {self.repeats}")
            append_conversion(self.folder, self._timed(pair, replicate))

    def _record(self, pair: TimedConversion, replicate: int) -> ConversionRecord:
        """Return the record of a conversion that starts now."""
        return ConversionRecord(
            storebench_version=__version__,
            run_id=self.run_id,
            replicate=replicate,
            source=pair.source_name,
            target=pair.target_name,
            started_utc=dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
            **{name: value for name, value in pair.cell.fields().items() if name in SAMPLES_OF},
        )

    def _timed(self, pair: TimedConversion, replicate: int) -> ConversionRecord:
        record = self._record(pair, replicate)
        with scratch_folder("conversion", pair.source.parent) as scratch:
            job, out = scratch / "job.json", scratch / "out.json"
            about = {"source": str(pair.source), "target": pair.target_name, "out": str(out)}
            job.write_text(json.dumps(about | {"folder": str(scratch / "store")}), encoding="utf-8")
            failure = self._run(job)
            answer: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
        failure = answer.pop("failure", None) or failure
        if failure or not answer:
            return dataclasses.replace(record, status=Status.FAILED, failure=failure or "it gave no answer")
        return dataclasses.replace(record, **answer)

    def _run(self, job: Path) -> str:
        """Run one job in a fresh interpreter; return the reason of its failure, or ""."""
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "storebench.conversion_rounds", str(job)],
            env=marked(job.parent, self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                expend(process.pid)
                _, printed = process.communicate(timeout=self.timeout_s)
            except subprocess.TimeoutExpired:
                return out_of_time(self.timeout_s)
            finally:
                if process.poll() != 0:
                    with Held():
                        end(process)
                        end_processes([job.parent])
        last = (printed.strip().splitlines() or [""])[-1]
        return (
            "" if process.returncode == 0 else f"its process ended with {ending(process.returncode)}: {last}"
        )


def conversion_pairs(stores: Mapping[Cell, Path]) -> Iterator[TimedConversion]:
    """Yield the conversions of the first store of each dataset (PNG files, if any) into each other store.

    Image files as they are can be made of no other store, and are left out.
    """
    grouped: dict[object, dict[str, tuple[Cell, Path]]] = {}
    for cell, path in stores.items():
        backend = cell.backend
        traits = traits_of(backend)
        if not (traits.holds_pixels or traits.ready_made or any_size(backend.codec)):
            grouped.setdefault(cell.data, {}).setdefault(store_name_of(backend), (cell, path))
    for names in grouped.values():
        source = FIRST_SOURCE if FIRST_SOURCE in names else next(iter(names))
        for target, (cell, _) in names.items():
            if target != source:
                yield TimedConversion(
                    cell=cell, source=names[source][1], source_name=source, target_name=target
                )


def measure_conversion(source: Path, target: str, folder: Path) -> dict[str, Any]:
    """Convert the store `source` into `folder` from a cold page cache, and return the record's figures."""
    samples = StoreSamples(source)
    files = get_format(samples.manifest.format).data_files(source)
    evict(files)
    before = resident(files).frac
    store = convert_to(samples, parse_backend(target), folder, options=BuildOptions())
    samples.close()
    assert store.phases is not None, "the folder is new, so the store was built"
    manifest = store.manifest
    return {
        "samples": manifest.count,
        "seconds": manifest.build_s,
        **dataclasses.asdict(store.phases),
        "source_bytes": samples.manifest.file_bytes,
        "file_bytes": manifest.file_bytes,
        "bytes_on_disk": manifest.bytes_on_disk,
        "source_resident_frac": before,
    }


def main(arguments: Sequence[str]) -> None:
    """Run the job in the named file, and write its figures, or the reason for their absence, to the job's output."""
    job = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    try:
        answer = measure_conversion(Path(job["source"]), job["target"], Path(job["folder"]))
    except (StorebenchError, OSError) as error:
        answer = {"failure": str(error)}
    write_message(Path(job["out"]), answer)


if __name__ == "__main__":
    main(sys.argv[1:])
