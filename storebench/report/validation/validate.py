"""Validate results: schema, arithmetic, coverage, cache states, ceilings, and agreement between records."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.codecs import any_size
from storebench.errors import CorruptDataError, DataNotFoundError, StorebenchError
from storebench.ranks.merging import RANK, job_steps, rank_count
from storebench.report.analysis import RunFolders, find_runs
from storebench.report.intervals import Ratio, Round, ratio
from storebench.report.texts.labels import with_interval
from storebench.report.validation.agreement import check_agreement
from storebench.report.validation.data_store import check_data_store
from storebench.report.validation.findings import Finding, Rule, finding, record_name
from storebench.report.validation.job import check_job, check_ranks
from storebench.report.validation.limits import check_limits, memory_rates
from storebench.report.validation.order import check_order
from storebench.report.validation.portion import (
    COLUMNS,
    LATER_COLUMNS,
    check_cold_rates,
    check_portion,
)
from storebench.report.validation.producers import COLUMNS as PRODUCER_COLUMNS
from storebench.report.validation.producers import check_producers
from storebench.report.validation.record import check_record, decodes
from storebench.report.validation.run import check_run
from storebench.report.validation.tables import check_owners
from storebench.results import Record, Status
from storebench.runs.records import (
    RECORDS_NAME,
    RUN_NAME,
    RecordError,
    raw_records,
    record_from_dict,
    without_half_replicate,
)
from storebench.runs.steps import find_table, read_steps
from storebench.settings.words import BOUNDED_STATES, ComputeKind
from storebench.stats import MIN_ROUNDS
from storebench.units import number_of

_COMPUTE_HEADROOM = 1.15
"""A null cell may be slowed down this much by a busy machine: every round, or the whole interval, must be above it."""

_FEW_ROUNDS_HEADROOM = 2.0
"""With fewer than three rounds a busy machine may explain more: 1.54 was seen in a single round of a smoke run."""

_DECODE_MOST_RATIO = 5.0
_DECODE_LEAST_S = 0.1
"""Decoding a sample takes as long in each epoch of a process. A busy machine explains less than this, in epochs this long.

