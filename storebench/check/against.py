"""Run another git revision beside the working tree, replicate by replicate: same machine, same minutes."""

import contextlib
import dataclasses
import json
import secrets
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from storebench.analysis.comparison import MIN_ROUNDS
from storebench.check.side_code import (
    SideCode,
    checked_out,
    commit_of,
    find_root,
    side_codes,
    side_environment,
)
from storebench.check.sides import label_of
from storebench.errors import CellFailedError, OutputError, ScenarioError, from_os_error
from storebench.record.lines import PAIRING_NAME, RECORDS_NAME, read_records
from storebench.record.schema import Cell
from storebench.run.launch import end
from storebench.run.resources import permitted
from storebench.run.scenario import Scenario, load_scenario
from storebench.run.schedule import round_of
from storebench.system.lock import claimed
from storebench.system.processes import marked
from storebench.system.progress import Say, mute
from storebench.system.whole_files import write_whole
from storebench.units import format_duration, number_of

# Seconds for a side to end by itself once its standard input is closed.
_LEAVE_S = 10

# Most rounds that a budget adds.
MOST_ROUNDS = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sides:
    baseline: Path
    contender: Path
    commit: str
    repository: Path
    """Top folder of the checkout whose revision `commit` is compared with its working tree."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SideOptions:
    source: Path | None = None
    """File of the scenario, of which the baseline runs the revision's version; None runs the same on both sides."""
    only: Collection[str] = ()
    """Cell ids, backends, formats or datasets to run; empty runs all."""
    replicates: int | None = None
    """Replicates of both sides, with `budget_s` the most; None takes the larger number of the two scenarios."""
    budget_s: float | None = None
    """Seconds for all rounds: as many run as fit, at least `MIN_ROUNDS`. Their number depends on the clock alone."""
    drop_caches: bool = False


def run_against(
    ref: str, scenario: Scenario, out: Path, stores: Path, options: SideOptions, say: Say = mute
) -> Sides:
    """Run `scenario` with a revision (stores in ``against-COMMIT``) and with the working tree, interleaved."""
    root = find_root()
    commit = commit_of(root, ref)
    sides = Sides(baseline=out / "baseline", contender=out / "contender", commit=commit, repository=root)
    with contextlib.ExitStack() as running:
        running.enter_context(claimed(out))
        for folder in (sides.baseline, sides.contender):
            if folder.exists():
                raise OutputError("there is already a run here", where=folder, hint="Name another --out.")
        say(_named(root, commit))
        worktree, scratch = running.enter_context(checked_out(root, commit, say))
        before = _revised(options.source, scenario, root, worktree, say)
        replicates = _replicates_of(options, before, scenario)
        codes = side_codes(root, worktree, scratch)
        jobs = []
        for code, folder, place, asked in (
            (codes[0], sides.baseline, stores / f"against-{commit[:12]}", before),
            (codes[1], sides.contender, stores, scenario),
        ):
            # A side that repeated a replicate by itself would not run beside the other one.
            alone = {"repeat_disturbed": False} if asked.repeat_disturbed else {}
            each = asked.repeated(replicates).model_copy(update=alone)
            say(f"{folder.name}: commit {code.facts.commit or None}, digest {code.facts.digest}")
            jobs.append(
                _Job(
                    code=code,
                    scratch=scratch,
                    folder=folder,
                    stores=place,
                    scenario=each,
                    cells=_runnable(each, options, stores, say),
                    drop_caches=options.drop_caches,
                )
            )
        ids = [{cell.cell_id for cell in job.cells} for job in jobs]
        one_sided = [
            [cell for cell in job.cells if cell.cell_id not in others]
            for job, others in zip(jobs, reversed(ids), strict=True)
        ]
        for cells, why in zip(one_sided, ("lacks a cell of the revision's", "has a new cell"), strict=True):
            for cell in cells:
                say(f"the scenario here {why}: {label_of(cell)}")
        if codes[0].facts.digest == codes[1].facts.digest and before.cells() == scenario.cells():
            say("both sides are the same code: nothing to measure")
            _pair_up(sides, ref, codes, same=True)
            return sides
        processes = [running.enter_context(_side(job)) for job in jobs]
        _pair_up(sides, ref, codes)
        for process, cells in zip(processes, one_sided, strict=True):
            for cell in cells:  # once, so that a check finds them missing and new
                process.run(cell, 0)
        _interleave(processes, replicates, options.budget_s, say)
        for job in jobs:
            if (job.folder / RECORDS_NAME).is_file():
                job.code.check(job.folder.name, read_records(job.folder))
    return sides


def compared(ref: str, scenario: Scenario, options: SideOptions, say: Say = mute) -> Scenario:
    """Say what `run_against` compares; return the scenario with its rounds, of which the revision may have more."""
    root = find_root()
    say(_named(root, commit_of(root, ref)))
    return scenario.repeated(_replicates_of(options, scenario))


def _named(root: Path, commit: str) -> str:
    return f"storebench in {root}: revision {commit[:12]} against the working tree"


def _runnable(scenario: Scenario, options: SideOptions, stores: Path, say: Say) -> list[Cell]:
    """Return the chosen cells of a scenario that this process may run."""
    cells = scenario.chosen(options.only)
    if not cells:
        return []
    allowed = permitted(scenario, cells, stores)
    for line in allowed.lines():
        say(line)
    return allowed.cells


