"""Run cells in fresh processes, interleaved in a seeded random order, into one folder of records; resumable.

Within each round every cell runs once, in a newly drawn order, so a machine that
slows down slows every backend. A replicate is recorded when all of it is
finished, by this process alone (`storebench.runs.folder`).
"""

import dataclasses
import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from storebench._version import __version__
from storebench.codecs import any_size
from storebench.conversion_rounds import ConversionRounds
from storebench.datasets import Dataset, DatasetSpec, Origin, open_dataset
from storebench.errors import DataNotFoundError, StorebenchError
from storebench.formats.origin import proven, refuse_other_code
from storebench.formats.registry import parse_backend, store_name_of
from storebench.manifest import Manifest, store_facts
from storebench.probes.code import cell_environment, running_digest
from storebench.results import Cell, Record, Status
from storebench.runs.folder import Run, Work
from storebench.runs.lock import claimed
from storebench.runs.records import LOGS_DIR, record_from_dict
from storebench.scenario import Scenario
from storebench.settings.words import ComputeKind, Split
from storebench.stores.convert import How, Replace, ensure_store
from storebench.stores.devices import StoreImage, ensure_image
from storebench.surroundings import check_network, check_size, refusals, surroundings
from storebench.system.scratch import scratch_folder
from storebench.worker.job import CellJob
from storebench.worker.launch import answer_of

