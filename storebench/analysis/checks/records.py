"""The one door from folders of runs to validated records and summaries, and the rules that records obey together."""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storebench.analysis.checks.findings import Finding, Rule, finding, record_name
from storebench.analysis.checks.rules import check_record, decodes
from storebench.analysis.checks.shared_runs import check_shared
from storebench.analysis.checks.step_tables import check_steps
from storebench.analysis.comparison import MIN_ROUNDS
from storebench.analysis.frame import Round, Sourced, sourced
from storebench.analysis.summary import CellSummary, summarise
from storebench.codecs import any_size
from storebench.errors import CorruptDataError, DataNotFoundError, IntegrityError, StorebenchError
from storebench.record.lines import (
    RECORDS_NAME,
    RUN_NAME,
    raw_records,
    record_from_dict,
    without_half_replicate,
)
from storebench.record.schema import Record, Status
from storebench.record.shared import SUFFIX, is_shared, shared_records
from storebench.run.about import read_about
from storebench.units import number_of

# A record and the file that it was read from.
Pair = tuple[Record, Path]

RunFolders = str | Path | Sequence[str | Path]

# Decoding a sample takes as long in each epoch of a process; a busy machine explains less than this, but for few samples.
_DECODE_MOST_RATIO, _DECODE_LEAST_S, _DECODE_FEWEST = 5.0, 0.1, 100

