"""Cells into fresh processes, interleaved in a seeded random order, into one folder of records; resumable.

Within each round every cell runs once, in an order drawn anew: a machine that
slows down slows every backend. A replicate's records are appended only when
the whole replicate is over, by this process alone.
"""

import contextlib
import dataclasses
import datetime as dt
import json
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from storebench._version import __version__
from storebench.cell_job import CellJob, write_job
from storebench.conversion_rounds import ConversionRounds
from storebench.convert import How, Replace, ensure_store
from storebench.datasets import DatasetSpec, Origin
from storebench.devices import StoreImage, ensure_image
from storebench.errors import (
    CorruptDataError,
    DataNotFoundError,
    OutputError,
    StorebenchError,
    UsageError,
    from_os_error,
)
from storebench.formats.origin import proven, refuse_other_code
from storebench.formats.registry import parse_backend
from storebench.manifest import Manifest, store_facts
from storebench.probes.code import cell_environment, running_digest
from storebench.reading import read_small_file
from storebench.records import (
    LOGS_DIR,
    MOST_RUN_BYTES,
    RECORDS_NAME,
    RUN_NAME,
    STEPS_DIR,
    append_record,
    read_records,
    record_from_dict,
)
from storebench.results import Cell, Record, Status
from storebench.scenario import Scenario, cell_backend, cell_spec
from storebench.surroundings import LeftOut, Surroundings, check_size, refusals, surroundings

CELL_TIMEOUT_S = 6 * 3600.0
RUN_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Work:
    """One replicate of one cell, still to be run."""

    cell: Cell
    replicate: int


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The stores that a cell reads, and the image of the first where it is put on a device of its own."""

    store: Path
    manifest: Manifest
    test_store: Path | None
    image: StoreImage | None = None


class Watcher(Protocol):
    """Is told how a run goes on."""

    def store(self, cell: Cell) -> How:
        """Return how to build (or find) the store of `cell`, with its progress."""

    def started(self, work: Work, position: int, total: int) -> None:
        """Learn that a replicate starts."""

    def finished(self, work: Work, records: Sequence[Record]) -> None:
        """Learn what a replicate gave."""


class Silent:
    """A watcher that says nothing."""

    def store(self, cell: Cell) -> How:  # noqa: ARG002
        """Build quietly; a store of other samples is replaced."""
        return How(replace=Replace.STALE)

    def started(self, work: Work, position: int, total: int) -> None:
        """Say nothing."""

    def finished(self, work: Work, records: Sequence[Record]) -> None:
        """Say nothing."""


def schedule(cells: Sequence[Cell], replicates: int, seed: int) -> list[Work]:
    """Return every replicate of every cell: round by round, each round in an order of its own."""
    rounds = []
    for replicate in range(replicates):
        order = list(cells)
        random.Random(f"{seed}:{replicate}").shuffle(order)
        rounds += [Work(cell=cell, replicate=replicate) for cell in order]
    return rounds


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run: its folder, and what it is about."""

    folder: Path
    run_id: str
    scenario: Scenario
    cells: list[Cell]

    @classmethod
    def create(
        cls, scenario: Scenario, folder: Path, cells: Sequence[Cell], left_out: Sequence[LeftOut] = ()
    ) -> "Run":
        """Make the folder of a new run; the cells that were left out are named in it, with the reason.

        Raises
        ------
        OutputError
            There is a run already, or the folder cannot be written.
        """
        if (folder / RUN_NAME).exists():
            raise OutputError(
                "there is a run here already",
                where=folder,
                hint="Name another --out, or continue it with 'storebench bench --resume'.",
            )
        run_id = f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}-{scenario.name}"
        about = {
            "schema_version": RUN_SCHEMA_VERSION,
            "run_id": run_id,
            "created_utc": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "storebench_version": __version__,
            "scenario": scenario.model_dump(mode="json"),
            "cells": [dataclasses.asdict(cell) | {"cell_id": cell.cell_id} for cell in cells],
            "left_out": [
                {"cell_id": one.cell.cell_id, "backend": one.cell.backend, "reason": one.reason}
                for one in left_out
            ],
        }
        _make_folders(folder)
        _write_about(folder, about)
        return cls(folder=folder, run_id=run_id, scenario=scenario, cells=list(cells))

    @classmethod
    def resume(cls, folder: Path) -> "Run":
        """Take up the run in `folder` where it was interrupted."""
        path = folder / RUN_NAME
        try:
            about = json.loads(read_small_file(path, most_bytes=MOST_RUN_BYTES))
            run_id, wanted = about["run_id"], {one["cell_id"] for one in about["cells"]}
            scenario = Scenario.model_validate(about["scenario"], strict=False)
        except FileNotFoundError:
            raise DataNotFoundError(
                "there is no run to resume", where=folder, hint="Leave out --resume to start one."
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDataError(
                f"not a run ({type(error).__name__}: {error})", where=path, hint="Start anew."
            ) from None
        cells = [cell for cell in scenario.cells() if cell.cell_id in wanted]
        if len(cells) != len(wanted):
            raise CorruptDataError(
                "its cells are not those of its scenario",
                where=path,
                hint="Another storebench wrote it: start anew.",
            )
        _make_folders(folder)
        return cls(folder=folder, run_id=run_id, scenario=scenario, cells=cells)

    def extended(self, replicates: int) -> "Run":
        """Return this run with more rounds to go; what is recorded stays, and the rounds keep their orders.

        Rounds that are added to records may have been added because of what those showed. ``run.json``
        keeps when that was (``extended_utc``), and intervals are wider for it.

        Raises
        ------
        UsageError
            It has more rounds already.
        """
        if replicates < self.scenario.replicates:
            raise UsageError(
                f"the run has {self.scenario.replicates} replicates, which cannot become {replicates}",
                where=self.folder,
                hint="Ask for more, or leave out --replicates.",
            )
        scenario = self.scenario.model_copy(update={"replicates": replicates})
        about = json.loads(read_small_file(self.folder / RUN_NAME, most_bytes=MOST_RUN_BYTES))
        about |= {"scenario": scenario.model_dump(mode="json")}
        if replicates > self.scenario.replicates and self.recorded():
            now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
            about["extended_utc"] = [*about.get("extended_utc", ()), now]
        _write_about(self.folder, about)
        return dataclasses.replace(self, scenario=scenario)

    def discard(self) -> None:
        """Remove the folder of a run in which nothing was measured: it would only look like a result."""
        (self.folder / RUN_NAME).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody else's files stay, and so does their folder
            for folder in (self.folder / STEPS_DIR, self.folder / LOGS_DIR, self.folder):
                folder.rmdir()

    def recorded(self) -> set[tuple[str, int, int]]:
        """Return (cell id, replicate, epoch) of every whole record."""
        if not (self.folder / RECORDS_NAME).is_file():
            return set()
        try:
            records = read_records(self.folder)
        except DataNotFoundError:
            return set()  # nothing but half a line
        return {(record.cell.cell_id, record.replicate, record.epoch) for record in records}

    def left(self) -> list[Work]:
        """Return the replicates that are not recorded whole, in the order of the schedule."""
        done = self.recorded()
        return [
            work
            for work in schedule(self.cells, self.scenario.replicates, self.scenario.seed)
            if any(
                (work.cell.cell_id, work.replicate, epoch) not in done for epoch in range(work.cell.epochs)
            )
        ]


def _make_folders(folder: Path) -> None:
    """Make the folders of a run; a copy of one may lack those that were empty."""
    try:
        for name in (STEPS_DIR, LOGS_DIR):
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, folder) from error