# Run has been imported from here since before it had a module of its own (`check/against_side.py`).
__all__ = ["Prepared", "Run", "Silent", "Watcher", "execute", "prepare"]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The stores that a cell reads, and the image of the first if it is put on its own device."""

    store: Path
    manifest: Manifest
    test_store: Path | None
    image: StoreImage | None = None


class Watcher(Protocol):
    """Receives the events of a run."""

    def store(self, cell: Cell) -> How:
        """Return how to build (or find) the store of `cell`, with its progress."""

    def started(self, work: Work, position: int, total: int) -> None:
        """React to the start of a replicate."""

    def finished(self, work: Work, records: Sequence[Record]) -> None:
        """React to the records of a finished replicate."""


class Silent:
    """A watcher that reports nothing."""

    def store(self, cell: Cell) -> How:  # noqa: ARG002
        """Build without messages; a store of other samples is replaced."""
        return How(replace=Replace.STALE)

    def started(self, work: Work, position: int, total: int) -> None:
        """Report nothing."""

    def finished(self, work: Work, records: Sequence[Record]) -> None:
        """Report nothing."""


def execute(
    run: Run,
    stores: Path,
    *,
    data_root: Path | None = None,
    drop_caches: bool = False,
    retry_failed: bool = False,
    watcher: Watcher | None = None,
) -> list[Record]:
    """Run the remaining replicates of `run` and return all new records.

    Every store is built before the first cell runs. A cell that fails is
    recorded as failed, and the others go on. When all replicates are recorded, the
    step tables move into one file. Where a store cannot be built, the folder of a
    run without a record is removed.

    Parameters
    ----------
    retry_failed
        Repeat replicates with a failed record as well: the new records replace the failed ones, which move to
        ``superseded.jsonl``.

    Raises
    ------
    UsageError
        The run has records of other code than this.
    OutputError, DiskFullError
        Another process is running it, or its folder cannot be written.
    """
    watcher = watcher or Silent()
    running_digest()  # before the first cell, so that a change of the code during the run is detected
    with claimed(run.folder):
        run.mend()
        recorded, work = run.recorded(), run.left(retry_failed=retry_failed)
        rounds = ConversionRounds.of(run.folder, run.run_id, run.scenario, cell_environment())
        going = {one.key for one in work}
        if going:
            kept = [record for key, records in recorded.items() if key not in going for record in records]
            refuse_other_code(kept, run.folder)
        prepared = _prepared(run, work, rounds, stores, data_root, watcher, retry_failed=retry_failed)
        made = []
        for position, one in enumerate(work):
            watcher.started(one, position, len(work))
            with run.attempt() as tables:
                records = _replicate(run, one, prepared[one.cell], tables, drop_caches=drop_caches)
                records = run.record(records, tables, again=one.key in recorded)
            made += records
            watcher.finished(one, records)
        if rounds.repeats:
            converted = {cell: one.store for cell, one in prepared.items()}
            rounds.execute(converted, watcher.store(run.cells[0]).say, retry_failed=retry_failed)
        run.finish()
    return made


def _prepared(
    run: Run,
    work: Sequence[Work],
    rounds: ConversionRounds,
    stores: Path,
    data_root: Path | None,
    watcher: Watcher,
    *,
    retry_failed: bool,
) -> dict[Cell, Prepared]:
    """Build or find the stores for the rest of a run; remove a run in which nothing was measured."""
    cells = dict.fromkeys(one.cell for one in work)
    if rounds.left(dict.fromkeys(run.cells, Path()), retry_failed=retry_failed):
        # Conversions need the stores of finished cells, too, but no cell's own device.
        cells |= dict.fromkeys(cell for cell in run.cells if cell.readahead_kib is None)
    try:
        for refusal in refusals((one.cell for one in work), stores).values():
            raise refusal
        return prepare(cells, run.scenario, stores, data_root, watcher)
    except StorebenchError:
        run.discard()
        raise


def prepare(
    cells: dict[Cell, None],
    scenario: Scenario,
    stores: Path,
    data_root: Path | None,
    watcher: Watcher,
) -> dict[Cell, Prepared]:
    """Build or find the stores of all cells, each once."""
    built: dict[tuple[DatasetSpec, str], Prepared] = {}
    opened: dict[DatasetSpec, Dataset] = {}
    found = {}
    for cell in cells:
        key = (cell.data, store_name_of(cell.backend))
        if key not in built:
            how = watcher.store(cell)
            if cell.data not in opened:
                opened[cell.data] = open_dataset(cell.data, data_root)
            backend, dataset = parse_backend(key[1]), opened[cell.data]
            store = ensure_store(cell.data, backend, stores, dataset=dataset, how=how)
            test = _test_store(cell, store.manifest, scenario.test_limit, stores, data_root, how)
            built[key] = Prepared(store=store.path.resolve(), manifest=store.manifest, test_store=test)
        check_size(cell, built[key].manifest)
        check_network(cell, built[key].manifest)
        found[cell] = built[key]
    for cell in cells:
        if cell.readahead_kib is not None:
            image = ensure_image(found[cell].store, watcher.store(cell).say)
            found[cell] = dataclasses.replace(found[cell], image=image)
    return found


def _test_store(
    cell: Cell, train: Manifest, limit: int, stores: Path, data_root: Path | None, how: How
) -> Path | None:
    """Return the store of test samples of the same origin, or None if the dataset has none."""
    if cell.data.split != Split.TRAIN or limit == 0 or cell.compute.kind is not ComputeKind.REAL:
        return None
    synthetic = train.dataset.provenance.origin is Origin.SYNTHETIC
    spec = DatasetSpec(
        name=cell.data.name,
        split=Split.TEST,
        limit=limit,
        seed=cell.data.seed,
        synthetic=synthetic,
        image_size=cell.data.image_size,
    )
    backend = parse_backend("memory+original" if any_size(cell.backend.codec) else "memory+raw")
    try:
        return ensure_store(spec, backend, stores, data_root=data_root, how=how).path.resolve()
    except DataNotFoundError:
        return None


def _replicate(run: Run, work: Work, prepared: Prepared, tables: Path, *, drop_caches: bool) -> list[Record]:
    with (
        scratch_folder("replicate") as scratch,
        surroundings(work.cell, prepared.image) as around,
    ):
        job = CellJob(
            cell=work.cell,
            replicate=work.replicate,
            run_id=run.run_id,
            run=run.folder.resolve(),
            tables=tables,
            store=prepared.store if prepared.image is None else prepared.image.point,
            test_store=prepared.test_store if work.cell.compute.kind is ComputeKind.REAL else None,
            out=scratch / "out.json",
            check_pixels=run.scenario.check_pixels,
            drop_caches=drop_caches,
            memory_group=around.group.folder if around.group else None,
            image=around.image,
        )
        log = run.folder / LOGS_DIR / f"{work.cell.cell_id}-r{work.replicate}.log"
        answer = answer_of(job, scratch, log, around, run.scenario.timeout_s)
    if "records" in answer:
        if not log.stat().st_size:
            log.unlink()
        records = [record_from_dict(raw, where=str(log)) for raw in answer["records"]]
        return [proven(record, answer.get("package", "")) for record in records]
    return [_failed(run, work, prepared, answer["failure"], epoch) for epoch in range(work.cell.epochs)]


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
