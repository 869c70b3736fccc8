"""The step tables of a run, read and written by pyarrow alone: in ``steps.parquet``, or in a file per record."""

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

MERGED = "steps.parquet"
LABELS = ["steps_file", "cell_id", "replicate", "epoch"]
"""Columns of ``steps.parquet`` that say which record a row belongs to."""


def merged_tables(run: Path) -> dict[str, Any]:
    """Return the tables in ``steps.parquet`` by name, without the columns that name their records."""
    if not (run / MERGED).is_file():
        return {}
    rows = pq.read_table(run / MERGED)
    names = rows["steps_file"].unique().to_pylist()
    return {name: rows.filter(pc.equal(rows["steps_file"], name)).drop_columns(LABELS) for name in names}


def own_tables(run: Path) -> dict[str, Any]:
    """Return the tables in files of their own by name."""
    return {f"steps/{path.name}": pq.read_table(path) for path in (run / "steps").glob("*.parquet")}


def all_tables(run: Path) -> dict[str, Any]:
    """Return all tables by name; the one in a file of its own counts where there are two."""
    return merged_tables(run) | own_tables(run)


def split(run: Path) -> None:
    """Give each table a file of its own, as runs have them that are not finished, or were killed."""
    for name, table in merged_tables(run).items():
        (run / name).parent.mkdir(exist_ok=True)
        pq.write_table(table, run / name)
    (run / MERGED).unlink(missing_ok=True)
