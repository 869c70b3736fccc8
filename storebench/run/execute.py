"""Run each cell in a process of its own, interleaved in a seeded random order, into one folder of records."""

import contextlib
import dataclasses
import datetime as dt
import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from storebench._version import __version__
from storebench.codecs import any_size
from storebench.datasets import Dataset, DatasetSpec, Origin, open_dataset
from storebench.datasets.listing import listings_in
from storebench.errors import CorruptDataError, DataNotFoundError, StorebenchError
from storebench.filesystem import file_system
from storebench.formats.origin import proven, refuse_other_code
from storebench.formats.registry import parse_backend, store_name_of
from storebench.places import copying
from storebench.probes.code import running_digest
from storebench.probes.counters import OtherWork
from storebench.ranks.heartbeat import Position
from storebench.ranks.store_memory import check_room
from storebench.record.lines import LOGS_DIR, record_from_dict
from storebench.record.manifest import Manifest, store_facts
from storebench.record.schema import Cell, PlaceFacts, Record, Status
from storebench.run.cell_process import answer_of
from storebench.run.folder import Run
from storebench.run.leader import Leader
from storebench.run.replicates import (
    PendingReplicate,
    ReplicateKey,
    durations,
    mostly_disturbed,
    round_s,
    wants_repeat,
)
from storebench.run.resources import Surroundings, check_network, check_parts, check_size, surroundings
from storebench.run.scenario import FEWEST_REPLICATES, Scenario
from storebench.settings.words import ComputeKind, Place, Split
from storebench.stores.convert import BuildOptions, Replace, convert
from storebench.stores.copies import StoreImage, ensure_copy, ensure_image
from storebench.system.lock import claimed
from storebench.system.progress import Say
from storebench.system.scratch import scratch_folder
from storebench.worker.forks import ForkServer
from storebench.worker.job import CellJob


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The stores that a cell reads, and the image of the first if it is put on its own device."""

    store: Path
    manifest: Manifest
    test_store: Path | None
    image: StoreImage | None = None
    place: PlaceFacts | None = None
    url: str = ""
    counters: str = ""

    def job(self, job: CellJob, around: Surroundings) -> CellJob:
        """Return a job on these stores, with the resources of its process on this node."""
        return dataclasses.replace(
            job,
            store=self.store if self.image is None else self.image.point,
            test_store=self.test_store if job.cell.compute.kind is ComputeKind.REAL else None,
            memory_group=around.group.folder if around.group else None,
            tier_group=around.tier.folder if around.tier else None,
            image=around.image,
        )


class Watcher(Protocol):
    """Receives the events of a run; a subclass has methods for those that it reacts to."""

    def store(self, cell: Cell) -> BuildOptions:  # noqa: ARG002
        """Return the options for building (or finding) the store of `cell`; a store of other samples is replaced."""
        return BuildOptions(replace=Replace.STALE)

    def started(self, work: PendingReplicate, position: int, total: int) -> None:  # noqa: ARG002
        """React to the start of a replicate."""
        return

    def ranks(self, positions: Sequence[Position]) -> None:  # noqa: ARG002
        """React to the progress of the job's ranks on this node; called several times per second."""
        return

    def finished(self, work: PendingReplicate, records: Sequence[Record]) -> None:  # noqa: ARG002
        """React to the records of a finished replicate."""
        return

    def round_finished(self, number: int, run: Run) -> None:  # noqa: ARG002
        """React to the end of a round, from 0, that others follow."""
        return

    def ended(self, cells: Sequence[Cell], rounds: int) -> None:  # noqa: ARG002
        """React to the end of the time budget for some cells after some rounds."""
        return

    def went_on(self, cells: int) -> None:  # noqa: ARG002
        """React to time that is left for a number of ended cells."""
        return


class Silent(Watcher):
    """A watcher that reports nothing."""


