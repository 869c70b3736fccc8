"""A second run of the suspected cells: a slow-down that does not return was noise."""

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from storebench.check.judge import judge
from storebench.check.pairs import CellPair
from storebench.check.policy import Policy
from storebench.check.result import CellResult, CellState
from storebench.check.sides.model import CellData, Side, read_pairing
from storebench.check.sides.read import read_side
from storebench.check.timing import easier
from storebench.errors import IntegrityError, UsageError
from storebench.progress import Say, mute
from storebench.runs.records import RECORDS_NAME
from storebench.system.scratch import scratch_folder
from storebench.units import number_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class RerunOptions:
    """Settings of the second run.

    Attributes
    ----------
    stores
        For records: the folder of all stores.
    pytest_arguments
        For pytest-benchmark: arguments for pytest, which runs in the current folder.
    say
        Receives progress messages.
    """

    stores: Path
    pytest_arguments: Sequence[str] = ()
    say: Say = mute


def confirm(
    results: Sequence[CellResult], baseline: Side, contender: Side, policy: Policy, options: RerunOptions
) -> list[CellResult]:
    """Run the suspected cells again, and judge them by all their replicates; see `confirmed`.

    The second run has as many replicates as the first. A counter outside its band needs no
    confirmation, because it is not noise.
    """
    suspects = [result for result in results if result.suspected]
    if not suspects:
        return list(results)
    options.say(
        f"running {number_of(len(suspects), 'suspected cell')} again: {', '.join(suspect.label for suspect in suspects)}"
    )
    with scratch_folder("confirmation") as scratch:
        again = _again(suspects, baseline, contender, scratch, options)
        return confirmed(results, (baseline, contender), again, policy)


def confirmed(
    results: Sequence[CellResult], sides: tuple[Side, Side], again: tuple[Side, Side], policy: Policy
) -> list[CellResult]:
    """Return the verdicts with those of suspected cells from both of their runs.

    A cell is worse if the second run alone is slower by more than the threshold, and the replicates of both runs
    together are slower beyond chance, corrected for all cells. It stays inconclusive if the second run was not slow and
    the machine had an easier time in it than beside the baseline. Cells are only suspected by the first run, so this
    claims less than a test of twice as many replicates would, and its error is below that of such a test.

    Parameters
    ----------
    sides
        Baseline and contender of the first run.
    again
        Those of the second run; the baseline is the same object where it was not run again.
    """
    ids = [result.cell_id for result in results if result.suspected]
    if not ids:
        return list(results)
    alone = {result.cell_id: result for result in judge(*again, policy, only=ids)}
    fresh = [None if new is old else new for old, new in zip(sides, again, strict=True)]
    later = 1 + max(
        replicate.number for side in sides for name in ids for replicate in side.cells[name].replicates
    )
    whole = sides if None in fresh else _without_halves(sides, ids)
    first, second = (_pooled(side, new, ids, later) for side, new in zip(whole, fresh, strict=True))
    together = {result.cell_id: result for result in judge(first, second, policy)}
    settled = []
    for result in results:
        own = alone.get(result.cell_id)
        excuse = _excuse(own, again, policy)
        settled.append(
            _settled(result, own, together[result.cell_id], excuse) if result.suspected else result
        )
    return settled


def _without_halves(sides: tuple[Side, Side], cell_ids: Sequence[str]) -> tuple[Side, Side]:
    """Return interleaved sides without the last replicates of the named cells that only one of them has."""
    cells: tuple[dict[str, CellData], ...] = tuple(dict(side.cells) for side in sides)
    for name in cell_ids:
        numbers = [{replicate.number for replicate in own[name].replicates} for own in cells]
        for own in cells:
            kept = tuple(
                replicate for replicate in own[name].replicates if replicate.number in numbers[0] & numbers[1]
            )
            own[name] = dataclasses.replace(own[name], replicates=kept)
    first, second = (dataclasses.replace(side, cells=own) for side, own in zip(sides, cells, strict=True))
    return first, second


def _excuse(alone: CellResult | None, again: tuple[Side, Side], policy: Policy) -> str:
    """Return the reason why the machine may have hidden a slow-down in a second run of a cell; "" if there is none."""
    if alone is None:
        return ""
    baseline, contender = (side.cells.get(alone.cell_id) for side in again)
    if baseline is None or contender is None:
        return ""
    return easier(CellPair(baseline=baseline, contender=contender, paired=False, policy=policy), alone)


def _pooled(side: Side, again: Side | None, cell_ids: Sequence[str], number: int) -> Side:
    """Return a side whose named cells have the replicates of a second run, too, numbered from `number` on."""
    if again is None:
        return side
    cells = dict(side.cells)
    for name, cell in side.cells.items():
        more = again.cells.get(name)
        if name in cell_ids and more is not None:
            later = tuple(
                dataclasses.replace(replicate, number=replicate.number + number)
                for replicate in more.replicates
            )
            cells[name] = dataclasses.replace(cell, replicates=cell.replicates + later)
    return dataclasses.replace(side, cells=cells)


