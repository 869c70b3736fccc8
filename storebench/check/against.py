"""Run another git revision beside the working tree, replicate by replicate: same machine, same minutes."""

import contextlib
import dataclasses
import json
import secrets
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from storebench.check.rounds import RoundPlan
from storebench.check.side_code import Revision, SideCode, checked_out, side_codes, side_environment
from storebench.check.sides import Pairing, label_of
from storebench.errors import CellFailedError, OutputError, ScenarioError, UsageError, from_os_error
from storebench.formats.origin import plugin_package
from storebench.formats.registry import get_format
from storebench.probes.code import code_digest
from storebench.record.lines import PAIRING_NAME
from storebench.record.schema import Cell
from storebench.run.cell_process import end
from storebench.run.replicates import round_of
from storebench.run.resources import permitted
from storebench.run.scenario import Scenario, load_scenario
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


def run_against(
    revision: Revision,
    scenario: Scenario,
    out: Path,
    stores: Path,
    *,
    source: Path | None = None,
    only: Collection[str] = (),
    replicates: int | None = None,
    budget_s: float | None = None,
    drop_caches: bool = False,
    say: Say = mute,
) -> Sides:
    """Run a scenario with a revision (stores in ``against-COMMIT``) and with the working tree, interleaved.

    Both sides run the revision's version of the file `source`, if there is one, so that no change hides a cell.
    """
    sides = Sides(baseline=out / "baseline", contender=out / "contender")
    folders = (sides.baseline, sides.contender)
    began_s, pairing = time.monotonic(), secrets.token_hex(8)
    with contextlib.ExitStack() as running:
        running.enter_context(claimed(out))
        for folder in folders:
            if folder.exists():
                raise OutputError("there is already a run here", where=folder, hint="Name another --out.")
        say(str(revision))
        worktree, scratch = running.enter_context(checked_out(revision.root, revision.commit, say))
        scenario = in_rounds(_revised(source, scenario, revision.root, worktree, say), replicates, budget_s)
        # A side that repeated a replicate by itself would not run beside the other one.
        alone = {"repeat_disturbed": False} if scenario.repeat_disturbed else {}
        scenario = scenario.model_copy(update=alone)
        if not (cells := scenario.chosen(only)):
            raise UsageError("the revision's scenario has no such cell", where="--only", hint="Leave it out.")
        allowed = permitted(scenario, cells, stores)
        for line in allowed.lines():
            say(line)
        codes = side_codes(revision.root, worktree, scratch, revision.sources)
        for code, folder in zip(codes, folders, strict=True):
            say(f"{folder.name}: commit {code.facts.commit or None}, digest {code.digest}")
        if codes[0].digest == codes[1].digest:
            say("both sides are the same code: nothing to measure")
            _pair_up(sides, codes, Pairing(pairing=pairing, same=True))
            return sides
        places = (stores / f"against-{revision.commit[:12]}", stores)
        # Cells are known to both sides by their positions: a side may compute other ids.
        numbers = {cell: number for number, cell in enumerate(scenario.cells())}
        # A budget may end before the last of them.
        changed_first = sorted(allowed.cells, key=lambda cell: not _has_changed(cell, codes))
        positions = {cell: numbers[cell] for cell in changed_first}
        processes = [
            running.enter_context(
                _side(code, folder, scratch, _job(scenario, positions, code, folder, place, drop_caches))
            )
            for code, folder, place in zip(codes, folders, places, strict=True)
        ]
        _pair_up(sides, codes, Pairing(pairing=pairing))
        end_s = None if budget_s is None else began_s + budget_s
        if ended := _interleave(processes, scenario, positions, end_s, say):
            _pair_up(sides, codes, Pairing(pairing=pairing, ended=tuple(cell.cell_id for cell in ended)))
    return sides


def in_rounds(scenario: Scenario, replicates: int | None, budget_s: float | None) -> Scenario:
    """Return a scenario with the rounds of both sides, or the most of them if a budget limits them."""
    return scenario.repeated(replicates or (scenario.replicates if budget_s is None else MOST_ROUNDS))


def _revised(source: Path | None, scenario: Scenario, root: Path, worktree: Path, say: Say) -> Scenario:
    """Return the scenario that both sides run."""
    path = None if source is None else source.resolve()
    revised = worktree / path.relative_to(root) if path and path.is_relative_to(root) else None
    if revised is None or not revised.is_file():
        say("the revision has no such scenario: both sides run the version here")
        return scenario
    try:
        before = load_scenario(revised)
    except ScenarioError as error:
        say(f"both sides run the version here of the scenario, not the revision's: {error.what}")
        return scenario
    if before.cells() != scenario.cells():
        say("the scenario was edited since the revision: both sides run the revision's version")
    return before