def _write_about(folder: Path, about: Mapping[str, object]) -> None:
    """Write what a run is about, whole or not at all."""
    try:
        unfinished = folder / f"{RUN_NAME}.tmp"
        unfinished.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(folder / RUN_NAME)
    except OSError as error:
        raise from_os_error(error, folder) from error


def execute(
    run: Run,
    stores: Path,
    *,
    data_root: Path | None = None,
    drop_caches: bool = False,
    watcher: Watcher | None = None,
) -> list[Record]:
    """Run what is left of `run` and return all its new records.

    Every store is built before the first cell runs. A cell that fails is
    recorded as failed, and the others go on. Where a store cannot be built, a run
    without a record goes again.

    Raises
    ------
    UsageError
        The run has records of other code than this.
    """
    watcher = watcher or Silent()
    running_digest()  # before the first cell: a change of the code during the run must show
    work, done = run.left(), run.recorded()
    if work and done:
        refuse_other_code(read_records(run.folder), run.folder)
    try:
        for refusal in refusals((one.cell for one in work), stores).values():
            raise refusal
        prepared = prepare(dict.fromkeys(one.cell for one in work), run.scenario, stores, data_root, watcher)
    except StorebenchError:
        if not done:
            run.discard()
        raise
    made = []
    for position, one in enumerate(work):
        watcher.started(one, position, len(work))
        records = _replicate(run, one, prepared[one.cell], drop_caches=drop_caches)
        for record in records:
            if (one.cell.cell_id, record.replicate, record.epoch) not in done:
                append_record(run.folder, record)
        made += records
        watcher.finished(one, records)
    if run.scenario.conversions:
        rounds = ConversionRounds.of(run.folder, run.run_id, run.scenario, cell_environment())
        rounds.execute({cell: one.store for cell, one in prepared.items()}, watcher.store(run.cells[0]).say)
    return made