On two cores that three other processes kept busy, 14 small photographs took 5.2 times as long in an epoch that lost its core."""

_STEP_SUMS = ("data_wait", "h2d", "compute", "fetch", "decode", "prep")
_STEP_COLUMNS = ("warmup", "samples", *(f"{name}_ns" for name in _STEP_SUMS))
_NO_COMPUTE_NS = 20_000
"""Most of the usual compute of steps that compute nothing: two readings of the clock, which took at most 4 microseconds."""

_FEW_STEPS = 20
"""Of fewer steps, the lower quartile counts and not the median: a busy machine interrupts half of two steps easily."""

_JOB_COLUMNS = ("start_ns", "payload_bytes")
_NS_ROUNDING_S = 1e-6

Sourced = tuple[Record, Path]
"""A record and the file that it was read from."""


def read_all(paths: RunFolders) -> tuple[list[Sourced], list[Finding]]:
    """Read every valid record; a complete line of JSON that is not a record becomes a finding.

    A half-written line or replicate at the end, as a killed run leaves it, is dropped.
    """
    records: list[Sourced] = []
    findings: list[Finding] = []
    for file in find_runs(paths):
        own_records: list[Record] = []
        before = len(findings)
        for where, raw in raw_records(file):
            try:
                if isinstance(raw, CorruptDataError):
                    raise raw
                own_records.append(record_from_dict(raw, where=where))
            except StorebenchError as error:
                findings.append(_no_record(where, error))
        # A replicate is incomplete here because one of its lines is invalid, not because writing it was interrupted.
        is_sound = file.suffix == ".jsonl" and len(findings) == before
        whole = without_half_replicate(own_records) if is_sound else own_records
        records += [(record, file) for record in whole]
    return records, findings


def nothing_to_read(paths: RunFolders) -> DataNotFoundError:
    """Return the error for record files without a whole record."""
    named = paths if isinstance(paths, str | Path) else ", ".join(map(str, paths))
    return DataNotFoundError(
        "there is no whole record",
        where=str(named),
        hint="If a run was interrupted here, run it again with --resume. Otherwise name the folder of a run.",
    )


def _no_record(where: str, error: StorebenchError) -> Finding:
    if isinstance(error, RecordError) and error.record is not None:
        return finding(Rule.ARITHMETIC, error.record, error.figure, error.wrong)
    return Finding(kind=Rule.SCHEMA, cell=where, cell_id="", run_id="", figure="record", message=error.what)


def validate(paths: RunFolders) -> list[Finding]:
    """Return every finding about the results at `paths`; an empty list means that they are valid.

    Raises
    ------
    DataNotFoundError
        There are no results there.
    CorruptDataError
        A file is half a JSON array.
    """
    records, findings = read_all(paths)
    return findings + validate_records(records)


def validate_records(records: Sequence[Sourced]) -> list[Finding]:
    """Return every finding about records, taken one by one and all together."""
    sound = [(record, file) for record, file in records if record.status is Status.OK]
    usable = [record for record, _ in sound]
    findings = [
        finding
        for record, memory in zip(usable, memory_rates(usable), strict=True)
        for finding in _alone(record, memory)
    ]
    for record, file in sound:
        findings += _check_steps(record, file.parent)
    ids = frozenset(record.cell.cell_id for record in usable)
    stepped = [(record, file.parent) for record, file in sound if record.steps_file is not None]
    for folder in dict.fromkeys(folder for _, folder in stepped):
        findings += check_owners(folder, [record for record, of in stepped if of == folder], ids)
    for folder in dict.fromkeys(file.parent for _, file in records if file.name == RECORDS_NAME):
        findings += check_run(folder, [record for record, file in records if file.parent == folder])
    return [
        *findings,
        *_duplicates(usable),
        *_copies(sound),
        *_kept_pixels(usable),
        *_above_compute(usable),
        *_disagreements(usable),
    ]


def _alone(record: Record, memory: float | None) -> Iterator[Finding]:
    """Yield the findings about one usable record, whose machine copies `memory` bytes per second at best."""
    yield from check_record(record)
    yield from check_agreement(record)
    yield from check_order(record)
    yield from check_job(record)
    yield from check_data_store(record)
    yield from check_limits(record, memory)


def _check_steps(record: Record, run: Path) -> list[Finding]:
    if record.steps_file is None:
        return []
    try:
        path = find_table(run, record.steps_file)
    except CorruptDataError as error:
        return [finding(Rule.STEPS, record, "steps_file", error.what)]
    if path is None:
        return [finding(Rule.STEPS, record, "steps_file", f"{record.steps_file} is not there")]
    try:
        bounded = record.cell.cache in BOUNDED_STATES
        more = (*(COLUMNS if bounded else ()), *(_JOB_COLUMNS if record.job else ()))
        columns = list(dict.fromkeys((*_STEP_COLUMNS, *PRODUCER_COLUMNS, *more)))
        steps = read_steps(path, record.steps_file, columns, later=(*LATER_COLUMNS, RANK))
        ranks = rank_count(steps)
    except CorruptDataError as error:
        message = f"{record.steps_file} cannot be read from {path.name}: {error.what}"
        return [finding(Rule.STEPS, record, "steps_file", message)]
    timed = ~steps["warmup"].astype(bool)
    # Times of a job are means over its ranks.
    sums = {f"{name}_s": float(steps[f"{name}_ns"][timed].sum()) / 1e9 / ranks for name in _STEP_SUMS}
    counts = {
        "steps": len(timed) / ranks,
        "timed_steps": int(timed.sum()) / ranks,
        "samples": int(steps["samples"].sum()),
        "timed_samples": int(steps["samples"][timed].sum()),
    }
    findings = [
        finding(Rule.STEPS, record, name, f"{getattr(record, name):.6g}, but its steps add up to {value:.6g}")
        for name, value in {**sums, **counts}.items()
        if abs(getattr(record, name) - value) > _NS_ROUNDING_S * max(1.0, abs(value))
    ]
    if ranks != record.cell.ranks:
        message = f"its steps are those of {number_of(ranks, 'rank')}, not of {record.cell.ranks}"
        findings.append(finding(Rule.STEPS, record, "steps_file", message))
        return findings
    findings += [
        *check_ranks(record, steps),
        *check_producers(record, steps),
        *_kept_from_a_pass(record, steps),
    ]
    findings += _computing(record, steps["compute_ns"][timed])
    if bounded:
        whole = job_steps(steps)
        findings += [*check_portion(record, whole), *check_cold_rates(record, whole)]
    return findings


def _computing(record: Record, compute_ns: npt.NDArray[np.int64]) -> Iterator[Finding]:
    """Find steps of a cell that only loads in which something was computed. Ranks wait for each other within a step."""
    loads = record.cell.compute.kind is ComputeKind.NONE and record.cell.ranks == 1
    few = len(compute_ns) < _FEW_STEPS
    usual_ns = (
        float(np.quantile(compute_ns, 0.25 if few else 0.5, method="lower")) if len(compute_ns) else 0.0
    )
    if loads and usual_ns > _NO_COMPUTE_NS:
        share = "three quarters of the steps" if few else "half of the steps"
        message = f"{share} computed for {usual_ns / 1000:.3g} µs or more, but a cell that only loads computes nothing"
        yield finding(Rule.STEPS, record, "compute_s", message)


def _duplicates(records: Iterable[Record]) -> Iterator[Finding]:
    seen: set[tuple[Any, ...]] = set()
    for record in records:
        key = (record.run_id, record.cell.cell_id, record.replicate, record.epoch)
        if key in seen:
            yield finding(Rule.SCHEMA, record, "replicate", "the same replicate and epoch is recorded twice")
        seen.add(key)


def _copies(records: Iterable[Sourced]) -> Iterator[Finding]:
    """Find measurements that two runs or two rounds claim to have made: a copy would count as a further round."""
    seen: dict[tuple[Any, ...], Record] = {}
    folders: dict[Path, bool] = {}
    for record, file in records:
        if not folders.setdefault(file.parent, (file.parent / RUN_NAME).is_file()):
            continue
        # Durations have nanoseconds, so that no two epochs agree in all of them.
        key = (record.epoch_s, record.timed_s, record.data_wait_s, record.fetch_s)
        other = seen.setdefault(key, record)
        if other.run_id != record.run_id:
            message = f"run {other.run_id} has an epoch of exactly the same times: one of them is a copy"
            yield finding(Rule.RUN, record, "run_id", message)
        elif other is not record:
            message = f"{record_name(other)} has exactly the same times: one of them is a copy"
            yield finding(Rule.RUN, record, "epoch_s", message)


def _kept_pixels(records: Iterable[Record]) -> Iterator[Finding]:
    """Find epochs whose samples an earlier epoch of the same process had decoded."""
    processes: dict[Hashable, list[Record]] = {}
    for record in filter(decodes, records):
        if record.timed_samples and record.decode_s:
            key = (record.run_id, record.cell.cell_id, record.replicate)
            processes.setdefault(key, []).append(record)
    for epochs in processes.values():
        slowest = max(epochs, key=_decode_sample_s)
        for record in epochs:
            ratio_to_slowest = _decode_sample_s(slowest) / _decode_sample_s(record)
            if slowest.decode_s >= _DECODE_LEAST_S and ratio_to_slowest > _DECODE_MOST_RATIO:
                message = (
                    f"decoding a sample took {ratio_to_slowest:.1f} times as long in epoch {slowest.epoch} of the same"
                    " process: the reader keeps decoded pixels"
                )
                yield finding(Rule.ARITHMETIC, record, "decode_s", message)


def _kept_from_a_pass(record: Record, steps: Mapping[str, npt.NDArray[Any]]) -> Iterator[Finding]:
    """Find a pass over the samples whose pixels an earlier pass of the same epoch had decoded."""
    passes = record.cell.passes or 1
    if passes == 1 or record.cell.ranks > 1 or not decodes(record) or len(steps["decode_ns"]) % passes:
        return
    decoded_s = steps["decode_ns"].reshape(passes, -1).sum(axis=1) / 1e9
    slowest, fastest = int(decoded_s.argmax()), int(decoded_s.argmin())
    if decoded_s[slowest] >= _DECODE_LEAST_S and decoded_s[slowest] > _DECODE_MOST_RATIO * decoded_s[fastest]:
        message = (
            f"decoding took {decoded_s[slowest]:.3g} s in pass {slowest} of the epoch and {decoded_s[fastest]:.3g} s in pass"
            f" {fastest}: the reader keeps decoded pixels"
        )
        yield finding(Rule.ARITHMETIC, record, "decode_s", message)


def _decode_sample_s(record: Record) -> float:
    return record.decode_s / record.timed_samples


def _ceiling_keys(record: Record) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the fields that a null cell must share to be the ceiling: exactly, or with any number of workers."""
    cell = record.cell
    loose = (
        record.environment and record.environment.key,
        *(
            cell.data.name,
            cell.data.split,
            cell.data.size,
            cell.data.limit,
            cell.data.image_size,
            cell.data.skip_unreadable,
            cell.batch_size,
            cell.model,
            cell.compute,
        ),
        *(cell.device, cell.threads, cell.ranks, cell.sync, cell.trainers),
    )
    return (*loose, cell.loader, cell.workers), loose


