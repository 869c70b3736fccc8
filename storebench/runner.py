"""Run cells in fresh processes, interleaved in a seeded random order, into one folder of records; resumable.

Within each round every cell runs once, in a newly drawn order, so a machine that
slows down slows every backend. A scenario that states a precision adds rounds of the
cells that lack it (`storebench.rounds`). A replicate is recorded when all of it is
finished, by this process alone (`storebench.runs.folder`).
"""

import contextlib
import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from storebench._version import __version__
from storebench.codecs import any_size
from storebench.conversion_rounds import ConversionRounds
from storebench.datasets import Dataset, DatasetSpec, Origin, open_dataset
from storebench.datasets.listing import listings_in
from storebench.errors import DataNotFoundError, StorebenchError, UsageError
from storebench.formats.origin import proven, refuse_other_code
from storebench.formats.registry import parse_backend, store_name_of
from storebench.manifest import Manifest, store_facts
from storebench.probes.code import cell_environment, running_digest
from storebench.probes.counters import OtherWork
from storebench.ranks.progress import Position
from storebench.ranks.room import check_room
from storebench.results import Cell, Record, Status
from storebench.rounds import FEWEST_REPLICATES, NextRound, PanelPrecision, Stop, Why, has_time, next_round
from storebench.runs.costs import costs_of
from storebench.runs.folder import Run
from storebench.runs.lock import claimed
from storebench.runs.records import LOGS_DIR, RecordError, record_from_dict
from storebench.runs.schedule import PendingReplicate, ReplicateKey
from storebench.scenario import Scenario
from storebench.settings.words import ComputeKind, Split
from storebench.stores.convert import BuildOptions, Replace, ensure_store
from storebench.stores.devices import StoreImage, ensure_image
from storebench.surroundings import check_network, check_parts, check_size, refusals, surroundings
from storebench.system.scratch import scratch_folder
from storebench.worker.ahead import Start, Together, groups
from storebench.worker.job import CellJob
from storebench.worker.launch import answer_of
from storebench.worker.leading import Leader
from storebench.worker.waiting import Waiting

# Run has been imported from here since before it had its own module (`check/against_side.py`).
__all__ = ["Assess", "Prepared", "Run", "Silent", "Watcher", "execute", "prepare"]

Assess = Callable[[Path, Sequence[Record]], Sequence[PanelPrecision]]
"""How precisely the records of a run's folder know the ratios that matter (`storebench.report.precision.run_precision`)."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The stores that a cell reads, and the image of the first if it is put on its own device."""

    store: Path
    manifest: Manifest
    test_store: Path | None
    image: StoreImage | None = None


class Watcher(Protocol):
    """Receives the events of a run."""

    def store(self, cell: Cell) -> BuildOptions:
        """Return the options for building (or finding) the store of `cell`, with its progress."""

    def started(self, work: PendingReplicate, position: int, total: int) -> None:
        """React to the start of a replicate."""

    def ranks(self, positions: Sequence[Position]) -> None:
        """React to the progress of the job's ranks on this node; called several times per second."""

    def finished(self, work: PendingReplicate, records: Sequence[Record]) -> None:
        """React to the records of a finished replicate."""

    def decided(self, run: Run, following: NextRound) -> None:
        """React to the choice of the cells of the next round; there are none if the run is over."""


class Silent:
    """A watcher that reports nothing."""

    def store(self, cell: Cell) -> BuildOptions:  # noqa: ARG002
        """Build without messages; a store of other samples is replaced."""
        return BuildOptions(replace=Replace.STALE)

    def started(self, work: PendingReplicate, position: int, total: int) -> None:
        """Report nothing."""

    def ranks(self, positions: Sequence[Position]) -> None:
        """Report nothing."""

    def finished(self, work: PendingReplicate, records: Sequence[Record]) -> None:
        """Report nothing."""

    def decided(self, run: Run, following: NextRound) -> None:
        """Report nothing."""