# How much faster than the null cell a cell may be in every round, because of a busy machine.
_COMPUTE_HEADROOM = 1.15


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """The records of some runs, and what is wrong with them."""

    records: tuple[Pair, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def wrong(self) -> list[Finding]:
        """The findings that question a whole cell."""
        return [finding for finding in self.findings if not finding.of_replicate]

    @functools.cached_property
    def rows(self) -> list[Sourced]:
        """The records with what their folders say; the first finding that questions a cell marks its records."""
        invalid = {f.cell_id: f"{f.figure}: {f.message}" for f in reversed(self.wrong) if f.cell_id}
        return sourced(self.records, invalid)

    @functools.cached_property
    def cells(self) -> list[CellSummary]:
        return summarise(self.rows)

    @property
    def cells_by_run(self) -> list[CellSummary]:
        """The summaries of each run for itself."""
        runs = itertools.groupby(self.rows, lambda row: row.file)
        return [cell for _, rows in runs for cell in summarise(rows)]


def read_results(paths: RunFolders, *, allow_invalid: bool = False) -> Results:
    """Return the validated records at `paths`: run folders, folders of run folders, or files.

    Raises DataNotFoundError if there are none, and IntegrityError if they are damaged or wrong without `allow_invalid`.
    """
    results = examine(paths)
    if wrong := [] if allow_invalid else results.wrong:
        raise IntegrityError(
            f"{number_of(len(wrong), 'finding')}, the first: {wrong[0]}",
            hint="See 'storebench validate', or pass --allow-invalid where a command has it.",
        )
    if not results.records:
        raise _nothing_to_read(paths)
    return results


def read_run(run: Path) -> list[Record]:
    """Return the validated records of one run: those of its folder, which may hold other runs, or of a file."""
    return [record for record, _ in read_results(run / RECORDS_NAME if run.is_dir() else run).records]


def examine(paths: RunFolders) -> Results:
    """Return the records at `paths` with every finding about them; a line that is not a record is a finding.

    A half-written line or replicate at the end, as a killed run leaves it, is dropped.
    """
    records: list[Pair] = []
    findings: list[Finding] = []
    for file in find_runs(paths):
        of_file: list[Record] = []
        before = len(findings)
        for where, raw in shared_records(file) if is_shared(file) else raw_records(file):
            try:
                if isinstance(raw, CorruptDataError):
                    raise raw
                of_file.append(record_from_dict(raw, where=where))
            except StorebenchError as error:
                findings.append(Finding(kind=Rule.SCHEMA, cell=where, figure="record", message=error.what))
        # A replicate is incomplete here because one of its lines is invalid, not because writing it was interrupted.
        is_sound = len(findings) == before
        whole = without_half_replicate(of_file) if is_sound and not is_shared(file) else of_file
        records += [(record, file) for record in whole]
        if is_sound and is_shared(file):
            findings += check_shared(file, of_file, summarise(sourced((r, file) for r in of_file)))
    if not records and not findings:
        raise _nothing_to_read(paths)
    return Results(records=tuple(records), findings=(*findings, *validate_records(records)))


def find_runs(paths: RunFolders) -> list[Path]:
    """Return the record files at `paths`: run folders, folders of run folders, or files."""
    sources = [Path(paths)] if isinstance(paths, str | Path) else list(map(Path, paths))
    files: list[Path] = []
    for source in sources:
        inside = sorted(source.rglob(RECORDS_NAME)) if source.is_dir() else []
        inside = inside or sorted(source.glob(f"*{SUFFIX}"))
        if not inside and not source.is_file():
            raise DataNotFoundError(
                f"no {RECORDS_NAME} here, so there is nothing to report"
                if source.exists()
                else "no such file or folder",
                where=source,
                hint="Name a folder that 'storebench run' or 'storebench bench' wrote.",
            )
        files += inside or [source]
    return list(dict.fromkeys(file.resolve() for file in files))


def _nothing_to_read(paths: RunFolders) -> DataNotFoundError:
    return DataNotFoundError(
        "there is no whole record",
        where=str(paths) if isinstance(paths, str | Path) else ", ".join(map(str, paths)),
        hint="If a run was interrupted here, run it again with --resume. Otherwise name the folder of a run.",
    )


def validate_records(records: Sequence[Pair]) -> list[Finding]:
    """Return every finding about records, taken one by one and all together."""
    sound = [(record, file) for record, file in records if record.status is Status.OK]
    usable = [record for record, _ in sound]
    findings: list[Finding] = []
    memory: dict[Hashable, float] = {}
    for record in usable:
        if rate := record.ceilings.memory_bytes_per_s:
            memory[_machine_cell(record)] = max(rate, memory.get(_machine_cell(record), 0.0))
    for record, file in sound:
        findings += check_record(record, memory.get(_machine_cell(record)))
        findings += check_steps(record, file.parent) if not is_shared(file) else ()
    for folder in dict.fromkeys(file.parent for _, file in records if file.name == RECORDS_NAME):
        findings += _unreadable(folder / RUN_NAME)
    return [
        *findings,
        *_recorded_twice(usable),
        *_kept_pixels(usable),
        *_above_compute(usable),
        *_disagreements(usable),
    ]


def _unreadable(about: Path) -> Iterator[Finding]:
    """Find a ``run.json`` that cannot be read, so that nobody knows which replicates are missing."""
    try:
        if about.exists():
            read_about(about)
    except (OSError, CorruptDataError) as error:
        reason = error.what if isinstance(error, CorruptDataError) else str(error)
        message = f"it is not complete JSON with a list of cells, so the planned cells are unknown: {reason}"
        yield Finding(kind=Rule.RUN, cell=str(about), figure=about.name, message=message)


def _machine_cell(record: Record) -> Hashable:
    return record.environment and record.environment.key, record.cell.cell_id


def _recorded_twice(records: Iterable[Record]) -> Iterator[Finding]:
    """Find replicates that are recorded twice: a copy would count as a further round."""
    names: set[tuple[Any, ...]] = set()
    for record in records:
        key = (record.run_id, record.cell.cell_id, record.replicate, record.epoch)
        if key in names:
            yield finding(Rule.SCHEMA, record, "replicate", "the same replicate and epoch is recorded twice")
        names.add(key)


def _kept_pixels(records: Iterable[Record]) -> Iterator[Finding]:
    """Find epochs whose samples an earlier epoch of the same process had decoded."""
    processes: dict[Hashable, list[Record]] = {}
    for record in filter(decodes, records):
        if record.timed_samples >= _DECODE_FEWEST and record.decode_s:
            processes.setdefault((record.run_id, record.cell.cell_id, record.replicate), []).append(record)
    for epochs in processes.values():
        slowest = max(epochs, key=_decode_sample_s)
        for record in epochs:
            times = _decode_sample_s(slowest) / _decode_sample_s(record)
            # An epoch of a few steps may have all the large files.
            times *= min(1.0, _sample_bytes(record) / _sample_bytes(slowest))
            if slowest.decode_s >= _DECODE_LEAST_S and times > _DECODE_MOST_RATIO:
                message = (
                    f"decoding a sample took {times:.1f} times as long in epoch {slowest.epoch} of the same process:"
                    " the reader keeps decoded pixels"
                )
                yield finding(Rule.ARITHMETIC, record, "decode_s", message)


def _decode_sample_s(record: Record) -> float:
    return record.decode_s / record.timed_samples


def _sample_bytes(record: Record) -> float:
    return max(1, record.payload_bytes) / record.timed_samples


def _above_compute(records: Sequence[Record]) -> Iterator[Finding]:
    """Find cells that are faster than compute alone in all of their rounds, by more than a busy machine explains."""
    nulls: dict[Hashable, dict[Round, float]] = {}
    cells: dict[str, tuple[Record, dict[Round, float]]] = {}
    for record in records:
        if record.cell.backend.is_null:
            rates = nulls.setdefault(_work(record), {})
        else:
            rates = cells.setdefault(record.cell.cell_id, (record, {}))[1]
        when = (record.run_id, record.replicate)
        rates[when] = max(rates.get(when, 0.0), record.samples_per_s or 0.0)
    for record, rates in cells.values():
        ceiling = nulls.get(_work(record), {})
        ratios = [rates[when] / ceiling[when] for when in rates if when in ceiling]
        if len(ratios) >= MIN_ROUNDS and min(ratios) > _COMPUTE_HEADROOM:
            message = f"at least {min(ratios):.3g} times what compute alone reaches in the same rounds"
            yield finding(Rule.CEILING, record, "samples_per_s", message)


def _work(record: Record) -> Hashable:
    """Return the fields that a cell shares with the null cell of the same work."""
    cell, data = record.cell, record.cell.data
    return (
        record.environment and record.environment.key,
        *(data.name, data.split, data.size, data.limit, data.image_size, data.skip_unreadable),
        *(cell.batch_size, cell.model, cell.compute, cell.device, cell.threads),
        *(cell.ranks, cell.sync, cell.trainers, cell.loader, cell.workers),
    )


def _disagreements(records: Sequence[Record]) -> Iterator[Finding]:
    """Find stores that hold other samples, orders that differ within a round, and losses that should be equal."""
    honest = [record for record in records if not record.cell.backend.is_null]
    exact = [record for record in honest if record.store is not None and record.store.lossless]
    yield from _differing(exact, lambda record: record.cell.data, "store", "samples_digest")
    yield from _differing(honest, _order_key, "digests", "order")
    yield from _differing([r for r in exact if r.cell.device == "cpu"], _loss_key, "digests", "loss")
    files = [record for record in honest if record.store is not None and any_size(record.cell.backend.codec)]
    yield from _differing(
        files, lambda r: dataclasses.replace(r.cell.data, image_size=None), "store", "samples_digest"
    )
    on_cpu = [record for record in files if record.cell.device == "cpu"]
    yield from _differing(on_cpu, lambda r: (_loss_key(r), r.cell.backend.codec_options), "digests", "loss")


def _order_key(record: Record) -> Hashable:
    cell = record.cell
    return (
        *(cell.data, record.epoch, record.replicate, cell.seed, cell.shuffle, cell.batch_size * cell.ranks),
        *(cell.ranks if cell.pad else None, cell.max_steps, cell.passes, cell.trainers, cell.trainer_data),
        cell.backend.name if cell.backend.native_order else None,
    )


def _loss_key(record: Record) -> Hashable:
    cell = record.cell
    place = record.environment and record.environment.key
    exchange = (cell.ranks, cell.sync, cell.tournament_steps)
    return (_order_key(record), place, cell.model, cell.compute, cell.device, cell.threads, exchange)


def _differing(
    records: Sequence[Record], key: Callable[[Record], Hashable], part: str, name: str
) -> Iterator[Finding]:
    """Yield a finding for each record whose digest differs from that of most records in its group."""
    groups: dict[Hashable, list[tuple[str, Record]]] = {}
    for record in records:
        digest = getattr(getattr(record, part), name, None)
        if digest is not None:
            groups.setdefault(key(record), []).append((digest, record))
    for group in groups.values():
        usual, votes = Counter(digest for digest, _ in group).most_common(1)[0]
        reference = next(record for digest, record in group if digest == usual)
        for digest, record in group:
            if digest != usual:
                message = f"{digest}, where {votes} of {len(group)} say {usual} ({record_name(reference)})"
                yield finding(Rule.DISAGREEMENT, record, f"{part}.{name}", message)