def _above_compute(records: Sequence[Record]) -> Iterator[Finding]:
    """Find cells that are faster than compute alone by more than the noise between rounds."""
    nulls: dict[tuple[Any, ...], dict[Round, float]] = {}
    cells: dict[str, tuple[Record, dict[Round, float]]] = {}
    for record in records:
        when = (record.run_id, record.replicate)
        if record.cell.backend.is_null:
            for key in _ceiling_keys(record):
                best = nulls.setdefault(key, {})
                best[when] = max(best.get(when, 0.0), record.samples_per_s)
        else:
            best = cells.setdefault(record.cell.cell_id, (record, {}))[1]
            best[when] = max(best.get(when, 0.0), record.samples_per_s)
    for record, rates in cells.values():
        exact, loose = _ceiling_keys(record)
        ceiling = nulls.get(exact) or (
            None if record.cell.compute.kind is ComputeKind.NONE else nulls.get(loose)
        )
        above = ratio(rates, ceiling) if ceiling else None
        if (
            ceiling
            and above is not None
            and _is_above([rates[when] / ceiling[when] for when in rates if when in ceiling], above)
        ):
            message = f"{with_interval(above)} times what compute alone reaches in the same rounds"
            yield finding(Rule.CEILING, record, "samples_per_s", message)


