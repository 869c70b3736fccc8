"""The folder of a run: created, resumed, extended, and appended to, one complete replicate at a time."""

import contextlib
import dataclasses
import datetime as dt
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from storebench._version import __version__
from storebench.errors import CorruptDataError, DataNotFoundError, OutputError, UsageError, from_os_error
from storebench.filesystem import sync
from storebench.record.lines import (
    LOGS_DIR,
    PAIRING_NAME,
    RECORDS_NAME,
    RUN_NAME,
    STEPS_DIR,
    SUPERSEDED_NAME,
    append_records,
    read_records,
    record_from_dict,
    record_to_dict,
)
from storebench.record.schema import Cell, Record, Status
from storebench.run.about import About, Whole, make_run_folders, read_about, write_about
from storebench.run.replicates import (
    PendingReplicate,
    ReplicateKey,
    badness,
    counted,
    is_whole,
    replicate_key,
    schedule,
)
from storebench.run.scenario import Scenario
from storebench.system.json_lines import JsonLine, append_lines, damaged_end, replace_lines, rows_of
from storebench.system.lock import claimed
from storebench.system.scratch import sweep

_UNFINISHED = ".unfinished-"
_TABLE = re.compile(r"[0-9a-f]{12}-r\d+-e\d+(-a\d+)?\.(parquet|tmp)")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run: its folder and its description."""

    folder: Path
    run_id: str
    scenario: Scenario
    cells: list[Cell]
    ended: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The rounds of each cell that the budget ended, by the cell's id."""

    @classmethod
    def create(
        cls,
        scenario: Scenario,
        folder: Path,
        cells: Sequence[Cell],
        refused: Mapping[Cell, UsageError] = {},
        stores: Path | None = None,
        command: Sequence[str] = (),
        whole: Whole | None = None,
        argv: Sequence[str] = (),
    ) -> "Run":
        """Make the folder of a new run; ``run.json`` names what was left out, and the command that continues it."""
        with claimed(folder):
            if (folder / RUN_NAME).exists():
                raise OutputError(
                    "there is already a run here",
                    where=folder,
                    hint="Name another --out, or continue the run there with --resume.",
                )
            run_id = f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}-{scenario.name}"
            about = {
                "run_id": run_id,
                "created_utc": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
                "storebench_version": __version__,
                "command": list(command),
                "argv": list(argv),
                "scenario": scenario.model_dump(mode="json"),
                "cells": [cell.fields() | {"cell_id": cell.cell_id} for cell in cells],
                "left_out": [
                    {"cell_id": cell.cell_id, "backend": cell.backend.name, "reason": error.what}
                    for cell, error in refused.items()
                ],
                "stores": os.path.relpath(stores.resolve(), folder.resolve()) if stores else "",
                "whole": whole,
            }
            make_run_folders(folder)
            write_about(folder, About.model_validate(about))
        return cls(folder=folder, run_id=run_id, scenario=scenario, cells=list(cells))

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Return the run in `folder` without writing to it."""
        path = folder / RUN_NAME
        try:
            about = read_about(path)
            scenario = Scenario.model_validate(about.scenario, strict=False)
        except FileNotFoundError:
            raise DataNotFoundError(
                "there is no run to resume", where=folder, hint="Leave out --resume to start one."
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDataError(
                f"not a run ({type(error).__name__}: {error})", where=path, hint="Start a new run."
            ) from None
        cells = [cell for cell in scenario.cells() if cell.cell_id in about.cell_ids]
        if len(cells) != len(about.cell_ids):
            raise CorruptDataError(
                "its cells are not those of its scenario",
                where=path,
                hint="Another version of storebench wrote it: start a new run.",
            )
        return cls(folder=folder, run_id=about.run_id, scenario=scenario, cells=cells, ended=about.ended)

    @classmethod
    def resume(cls, folder: Path) -> "Run":
        """Resume the run in `folder` where it was interrupted."""
        run = cls.read(folder)
        if (folder / PAIRING_NAME).exists():
            raise UsageError(
                "one side of a comparison with a revision cannot be continued by itself",
                where=folder,
                hint="Compare again, with another --out.",
            )
        make_run_folders(folder)
        return run

    def extended(self, replicates: int) -> "Run":
        """Return this run with more rounds. Recorded replicates stay, and earlier rounds keep their order."""
        if replicates < self.scenario.replicates:
            raise UsageError(
                f"the run has {self.scenario.replicates} planned replicates, which cannot become {replicates}",
                where=self.folder,
                hint="Ask for as many or more, or leave out --replicates.",
            )
        scenario = self.scenario.model_copy(update={"replicates": replicates, "budget": None})
        with claimed(self.folder):
            changes = {"scenario": scenario.model_dump(mode="json"), "ended": {}}
            write_about(self.folder, read_about(self.folder / RUN_NAME).model_copy(update=changes))
        return dataclasses.replace(self, scenario=scenario, ended={})

    def end(self, rounds: Mapping[str, int]) -> "Run":
        """Return this run with so many rounds of some cells, by their ids: its budget has no time for more."""
        ended = {**self.ended, **rounds}
        with claimed(self.folder):
            about = read_about(self.folder / RUN_NAME)
            scenario = about.scenario | {"budget": self.scenario.budget}  # that of this command
            write_about(self.folder, about.model_copy(update={"ended": ended, "scenario": scenario}))
        return dataclasses.replace(self, ended=ended)

    def discard(self) -> None:
        """Remove the folder of a run that measured nothing, because it would look like a result."""
        if any((self.folder / name).exists() for name in (RECORDS_NAME, SUPERSEDED_NAME)):
            return
        (self.folder / RUN_NAME).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a folder with other files in it stays
            for folder in (self.folder / STEPS_DIR, self.folder / LOGS_DIR, self.folder):
                folder.rmdir()

    def recorded(self) -> dict[ReplicateKey, list[Record]]:
        """Return the records of every completely recorded replicate."""
        return {replicate: records for replicate, records in self._grouped().items() if is_whole(records)}

    def left(
        self, recorded: Mapping[ReplicateKey, Sequence[Record]] | None = None, *, retry_failed: bool = False
    ) -> list[PendingReplicate]:
        """Return the replicates that are not completely recorded, in the order of the schedule."""
        done = {
            replicate
            for replicate, records in (self.recorded() if recorded is None else recorded).items()
            if not (retry_failed and any(record.status is Status.FAILED for record in records))
        }
        scenario = self.scenario
        ended = {cell: self.ended[cell.cell_id] for cell in self.cells if cell.cell_id in self.ended}
        rounds = scenario.fewer_replicates | ended
        work = schedule(self.cells, scenario.replicates, scenario.seed, rounds)
        return [pending for pending in work if pending.key not in done]

    def repair(self) -> None:
        """Repair the folder after a killed process, so that only complete replicates stay recorded."""
        with claimed(self.folder):
            make_run_folders(self.folder)
            parts = {key for key, records in self._grouped().items() if not is_whole(records)}
            if damaged_end(self.folder / RECORDS_NAME):
                append_lines(self.folder / RECORDS_NAME, [])  # cuts it off
            if parts:
                self._replace(parts, [])
            try:
                self._remove_leftovers()
            except OSError as error:
                raise from_os_error(error, error.filename or self.folder) from error

    @contextlib.contextmanager
    def attempt(self) -> Iterator[Path]:
        """Make a folder for the step tables of one replicate, and remove it at the end."""
        steps = self.folder.resolve() / STEPS_DIR
        try:
            folder = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=steps))
        except OSError as error:
            raise from_os_error(error, steps) from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def record(
        self, records: Sequence[Record], tables: Path, *, before: Sequence[Record] = ()
    ) -> list[Record]:
        """Record a finished replicate: give its step tables their names, then write all its records at once.

        Of several attempts, the soundest one stays, with the number of all attempts; the others are put aside.
        """
        try:
            named = self._with_tables(records, tables)
            if not before:
                append_records(self.folder, named)
                return named
            if badness(before) < badness(named):
                append_lines(self.folder / SUPERSEDED_NAME, [*map(record_to_dict, named)])
                attempt = named[0].conditions.attempt if named[0].conditions else 1
                named = [counted(record, attempt) for record in before]
            self._replace({replicate_key(record) for record in named}, named)
        except BaseException:
            with contextlib.suppress(OSError):
                self._remove_leftovers()
            raise
        return named

    def _grouped(self) -> dict[ReplicateKey, list[Record]]:
        grouped: dict[ReplicateKey, list[Record]] = {}
        if (self.folder / RECORDS_NAME).is_file():
            with contextlib.suppress(DataNotFoundError):  # the file holds only part of a line
                for record in read_records(self.folder, parts=True):
                    grouped.setdefault(replicate_key(record), []).append(record)
        return grouped

    def _replace(self, old: Collection[ReplicateKey], records: Sequence[Record]) -> None:
        """Move the records of old replicates to ``superseded.jsonl`` and append others, in one step."""
        path = self.folder / RECORDS_NAME

        def is_old(row: JsonLine) -> bool:
            return replicate_key(record_from_dict(row, where=str(path))) in old

        replace_lines(path, self.folder / SUPERSEDED_NAME, is_old, [*map(record_to_dict, records)])

    def _with_tables(self, records: Sequence[Record], tables: Path) -> list[Record]:
        """Give a replicate's step tables unused names, synced to disk; return records that name them."""
        steps = self.folder / STEPS_DIR
        written = {record.epoch: Path(record.steps_file).name for record in records if record.steps_file}
        names, attempt = dict(written), 1
        while any((steps / name).exists() for name in names.values()):
            attempt += 1  # an earlier attempt at the replicate left tables
            names = {
                epoch: f"{Path(name).stem}-a{attempt}{Path(name).suffix}" for epoch, name in written.items()
            }
        try:
            for epoch, name in names.items():
                sync(tables / written[epoch])
                (tables / written[epoch]).rename(steps / name)
            if names:
                sync(steps)
        except OSError as error:
            raise from_os_error(error, steps) from error
        return [
            dataclasses.replace(record, steps_file=f"{STEPS_DIR}/{names[record.epoch]}")
            if record.epoch in names
            else record
            for record in records
        ]

    def _remove_leftovers(self) -> None:
        """Remove partly written files, and step tables that no record names."""
        steps = self.folder / STEPS_DIR
        for folder in steps.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(folder, ignore_errors=True)
        sweep(self.folder)
        rows = itertools.chain(*(rows_of(self.folder / name) for name in (RECORDS_NAME, SUPERSEDED_NAME)))
        named = {row.get("steps_file") for row in rows}
        for file in steps.iterdir():
            if _TABLE.fullmatch(file.name) and f"{STEPS_DIR}/{file.name}" not in named:
                file.unlink(missing_ok=True)