def execute(
    run: Run,
    stores: Path,
    *,
    drop_caches: bool = False,
    retry_failed: bool = False,
    watcher: Watcher | None = None,
    leader: Leader | None = None,
    server: ForkServer | None = None,
) -> list[Record]:
    """Run the remaining replicates of `run`, as forks of `server` if there is one, and return all new records."""
    watcher = watcher or Silent()
    began_s = time.monotonic()
    running_digest()  # before the first cell, so that a change of the code during the run is detected
    with claimed(run.folder):
        run.repair()
        recorded = run.recorded()
        earlier_s = sum(durations(itertools.chain(*recorded.values())).values())
        work = run.left(recorded, retry_failed=retry_failed)
        if work:
            going = {pending.key for pending in work}
            kept = [record for key, records in recorded.items() if key not in going for record in records]
            refuse_other_code(kept, run.folder)
        cells = dict.fromkeys(pending.cell for pending in work)
        try:
            prepared = prepare(cells, run.scenario, stores, watcher, nodes=leader.nodes if leader else 1)
        except StorebenchError:
            run.discard()
            raise
        if leader is not None:
            leader.wait_for_nodes(run.scenario.timeout_s)
        with contextlib.ExitStack() as places:
            server = server or places.enter_context(ForkServer())
            _put_in_place(prepared, watcher, places)
            rounds = _Rounds(
                run=run,
                watcher=watcher,
                leader=leader,
                drop_caches=drop_caches,
                server=server,
                prepared=prepared,
                work=work,
                recorded=recorded,
                began_s=began_s - earlier_s,
            )
            for number in dict.fromkeys(pending.replicate for pending in work):
                if ended := rounds.without_time(number):
                    rounds.run = rounds.run.end({cell.cell_id: number for cell in ended})
                    watcher.ended(ended, number)
                rounds.measure(number)
            rounds.go_on()
    return [record for records in rounds.made.values() for record in records]