def _is_above(rounds: Sequence[float], above: Ratio) -> bool:
    """Return whether a cell was faster than compute alone in all of its rounds, by more than a busy machine explains."""
    if len(rounds) < MIN_ROUNDS:
        return min(rounds) > _FEW_ROUNDS_HEADROOM
    return min(rounds) > _COMPUTE_HEADROOM or (above.lo is not None and above.lo > _COMPUTE_HEADROOM)


def _disagreements(records: Sequence[Record]) -> Iterator[Finding]:
    honest = [record for record in records if not record.cell.backend.is_null]
    exact = [record for record in honest if record.store is not None and record.store.lossless]
    on_cpu = [record for record in exact if record.cell.device == "cpu"]
    yield from _differing(exact, _data_key, "store", "samples_digest")
    yield from _differing(honest, _order_key, "digests", "order")
    yield from _differing(on_cpu, _loss_key, "digests", "loss")
    files = [record for record in honest if record.store is not None and any_size(record.cell.backend.codec)]
    files_on_cpu = [record for record in files if record.cell.device == "cpu"]
    yield from _differing(files, _store_key, "store", "samples_digest")
    yield from _differing(files_on_cpu, _prepared_loss_key, "digests", "loss")


def _data_key(record: Record) -> Hashable:
    cell = record.cell
    return (
        cell.data.name,
        cell.data.split,
        cell.data.size,
        cell.data.limit,
        cell.data.seed,
        cell.data.synthetic,
        cell.data.image_size,
        cell.data.skip_unreadable,
    )


def _store_key(record: Record) -> Hashable:
    """Return the key of image files as they are: all image sizes share one store."""
    return dataclasses.replace(record.cell.data, image_size=None)


def _prepared_loss_key(record: Record) -> Hashable:
    return (_loss_key(record), record.cell.backend.codec_options)


def _order_key(record: Record) -> Hashable:
    cell = record.cell
    return (
        _data_key(record),
        record.epoch,
        record.replicate,
        cell.seed,
        cell.shuffle,
        cell.batch_size * cell.ranks,
        cell.ranks if cell.pad else None,
        cell.max_steps,
        cell.passes,
        cell.trainers,
        cell.trainer_data,
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