def prepare(
    cells: dict[Cell, None],
    scenario: Scenario,
    stores: Path,
    data_root: Path | None,
    watcher: Watcher,
) -> dict[Cell, Prepared]:
    """Build or find the stores of all cells, each once."""
    built: dict[tuple[DatasetSpec, str], Prepared] = {}
    found = {}
    for cell in cells:
        key = (cell_spec(cell), cell_backend(cell).store_name)
        if key not in built:
            how = watcher.store(cell)
            store = ensure_store(key[0], parse_backend(key[1]), stores, data_root=data_root, how=how)
            test = _test_store(cell, store.manifest, scenario.test_limit, stores, data_root, how)
            built[key] = Prepared(store=store.path.resolve(), manifest=store.manifest, test_store=test)
        check_size(cell, built[key].manifest)
        found[cell] = built[key]
    for cell in cells:
        if cell.readahead_kib is not None:
            image = ensure_image(found[cell].store, watcher.store(cell).say)
            found[cell] = dataclasses.replace(found[cell], image=image)
    return found


def _test_store(
    cell: Cell, train: Manifest, limit: int, stores: Path, data_root: Path | None, how: How
) -> Path | None:
    """Return the store of test samples of the same origin, or None where the dataset has none."""
    if cell.split != "train" or limit == 0 or cell.compute != "real":
        return None
    synthetic = train.dataset.provenance.origin is Origin.SYNTHETIC
    spec = DatasetSpec(name=cell.dataset, split="test", limit=limit, seed=cell.data_seed, synthetic=synthetic)
    try:
        return ensure_store(
            spec, parse_backend("memory+raw"), stores, data_root=data_root, how=how
        ).path.resolve()
    except DataNotFoundError:
        return None


def _replicate(run: Run, work: Work, prepared: Prepared, *, drop_caches: bool) -> list[Record]:
    with (
        tempfile.TemporaryDirectory(prefix="storebench-cell-") as scratch,
        surroundings(work.cell, prepared.image) as around,
    ):
        out = Path(scratch) / "out.json"
        job = CellJob(
            cell=work.cell,
            replicate=work.replicate,
            run_id=run.run_id,
            run=run.folder.resolve(),
            store=prepared.store if prepared.image is None else prepared.image.point,
            test_store=prepared.test_store if work.cell.compute == "real" else None,
            out=out,
            check_pixels=run.scenario.check_pixels,
            drop_caches=drop_caches,
            memory_group=around.group.folder if around.group else None,
            image=around.image,
        )
        write_job(job, Path(scratch) / "job.json")
        log = run.folder / LOGS_DIR / f"{work.cell.cell_id}-r{work.replicate}.log"
        code = _fresh_process(Path(scratch) / "job.json", log, around)
        answer: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {}
        if "records" not in answer:
            ending = f"the cell's process ended with {_ending(code)}; see {LOGS_DIR}/{log.name}"
            failure = around.explained(answer.get("failure") or ending, work.cell)
    if "records" in answer:
        if not log.stat().st_size:
            log.unlink()
        records = [record_from_dict(raw, where=str(log)) for raw in answer["records"]]
        return [proven(record, answer.get("package", "")) for record in records]
    return [_failed(run, work, prepared, failure, epoch) for epoch in range(work.cell.epochs)]


def _fresh_process(job: Path, log: Path, around: Surroundings) -> int | None:
    """Run one job in a fresh interpreter and return its exit code, None if it never ended; it never outlives us."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            around.command([sys.executable, "-P", "-m", "storebench.cell", str(job)]),
            env=cell_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        with _ended_with_us(process):
            try:
                return process.wait(CELL_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                return None


@contextlib.contextmanager
def _ended_with_us(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ending(code: int | None) -> str:
    if code is None:
        return f"no answer after {CELL_TIMEOUT_S / 3600:.0f} hours"
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _failed(run: Run, work: Work, prepared: Prepared, failure: str, epoch: int) -> Record:
    return Record(
        storebench_version=__version__,
        run_id=run.run_id,
        cell=work.cell,
        replicate=work.replicate,
        epoch=epoch,
        status=Status.FAILED,
        failure=failure,
        started_utc=dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
        store=store_facts(prepared.manifest),
    )