def _settled(first: CellResult, again: CellResult | None, together: CellResult, excuse: str) -> CellResult:
    """Return the verdict on a suspected cell after its second run.

    A second run that was not slow, on a machine that had an easier time than the baseline's, clears nothing: the
    figures of the first one stay, so the cell still looks slower.
    """
    if again is None or again.state is CellState.MISSING:
        return dataclasses.replace(
            first, state=CellState.FAILED, reason="it could not be run again to confirm it"
        )
    if again.state in (CellState.FAILED, CellState.NOT_COMPARABLE, CellState.NEW):
        return dataclasses.replace(first, state=again.state, reason=f"when it was run again: {again.reason}")
    slow = again.perhaps_slower or again.state is CellState.WORSE
    if together.state is CellState.WORSE and slow:
        change = "slow" if again.ratio is None else f"{again.ratio - 1:+.0%} time"
        return dataclasses.replace(together, confirmed=True, reason=f"{together.reason}; again: {change}")
    ratio = "" if again.ratio is None else f" ({again.ratio - 1:+.0%})"
    if excuse and not slow:
        reason = f"{first.reason}; a second run decides nothing{ratio}: {excuse}"
        return dataclasses.replace(first, state=CellState.INCONCLUSIVE, confirmed=False, reason=reason)
    reason = f"{first.reason}, which a second run does not confirm{ratio}"
    return dataclasses.replace(together, state=CellState.INCONCLUSIVE, confirmed=False, reason=reason)


def _again(
    suspects: Sequence[CellResult], baseline: Side, contender: Side, scratch: Path, options: RerunOptions
) -> tuple[Side, Side]:
    """Run the suspects again; return the sides to compare. The baseline is new only if both were interleaved."""
    if contender.kind == "pytest-benchmark":
        return baseline, _pytest_again(suspects, contender, scratch, options)
    folder = Path(contender.source)
    if contender.kind != "records" or not (folder / RECORDS_NAME).is_file():
        raise UsageError(
            "these cells cannot be run again",
            where=contender.source,
            hint="--confirm needs the folder that 'storebench bench' wrote, or pytest-benchmark's JSON.",
        )
    if contender.pairing and contender.pairing == baseline.pairing:
        return _against_again(suspects, Path(baseline.source), folder, scratch, options)
    return baseline, _run_again(suspects, folder, scratch, options)


def _run_again(suspects: Sequence[CellResult], folder: Path, scratch: Path, options: RerunOptions) -> Side:
    from storebench.runner import execute
    from storebench.runs.folder import Run

    before = Run.read(folder)
    wanted = {suspect.rerun for suspect in suspects}
    cells = [cell for cell in before.cells if cell.cell_id in wanted]
    run = Run.create(before.scenario, scratch / "again", cells)
    execute(run, options.stores)
    return read_side(run.folder, baseline=False)


def _against_again(
    suspects: Sequence[CellResult], before: Path, folder: Path, scratch: Path, options: RerunOptions
) -> tuple[Side, Side]:
    from storebench.check.against import Revision, SideOptions, run_against
    from storebench.runs.folder import Run

    about = read_pairing(folder)
    sides = run_against(
        Revision(
            ref=about["commit"],
            source=Run.read(before).scenario,
            repository=Path(about["repository"]) if "repository" in about else None,
        ),
        Run.read(folder).scenario,
        scratch / "again",
        options.stores,
        options=SideOptions(
            only=[suspect.rerun for suspect in suspects],
            replicates=max(max(suspect.replicates) for suspect in suspects),
        ),
        say=options.say,
    )
    return read_side(sides.baseline, baseline=True), read_side(sides.contender, baseline=False)


def _pytest_again(
    suspects: Sequence[CellResult], contender: Side, scratch: Path, options: RerunOptions
) -> Side:
    nodes = [suspect.rerun for suspect in suspects]
    for node in nodes:
        if not Path(node.partition("::")[0]).is_file():
            raise UsageError(
                f"{node} is not here, so it cannot be run again",
                where=contender.source,
                hint="Run the check with --confirm in the folder that pytest ran in.",
            )
    alone = any(contender.cells[suspect.cell_id].one_process for suspect in suspects)
    sessions = 1 if alone else max(len(contender.cells[suspect.cell_id].replicates) for suspect in suspects)
    for number in range(sessions):
        options.say(f"session {number + 1} of {sessions}")
        _session(nodes, scratch / f"session-{number}.json", options)
    try:
        return read_side(scratch, baseline=False)
    except IntegrityError:
        # Nothing ran, so each suspect is reported as failed in its second run.
        return Side(source=str(scratch), kind="pytest-benchmark", cells={})


def _session(nodes: Sequence[str], out: Path, options: RerunOptions) -> None:
    """Run some benchmarks in a fresh process; its exit code is ignored, because the file that it writes shows failures."""
    command = [sys.executable, "-m", "pytest", "-q", *nodes, "--benchmark-enable", f"--benchmark-json={out}"]
    subprocess.run([*command, *options.pytest_arguments], stdout=subprocess.DEVNULL, check=False)