def prepare(
    cells: dict[Cell, None],
    scenario: Scenario,
    stores: Path,
    watcher: Watcher,
    *,
    nodes: int = 1,
    node: int = 0,
) -> dict[Cell, Prepared]:
    """Build or find the stores of all cells, each once."""
    built: dict[tuple[DatasetSpec, str], Prepared] = {}
    opened: dict[DatasetSpec, Dataset] = {}
    say_once = functools.cache(lambda line: watcher.store(cell).say(line))
    trained = {
        (cell.data, store_name_of(cell.backend)) for cell in cells if cell.compute.kind is ComputeKind.REAL
    }
    prepared = {}
    for cell in cells:
        key = (cell.data, store_name_of(cell.backend))
        if key not in built:
            options = watcher.store(cell)
            if cell.data not in opened:
                opened[cell.data] = open_dataset(
                    cell.data, listings=listings_in(stores), progress=options.progress
                )
            store = convert(opened[cell.data], cell.data, parse_backend(key[1]), stores, options=options)
            limit = scenario.test_limit if key in trained else 0
            test = _test_store(cell, store.manifest, limit, stores, options, say_once)
            built[key] = Prepared(store=store.path.resolve(), manifest=store.manifest, test_store=test)
        steps = -(-built[key].manifest.count // cell.batch_size) * (cell.passes or 1)
        if steps < cell.workers * cell.ranks:
            say_once(
                f"too few images for {cell.workers} workers x {cell.batch_size}: batches of an epoch: {steps}, "
                "so some workers have nothing to do and rates are those of the others"
            )
        check_size(cell, built[key].manifest.file_bytes)
        check_network(cell, built[key].manifest)
        check_room(cell, built[key].manifest, nodes, node)
        check_parts(cell, built[key].manifest)
        image = (
            None if cell.readahead_kib is None else ensure_image(built[key].store, watcher.store(cell).say)
        )
        prepared[cell] = dataclasses.replace(built[key], image=image)
    return prepared


def _put_in_place(prepared: dict[Cell, Prepared], watcher: Watcher, running: contextlib.ExitStack) -> None:
    """Copy stores to the places that cells name, each once; start and measure the run's own server."""
    places = None

    @functools.cache
    def folder_of(place: Place) -> Path:
        folder = Path(place.folder)
        return folder if place == place.folder else running.enter_context(scratch_folder("copied", folder))

    for cell, stores in prepared.items():
        place, say = cell.place, watcher.store(cell).say
        if place.folder:
            copy = ensure_copy(stores.store, folder_of(place), say)
            facts = PlaceFacts(server=file_system(place.folder))
            prepared[cell] = dataclasses.replace(stores, store=copy, place=facts)
        elif place.kind:
            if places is None:
                from storebench.places.servers import Places

                places = Places(running)
            url, facts = places.holding(stores.store, place, say)
            prepared[cell] = dataclasses.replace(
                stores, place=facts, url=url, counters=places.counters(place)
            )


def _test_store(
    cell: Cell, train: Manifest, limit: int, stores: Path, options: BuildOptions, say: Say
) -> Path | None:
    """Return the store of test samples of the same origin, or None, which is said, if the dataset has none."""
    if cell.data.split != Split.TRAIN or limit == 0:
        return None
    synthetic = train.dataset.provenance.origin is Origin.SYNTHETIC
    spec = dataclasses.replace(cell.data, split=Split.TEST, size=None, limit=limit, synthetic=synthetic)
    backend = parse_backend("memory+original" if any_size(cell.backend.codec) else "memory+raw")
    try:
        dataset = open_dataset(spec, listings=listings_in(stores), progress=options.progress)
    except DataNotFoundError as error:
        say(f"no test accuracy: {error}")
        return None
    return convert(dataset, spec, backend, stores, options=options).path.resolve()


@dataclass(kw_only=True)
class _Rounds:
    """The rounds of a run."""

    run: Run
    watcher: Watcher
    leader: Leader | None
    drop_caches: bool
    server: ForkServer
    prepared: dict[Cell, Prepared]
    work: Sequence[PendingReplicate]
    recorded: dict[ReplicateKey, list[Record]]
    """The records of every replicate, those of earlier commands among them."""
    began_s: float  # When the run began, by `time.monotonic`, had it never been interrupted.
    made: dict[ReplicateKey, list[Record]] = dataclasses.field(default_factory=dict)

    def without_time(self, number: int) -> list[Cell]:
        """Return the cells that end before a round, so that what follows fits into the budget."""
        if not number or any(replicate == number for _, replicate in self.recorded):
            return []
        cells = [pending.cell for pending in self._left(number, number + 1)]
        if number >= FEWEST_REPLICATES:
            return [] if self._has_time(cells) else cells
        ended: list[Cell] = []
        for priority, block in reversed(self._blocks()):
            rest = [p.cell for p in self._left(number, FEWEST_REPLICATES) if p.cell not in ended]
            if priority == 1 or self._has_time(rest):
                break
            ended += [cell for cell in cells if cell in block]
        return ended

    def go_on(self) -> None:
        """Measure cells that were ended after all, where the fewest rounds of all that are compared fit into the budget."""
        for _, block in self._blocks():
            ended = {cell.cell_id for cell in block} & self.run.ended.keys()
            rest = [p for p in self.work if p.cell.cell_id in ended and p.replicate < FEWEST_REPLICATES]
            rest = [pending for pending in rest if pending.key not in self.made]
            if rest and self._has_time([pending.cell for pending in rest]):
                self.run = self.run.end({pending.cell.cell_id: pending.replicate + 1 for pending in rest})
                self.watcher.went_on(len(ended))
                self._measure_all(rest, rest)

    def _blocks(self) -> list[tuple[int, list[Cell]]]:
        """Return the cells that are compared with each other, and their priority, those that end last first."""
        priorities = self.run.scenario.priorities
        blocks: dict[tuple[int, str], list[Cell]] = {}
        for cell in self.run.cells:
            blocks.setdefault((priorities[cell], cell.compared_with), []).append(cell)
        return sorted(
            ((priority, cells) for (priority, _), cells in blocks.items()), key=lambda each: each[0]
        )

    def _left(self, first: int, end: int) -> list[PendingReplicate]:
        """Return the replicates of some rounds that are to be measured, those from `first` to before `end`."""
        ended = self.run.ended
        within = (p for p in self.work if first <= p.replicate < min(end, ended.get(p.cell.cell_id, end)))
        return [pending for pending in within if pending.key not in self.made]

    def _has_time(self, cells: Sequence[Cell]) -> bool:
        """Whether replicates of some cells fit into the budget."""
        budget_s = self.run.scenario.budget_s
        if budget_s is None:
            return True
        took = durations(itertools.chain(*self.recorded.values()))
        return time.monotonic() - self.began_s + round_s(took, [cell.cell_id for cell in cells]) <= budget_s

    def measure(self, number: int) -> None:
        """Measure a round."""
        whole = [PendingReplicate(cell=cell, replicate=number) for cell in self.prepared]
        self._measure_all(self._left(number, number + 1), whole)
        if self._left(number + 1, self.run.scenario.replicates):
            self.watcher.round_finished(number, self.run)

    def _measure_all(self, replicates: Sequence[PendingReplicate], again: Sequence[PendingReplicate]) -> None:
        """Measure replicates, then those again that were disturbed or did not hold their state."""
        for pending in replicates:
            self._measure(pending, self.work.index(pending))
        while again := [pending for pending in again if self._repeats(pending)]:
            for pending in again:
                self._measure(pending, self.work.index(replicates[-1]))

    def _repeats(self, pending: PendingReplicate) -> bool:
        """Whether a replicate is worth another attempt, for which there is time beside the fewest rounds."""
        round_of = [records for (_, number), records in self.recorded.items() if number == pending.replicate]
        records = self.recorded.get(pending.key)
        if records is None or not self.run.scenario.repeat_disturbed:
            return False
        if not wants_repeat(records, is_busy=mostly_disturbed(round_of)):
            return False
        later = self._left(pending.replicate + 1, FEWEST_REPLICATES)
        return self._has_time([pending.cell, *(each.cell for each in later)])

    def _measure(self, pending: PendingReplicate, position: int) -> None:
        """Measure a replicate; the records of the soundest attempt stand."""
        self.watcher.started(pending, position, len(self.work))
        before = self.recorded.get(pending.key, [])
        attempt = 1 + max((r.conditions.attempt for r in before if r.conditions is not None), default=0)
        with self.run.attempt() as tables:
            others = OtherWork(self.server.cpu_s)
            records = self._answered(pending, self.prepared[pending.cell], tables)
            conditions = others.conditions(attempt)
            records = [dataclasses.replace(record, conditions=conditions) for record in records]
            records = self.run.record(records, tables, before=before)
        self.recorded[pending.key] = self.made[pending.key] = records
        self.watcher.finished(pending, records)

    def _answered(self, work: PendingReplicate, prepared: Prepared, tables: Path) -> list[Record]:
        run, leader = self.run, self.leader
        with (
            scratch_folder("replicate") as scratch,
            surroundings(work.cell, prepared.image) as around,
            _copied_back(work.cell, prepared) as here,
        ):
            job = CellJob(
                cell=work.cell,
                replicate=work.replicate,
                run_id=run.run_id,
                run=run.folder.resolve(),
                tables=tables,
                store=here.store,
                out=scratch / "out.json",
                ceilings=run.scenario.ceilings,
                drop_caches=self.drop_caches,
                url=here.url if work.cell.place.remote else "",
                counters=here.counters if work.cell.place.remote else "",
                stall_s=run.scenario.stall_s,
                timeout_s=run.scenario.timeout_s,
            )
            job = here.job(job, around)
            log = run.folder / LOGS_DIR / f"{work.cell.cell_id}-r{work.replicate}.log"
            job = job if leader is None else leader.announced(job)
            answer = answer_of(job, scratch, log, around, self.watcher.ranks, self.server)
            answer = answer if leader is None else leader.blamed(job, answer)
        if "records" in answer:
            try:
                records = [record_from_dict(raw, where=str(log)) for raw in answer["records"]]
            except CorruptDataError as error:
                # A reader gives figures of its own, and other cells must not pay for a mistake in them.
                answer = {
                    "failure": f"{error.what}; a reader's decode_ns, payload_bytes and notes() must be right"
                }
            else:
                records = [dataclasses.replace(record, place=here.place) for record in records]
                return [proven(record, answer.get("package", "")) for record in records]
        return [
            Record(
                storebench_version=__version__,
                run_id=run.run_id,
                cell=work.cell,
                replicate=work.replicate,
                epoch=epoch,
                status=Status.FAILED,
                failure=answer["failure"],
                started_utc=dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
                store=store_facts(prepared.manifest),
            )
            for epoch in range(work.cell.epochs)
        ]


@contextlib.contextmanager
def _copied_back(cell: Cell, prepared: Prepared) -> Iterator[Prepared]:
    """Copy the store of a cell from its place to this disk, timed, if it asks for that; remove it afterwards."""
    if not cell.place.copies:
        yield prepared
        return
    from storebench.system.isolated import apart

    store = prepared.store
    with scratch_folder("copied", store.parent) as folder:
        target = folder / store.name
        copy_s = apart(copying.copy_back, store, prepared.url, target)
        assert prepared.place is not None
        facts = dataclasses.replace(prepared.place, copy_s=copy_s)
        yield dataclasses.replace(prepared, store=target, place=facts)