def _replicates_of(options: SideOptions, *scenarios: Scenario) -> int:
    """Return the number of rounds, or the most of them if a budget limits them."""
    if options.replicates is not None:
        return options.replicates
    return MOST_ROUNDS if options.budget_s is not None else max(each.replicates for each in scenarios)


def _revised(source: Path | None, scenario: Scenario, root: Path, worktree: Path, say: Say) -> Scenario:
    """Return the scenario that the baseline runs: the revision's version of the file, if there is one."""
    path = None if source is None else source.resolve()
    revised = worktree / path.relative_to(root) if path and path.is_relative_to(root) else None
    if revised is None or not revised.is_file():
        say("the revision has no such scenario: both sides run the version here")
        return scenario
    try:
        return load_scenario(revised)
    except ScenarioError as error:
        raise ScenarioError(
            f"the revision's version of the scenario cannot be read: {error.what}",
            where=revised.relative_to(worktree),
            hint="Keep the keys and names that it uses, or give a scenario outside the repository.",
        ) from None


def _interleave(processes: "Sequence[_Side]", replicates: int, budget_s: float | None, say: Say) -> None:
    """Let both sides run every replicate, one after the other, taking turns at running first."""
    ids = {cell.cell_id for cell in processes[0].job.cells}
    both = [cell for cell in processes[1].job.cells if cell.cell_id in ids]
    started, done, number = time.monotonic(), 0, 0
    while both and done < replicates:
        spent_s = time.monotonic() - started
        if budget_s is not None and done >= MIN_ROUNDS and spent_s * (done + 1) / done > budget_s:
            break
        for item in round_of(both, done, processes[1].job.scenario.seed):
            where = f"{number + 1} of {replicates * len(both)} pairs of replicates"
            if budget_s is not None:  # the number of rounds is not known in advance
                spent_s = time.monotonic() - started
                where = f"replicate pair {number + 1}, after {spent_s / 60:.1f} of {budget_s / 60:.3g} min"
            say(f"{where}: {label_of(item.cell)}, replicate {item.replicate}")
            for process in processes if number % 2 == 0 else reversed(processes):
                process.run(item.cell, item.replicate)
            number += 1
        done += 1
    if done:
        took_s = time.monotonic() - started
        each = format_duration(took_s / done)
        say(f"{number_of(done, 'round')} took {format_duration(took_s)}; another one takes about {each}")


def _pair_up(sides: Sides, ref: str, codes: Sequence[SideCode], *, same: bool = False) -> None:
    """Record in both runs that they belong together, so that a check pairs their rounds."""
    about = {
        "pairing": secrets.token_hex(8),
        "ref": ref,
        "commit": sides.commit,
        "repository": str(sides.repository),
        "same": same,
    }
    folders = (("baseline", sides.baseline), ("contender", sides.contender))
    for (side, folder), code in zip(folders, codes, strict=True):
        folder.mkdir(exist_ok=True)
        facts = {"side": side, "code": dataclasses.asdict(code.facts)}
        write_whole(folder / PAIRING_NAME, json.dumps({**about, **facts}, indent=2) + "\n")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Job:
    code: SideCode
    scratch: Path
    folder: Path
    stores: Path
    scenario: Scenario
    cells: Sequence[Cell]
    drop_caches: bool

    def as_json(self) -> str:
        """Return the arguments of the side's process: positions of cells, because their ids may be computed anew."""
        ids = {cell.cell_id for cell in self.cells}
        cells = enumerate(self.scenario.cells())
        return json.dumps(
            {
                # Only keys from the file: a revision may not know keys that were added since.
                "scenario": self.scenario.model_dump(mode="json", exclude_unset=True),
                "cells": [position for position, cell in cells if cell.cell_id in ids],
                "folder": str(self.folder.resolve()),
                "stores": str(self.stores.resolve()),
                "drop_caches": self.drop_caches,
                "tree": str(self.code.tree),
            }
        )


class _Side:
    """A process of one revision that runs one replicate of one cell per request."""

    def __init__(self, process: "subprocess.Popen[str]", job: _Job) -> None:
        self._process = process
        self._positions = {cell.cell_id: number for number, cell in enumerate(job.scenario.cells())}
        self.job = job

    def expect(self) -> None:
        """Wait until the process reports that it has finished its request."""
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            raise CellFailedError(
                f"the {self.job.folder.name} side ended with exit code {self._process.returncode}",
                where=self.job.folder,
                hint="Its own message is above; can that revision run this scenario?",
            )

    def run(self, cell: Cell, replicate: int) -> None:
        """Run one replicate of a cell."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{self._positions[cell.cell_id]} {replicate}\n")
            self._process.stdin.flush()
        self.expect()


@contextlib.contextmanager
def _side(job: _Job) -> Iterator[_Side]:
    """Start one side, and end it in any case."""
    python, script = job.code.python, Path(__file__).with_name("against_worker.py")
    try:
        process = subprocess.Popen(
            [str(python), "-P", str(script), job.as_json()],
            env=marked(job.scratch, side_environment()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise from_os_error(error, python) from error
    try:
        side = _Side(process, job)
        side.expect()
        yield side
    finally:
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        try:
            process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            end(process)
