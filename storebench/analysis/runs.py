"""Read results into tables and compare them, for notebooks and other programs."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from storebench.analysis.checks.records import RunFolders, read_results
from storebench.analysis.comparison import Ratio, unpaired
from storebench.analysis.frame import (
    BACKEND_COLUMNS,
    CELL_COLUMNS,
    PLACE_COLUMNS,
    RECORD_COLUMN,
    Sourced,
    to_frame,
)
from storebench.analysis.panels import paired, rate_ratio
from storebench.analysis.summary import CellSummary, summarise
from storebench.errors import DataNotFoundError, IntegrityError, UsageError
from storebench.record.steps import read_steps

# Columns that change together with the compared one.
_IMPLIED = {
    "backend": BACKEND_COLUMNS,
    "format": ("backend", "format", "reader", "reader_options"),
    "codec": ("backend", "codec", "codec_options"),
    "reader": ("backend", "reader", "reader_options"),
}

# Columns that change the environment: its key cannot be held fixed.
_PLACES = (*PLACE_COLUMNS, "place", "readahead_kib")

STEP_LABELS = (
    *("run_id", "cell_id", "replicate", "epoch"),
    *("dataset", "backend", "format", "codec", "cache", "workers"),
)


def load_results(paths: RunFolders, *, allow_invalid: bool = False) -> pd.DataFrame:
    """Read results into one row per record.

    Parameters
    ----------
    paths
        A run's folder, a folder that holds such folders, or a ``records.jsonl``; or several of them.
    allow_invalid
        Read records that do not validate, too; ``invalid`` is the finding that questions their cell.

    Returns
    -------
    pandas.DataFrame
        The cell's fields (``dataset``, ``backend``, ``cache``, ...), ``cell_id``,
        ``run_id``, ``replicate``, ``epoch``, ``status``, ``failure``, and every
        figure of `storebench.record.schema.Record` with its unit in its name
        (``samples_per_s``, ``data_wait_s``, ``data_wait_p99_ns``,
        ``bytes_on_disk``, ``resident_frac_before``, ...). Digests are
        ``order_digest``, ``loss_digest``. ``steps_path`` is
        the Parquet file of the record's steps (null: none), ``steps_file`` the same as a path from the
        run's folder. ``record`` is the record itself, from which `compare` and the plots are made.
        What was not measured is null.

    Raises
    ------
    DataNotFoundError
        There are no records there.
    IntegrityError
        Records are damaged or wrong, and `allow_invalid` is not set.

    Examples
    --------
    >>> import storebench
    >>> results = storebench.load_results("results/reference/paper")
    >>> warm = results.query("dataset == 'cifar10' and cache == 'warm'")
    >>> rates = warm.groupby("backend").samples_per_s.median()
    """
    return to_frame(read_results(paths, allow_invalid=allow_invalid).rows)


def load_steps(results: RunFolders | pd.DataFrame) -> pd.DataFrame:
    """Read the steps of records into one row per step; of a job, into one row per step and rank.

    Parameters
    ----------
    results
        The same as for `load_results`, or a (filtered) table that it returned. Only
        the steps of these rows are read: filter first, a run may hold millions of steps.

    Returns
    -------
    pandas.DataFrame
        ``run_id``, ``cell_id``, ``replicate``, ``epoch``, ``dataset``, ``backend``,
        ``format``, ``codec``, ``cache``, ``workers``, and the columns of the step tables: ``step``,
        ``warmup``, ``samples``, ``payload_bytes``, ``start_ns``, ``data_wait_ns``,
        ``h2d_ns``, ``compute_ns``, ``paused_ns``, ``worker``, ``fetch_start_ns``, ``fetch_ns``,
        ``decode_ns``, ``prep_ns``, ``ready_ns``, ``device_read_bytes``, ``read_calls``, ``major_faults``,
        ``minor_faults``, ``queue_depth``, ``loss``, and ``rank`` in tables of jobs. Columns that a table
        lacks are null.

    Raises
    ------
    DataNotFoundError
        No record has a step table.
    CorruptDataError
        A file is not one of step tables.

    Examples
    --------
    >>> import storebench
    >>> results = storebench.load_results("results/reference/answer")
    >>> steps = storebench.load_steps(results.query("dataset == 'mnist' and cache == 'cold'"))
    >>> slowest = steps.groupby("backend").data_wait_ns.quantile(0.99)
    """
    return steps_of((results if isinstance(results, pd.DataFrame) else load_results(results))[RECORD_COLUMN])


def steps_of(rows: Iterable[Sourced]) -> pd.DataFrame:
    """Return the steps of records, one row each."""
    parts = []
    for row in rows:
        if row.steps_path is not None:
            steps: pd.DataFrame = read_steps(row.file.parent, str(row.record.steps_file)).to_pandas()
            for position, label in enumerate(STEP_LABELS):
                steps.insert(position, label, row[label])
            parts.append(steps)
    if not parts:
        raise DataNotFoundError(
            "these records have no step files", hint="Run 'storebench bench' to get them."
        )
    return pd.concat(parts, ignore_index=True)


def compare(
    results: pd.DataFrame,
    *,
    by: str = "backend",
    baseline: Any,
    metric: str = "samples_per_s",
    allow_invalid: bool = False,
) -> pd.DataFrame:
    """Compare every value of one column with a baseline, all else being equal.

    Parameters
    ----------
    results
        The table that `load_results` returned.
    by
        Column that differs between the two sides: of the cell ("backend", "codec", "cache", "workers", ...), or
        where it was measured: "machine" (a letter), "filesystem", "storage_device" or "environment_key". Cells of
        separate runs share no round: machines have the verdict "different machines", others are left out.
    baseline
        Value of `by` that the others are divided by.
    metric
        Column that is compared.
    allow_invalid
        Compare cells that do not validate, too; their verdict is "undecided".

    Returns
    -------
    pandas.DataFrame
        One row per pair: the cell's columns, ``baseline``, ``ratio`` (contender over baseline, paired by round),
        ``ratio_lo`` and ``ratio_hi`` (95%, or 99% where rounds spread), ``rounds``, and ``verdict``: "faster" (the
        metric is larger), "slower", "equal" or "undecided". Fewer than five rounds decide nothing.

    Raises
    ------
    UsageError
        `by` is no column of a cell or a place, or the baseline does not occur.
    IntegrityError
        A cell does not validate, and `allow_invalid` is not set.

    Examples
    --------
    >>> import storebench
    >>> results = storebench.load_results("results/reference/paper")
    >>> ratios = storebench.compare(results.query("compute == 'none'"), baseline="png")
    >>> faster = ratios[ratios.verdict == "faster"]
    """
    if by not in (*CELL_COLUMNS, *PLACE_COLUMNS):
        names = ", ".join((*CELL_COLUMNS, *PLACE_COLUMNS))
        raise UsageError(f"no column of a cell is called {by!r}", hint=f"Choose from: {names}.")
    cells = summarise(results)
    wrong = next((cell.invalid for cell in cells if cell.invalid), "")
    if wrong and not allow_invalid:
        raise IntegrityError(f"these results do not validate: {wrong}", hint="Pass allow_invalid=True.")
    fixed = [name for name in CELL_COLUMNS if name not in _IMPLIED.get(by, (by,))]
    bases: dict[tuple[Any, ...], CellSummary] = {}
    for cell in cells:
        if _value(cell, by) == baseline:
            bases.setdefault(_key(cell, fixed, by), cell)
    if not bases:
        raise UsageError(f"the baseline {by}={baseline!r} does not occur in these results")
    pairs = [(cell, bases.get(_key(cell, fixed, by))) for cell in cells]
    sides = [(cell, base) for cell, base in pairs if base is not None and _value(cell, by) != baseline]
    ranks = metric == "samples_per_s" and by in _IMPLIED  # stores have the verdicts of a report
    apart = by == "machine"

    def ratio_of(cell: CellSummary, base: CellSummary) -> Ratio | None:
        if ranks:
            return rate_ratio(cell, base)
        values, others = cell.values(metric), base.values(metric)
        return unpaired([*others.values()], [*values.values()]) if apart else paired(values, others)

    return pd.DataFrame(
        [
            {name: cell.fields[name] for name in CELL_COLUMNS}
            | {name: cell.fact(name) for name in PLACE_COLUMNS}
            | {"baseline": baseline, "ratio": ratio.mid, "ratio_lo": ratio.low, "ratio_hi": ratio.high}
            | {"rounds": ratio.rounds, "verdict": "different machines" if apart else str(ratio.verdict)}
            for cell, base in sides
            if (ratio := ratio_of(cell, base)) is not None
        ]
    )


def _value(cell: CellSummary, by: str) -> Any:
    return cell.fact(by) if by in PLACE_COLUMNS else cell.fields[by]


def _key(cell: CellSummary, fixed: Sequence[str], by: str) -> tuple[Any, ...]:
    place = "" if by in _PLACES else cell.environment_key
    return (place, *(cell.fields[name] for name in fixed))