def execute(
    run: Run,
    stores: Path,
    *,
    drop_caches: bool = False,
    retry_failed: bool = False,
    watcher: Watcher | None = None,
    assess: Assess | None = None,
    leader: Leader | None = None,
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
    assess
        Says after each round how precise the ratios are; needed if the scenario adds rounds by precision.
    leader
        Has other nodes take part in jobs of several ranks; None for a run on this machine.

    Raises
    ------
    UsageError
        The run has records of other code than this, or its scenario needs `assess`.
    OutputError, DiskFullError
        Another process is running it, or its folder cannot be written.
    """
    watcher = watcher or Silent()
    if run.scenario.stopping is not None and assess is None:
        raise UsageError(
            "the number of rounds of this scenario depends on its results",
            where=run.scenario.name,
            hint="Fix the number of replicates, or run it with 'storebench bench'.",
        )
    running_digest()  # before the first cell, so that a change of the code during the run is detected
    with claimed(run.folder):
        run.repair()
        recorded, work = run.recorded(), run.left(retry_failed=retry_failed)
        if work and run.stopped:
            run = run.going_on()
        rounds = ConversionRounds.of(run.folder, run.run_id, run.scenario, cell_environment())
        going = {pending.key for pending in work}
        if going or _may_grow(run):
            kept = [record for key, records in recorded.items() if key not in going for record in records]
            refuse_other_code(kept, run.folder)
        prepared = _prepared(
            run,
            work,
            rounds,
            stores,
            watcher,
            retry_failed=retry_failed,
            nodes=leader.nodes if leader else 1,
        )
        if leader is not None:
            leader.wait_for_nodes(run.scenario.timeout_s)
        made: list[Record] = []
        while True:
            run, records = _measured(
                run, work, recorded, prepared, watcher, drop_caches=drop_caches, leader=leader
            )
            made += records
            run, more = _decided(run, assess, watcher)
            if not more:
                break
            recorded, work = run.recorded(), run.left()
        if rounds.repeats:
            converted = {cell: ready.store for cell, ready in prepared.items()}
            rounds.execute(converted, watcher.store(run.cells[0]).say, retry_failed=retry_failed)
        run.finish()
    return made


def _prepared(
    run: Run,
    work: Sequence[PendingReplicate],
    rounds: ConversionRounds,
    stores: Path,
    watcher: Watcher,
    *,
    retry_failed: bool,
    nodes: int,
) -> dict[Cell, Prepared]:
    """Build or find the stores for the rest of a run; remove a run in which nothing was measured."""
    cells = dict.fromkeys(pending.cell for pending in work)
    if _may_grow(run):
        cells |= dict.fromkeys(run.cells)  # rounds that are added later may need any of them
    if rounds.left(dict.fromkeys(run.cells, Path()), retry_failed=retry_failed):
        # Conversions need the stores of finished cells, too, but no cell's own device.
        cells |= dict.fromkeys(cell for cell in run.cells if cell.readahead_kib is None)
    try:
        for refusal in refusals((pending.cell for pending in work), stores).values():
            raise refusal
        return prepare(cells, run.scenario, stores, watcher, nodes=nodes)
    except StorebenchError:
        run.discard()
        raise


def _may_grow(run: Run) -> bool:
    """Return whether the run may still add rounds."""
    return run.scenario.stopping is not None and not run.stopped


def _measured(
    run: Run,
    work: Sequence[PendingReplicate],
    recorded: Mapping[ReplicateKey, Sequence[Record]],
    prepared: Mapping[Cell, Prepared],
    watcher: Watcher,
    *,
    drop_caches: bool,
    leader: Leader | None,
) -> tuple[Run, list[Record]]:
    """Run replicates in their order while the budget permits; return the run and the new records."""
    made: list[Record] = []
    position = 0
    for group in groups(work, alone=leader is not None):
        if not _fits(run, group[0].replicate, work):
            return _ended(run, group[0].replicate, watcher), made
        with Together({pending.key: _start(run, pending) for pending in group}) as together:
            attempts = _Attempts(
                run=run, together=together, watcher=watcher, leader=leader, drop_caches=drop_caches
            )
            for pending in group:
                watcher.started(pending, position, len(work))
                position += 1
                made += attempts.records(pending, prepared[pending.cell], recorded.get(pending.key, ()))
    return run, made


def _fits(run: Run, number: int, work: Sequence[PendingReplicate]) -> bool:
    """Return whether a round fits into the budget of a fixed number of rounds, or has begun already."""
    if run.scenario.stopping is not None or run.scenario.budget_s is None or number < FEWEST_REPLICATES:
        return True
    recorded = run.recorded()
    if any(replicate == number for _, replicate in recorded):
        return True
    costs = costs_of(record for records in recorded.values() for record in records)
    pending = [replicate.cell.cell_id for replicate in work if replicate.replicate == number]
    next_s = sum(costs.cell_s.get(cell_id, 0.0) for cell_id in pending)
    return has_time(number, costs.spent_s, next_s, run.scenario.budget_s)


def _ended(run: Run, rounds: int, watcher: Watcher) -> Run:
    """Return a run as one whose budget is spent after some rounds."""
    cell_ids = tuple(cell.cell_id for cell in run.cells)
    stop = Stop(cell_ids=cell_ids, why=Why.BUDGET, widest_frac=None)
    run = run.ended(rounds)
    watcher.decided(run, NextRound(cell_ids=(), stops=(stop,)))
    return run


def _decided(run: Run, assess: Assess | None, watcher: Watcher) -> tuple[Run, bool]:
    """Decide whether the run gets another round; return the run with it, or as one that has stopped, and whether it does."""
    rule = run.scenario.stopping
    if rule is None or assess is None or run.stopped:
        return run, False
    records = [record for replicate in run.recorded().values() for record in replicate]
    following = next_round(rule, assess(run.folder, records), run.rounds, costs_of(records))
    watcher.decided(run, following)
    if following.cell_ids:
        return run.with_round(following.cell_ids), True
    return run.with_stops(following.stops), False


def prepare(
    cells: dict[Cell, None],
    scenario: Scenario,
    stores: Path,
    watcher: Watcher,
    *,
    nodes: int = 1,
    node: int = 0,
) -> dict[Cell, Prepared]:
    """Build or find the stores of all cells, each once.

    Parameters
    ----------
    nodes, node
        Number of nodes of the run, and the number of this node.
    """
    built: dict[tuple[DatasetSpec, str], Prepared] = {}
    opened: dict[DatasetSpec, Dataset] = {}
    told: set[str] = set()
    prepared = {}
    for cell in cells:
        key = (cell.data, store_name_of(cell.backend))
        if key not in built:
            options = watcher.store(cell)
            if cell.data not in opened:
                opened[cell.data] = open_dataset(
                    cell.data, listings=listings_in(stores), progress=options.progress
                )
            backend, dataset = parse_backend(key[1]), opened[cell.data]
            store = ensure_store(cell.data, backend, stores, dataset=dataset, options=options)
            test = _test_store(cell, store.manifest, scenario.test_limit, stores, options, told)
            built[key] = Prepared(store=store.path.resolve(), manifest=store.manifest, test_store=test)
        steps = -(-built[key].manifest.count // cell.batch_size) * (cell.passes or 1)
        if steps < cell.workers * cell.ranks:
            line = (
                f"too few images for {cell.workers} workers x {cell.batch_size}: batches of an epoch: {steps}, so some workers"
                " have nothing to do and rates are those of the others"
            )
            if line not in told:
                watcher.store(cell).say(line)
            told.add(line)
        check_size(cell, built[key].manifest.file_bytes)
        check_network(cell, built[key].manifest)
        check_room(cell, built[key].manifest, nodes, node)
        check_parts(cell, built[key].manifest)
        prepared[cell] = built[key]
    for cell in cells:
        if cell.readahead_kib is not None:
            image = ensure_image(prepared[cell].store, watcher.store(cell).say)
            prepared[cell] = dataclasses.replace(prepared[cell], image=image)
    return prepared


def _test_store(
    cell: Cell, train: Manifest, limit: int, stores: Path, options: BuildOptions, told: set[str]
) -> Path | None:
    """Return the store of test samples of the same origin, or None, which is said, if the dataset has none."""
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
        skip_unreadable=cell.data.skip_unreadable,
    )
    backend = parse_backend("memory+original" if any_size(cell.backend.codec) else "memory+raw")
    try:
        dataset = open_dataset(spec, listings=listings_in(stores), progress=options.progress)
    except DataNotFoundError as error:
        line = f"no test accuracy: {error}"
        if line not in told:
            options.say(line)
        told.add(line)
        return None
    return ensure_store(spec, backend, stores, dataset=dataset, options=options).path.resolve()


@dataclass(frozen=True, kw_only=True)
class _Attempts:
    """Attempts at replicates whose processes were started together."""

    run: Run
    together: Together
    watcher: Watcher
    leader: Leader | None
    drop_caches: bool

    def records(self, work: PendingReplicate, prepared: Prepared, before: Sequence[Record]) -> list[Record]:
        """Run and record a replicate, once more if the scenario repeats it because other work disturbed it.

        Parameters
        ----------
        before
            Its records of an earlier attempt, which the new ones replace; empty if there are none.
        """
        run = self.run
        while True:
            earlier = before[0].conditions if before and run.repeats(before) else None
            with run.attempt() as tables:
                with self.together.process(work.key) as waiting:
                    others = OtherWork(waiting.pid if waiting else None)
                    records = self._answered(work, prepared, tables, waiting)
                    conditions = others.conditions(1 if earlier is None else earlier.attempt + 1)
                conditions = dataclasses.replace(conditions, start_s=self.together.start_s)
                records = [dataclasses.replace(record, conditions=conditions) for record in records]
                records = run.record(records, tables, again=bool(before))
            self.watcher.finished(work, records)
            if not run.repeats(records):
                return records
            before = records

    def _answered(
        self, work: PendingReplicate, prepared: Prepared, tables: Path, waiting: Waiting | None
    ) -> list[Record]:
        run, leader = self.run, self.leader
        with (
            contextlib.nullcontext(waiting.scratch) if waiting else scratch_folder("replicate") as scratch,
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
                check_pixels=run.scenario.checks_pixels(work.replicate),
                ceilings=run.scenario.ceilings,
                drop_caches=self.drop_caches,
                memory_group=around.group.folder if around.group else None,
                image=around.image,
                stall_s=run.scenario.stall_s,
                timeout_s=run.scenario.timeout_s,
            )
            log = _log(run, work)
            job = job if leader is None else leader.announced(job)
            answer = answer_of(job, scratch, log, around, run.scenario.timeout_s, self.watcher.ranks, waiting)
            answer = answer if leader is None else leader.blamed(job, answer)
        if "records" in answer:
            if log.is_file() and not log.stat().st_size:
                log.unlink()
            try:
                records = [record_from_dict(raw, where=str(log)) for raw in answer["records"]]
            except RecordError as error:
                # A reader gives figures of its own, and other cells must not pay for a mistake in them.
                answer = {
                    "failure": f"{error.what}; a reader's decode_ns, payload_bytes and notes() must be right"
                }
            else:
                return [proven(record, answer.get("package", "")) for record in records]
        return [_failed(run, work, prepared, answer["failure"], epoch) for epoch in range(work.cell.epochs)]


def _start(run: Run, work: PendingReplicate) -> Start:
    return Start(log=_log(run, work), mounts=work.cell.readahead_kib is not None)


def _log(run: Run, work: PendingReplicate) -> Path:
    return run.folder / LOGS_DIR / f"{work.cell.cell_id}-r{work.replicate}.log"


def _failed(run: Run, work: PendingReplicate, prepared: Prepared, failure: str, epoch: int) -> Record:
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