def _has_changed(cell: Cell, codes: Iterable[SideCode]) -> bool:
    """Whether the code of a cell's format differs between the sides; of a plug-in, it may."""
    if plugin_package(cell.backend.format):
        return True
    folder = Path(*type(get_format(cell.backend.format)).__module__.split(".")[:-1])
    return len({code_digest(*sorted((code.tree / folder).rglob("*.py"))) for code in codes}) > 1


def _interleave(
    processes: "Sequence[_Side]",
    scenario: Scenario,
    positions: Mapping[Cell, int],
    end_s: float | None,
    say: Say,
) -> list[Cell]:
    """Let both sides run every replicate, one after the other, taking turns at running first in each cell.

    Return the cells for whose fewest rounds there was no time until `end_s`.
    """
    started, pairs, plan = time.monotonic(), 0, RoundPlan(positions, scenario)
    while going := plan.next(None if end_s is None else end_s - time.monotonic()):
        number, began_s = plan.rounds[going[0]], time.monotonic()
        for process in processes:
            process.ask(f"start {number}")  # both import at the same time
        for process in processes:
            process.expect()
        start_s, took_s = time.monotonic() - began_s, dict[Cell, float]()
        for item in round_of(going, number, scenario.seed):
            began_s = time.monotonic()
            spent = format_duration(began_s - started)
            say(f"replicate pair {pairs + 1}, after {spent}: {label_of(item.cell)}, replicate {number}")
            is_first = (number + positions[item.cell]) % 2 == 0
            for process in processes if is_first else reversed(processes):
                process.ask(f"{positions[item.cell]} {number}")
                process.expect()
            pairs += 1
            took_s[item.cell] = time.monotonic() - began_s
        plan.add(start_s, took_s)
    ended = plan.ended()
    for cell in ended:
        say(f"no time for {label_of(cell)}: a round of it takes {format_duration(plan.took_s[cell])}")
    spent = format_duration(time.monotonic() - started)
    each = format_duration(plan.round_s([cell for cell in positions if cell not in ended]))
    say(f"{number_of(max(plan.rounds.values()), 'round')} took {spent}; another one takes about {each}")
    return ended


def _pair_up(sides: Sides, codes: Sequence[SideCode], about: Pairing) -> None:
    """Record in both runs that they belong together, so that a check pairs their rounds."""
    for folder, code in zip((sides.baseline, sides.contender), codes, strict=True):
        folder.mkdir(exist_ok=True)
        text = about.model_copy(update={"code": code.facts}).model_dump_json(indent=2)
        write_whole(folder / PAIRING_NAME, text + "\n")


def _job(
    scenario: Scenario,
    positions: Mapping[Cell, int],
    code: SideCode,
    folder: Path,
    stores: Path,
    drop_caches: bool,
) -> str:
    """Return the arguments of a side's process."""
    return json.dumps(
        {
            # Only keys from the file: a revision may not know keys that were added since.
            "scenario": scenario.model_dump(mode="json", exclude_unset=True),
            "cells": list(positions.values()),
            "folder": str(folder.resolve()),
            "stores": str(stores.resolve()),
            "drop_caches": drop_caches,
            "tree": str(code.tree),
        }
    )


class _Side:
    """A process of one revision that answers each request."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self._process, self._folder = process, folder

    def expect(self) -> None:
        """Wait until the process reports that it has finished its request."""
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            raise CellFailedError(
                f"the {self._folder.name} side ended with exit code {self._process.returncode}",
                where=self._folder,
                hint="Its own message is above; can that revision run this scenario?",
            )

    def ask(self, request: str) -> None:
        """Let it run a replicate ("POSITION REPLICATE"), or prepare a round ("start ROUND")."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{request}\n")
            self._process.stdin.flush()


@contextlib.contextmanager
def _side(code: SideCode, folder: Path, scratch: Path, job: str) -> Iterator[_Side]:
    """Start one side, and end it in any case."""
    script = Path(__file__).with_name("against_worker.py")
    try:
        process = subprocess.Popen(
            [str(code.python), "-P", str(script), job],
            env=marked(scratch, side_environment()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise from_os_error(error, code.python) from error
    try:
        side = _Side(process, folder)
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
