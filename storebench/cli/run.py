"""``storebench run``: train from one or more backends, or find out which one is worth it."""

import contextlib
import datetime as dt
import itertools
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storebench import errors
from storebench.accelerators import Accelerator, find_accelerator
from storebench.cli.arguments import (
    DatasetOption,
    DropCachesOption,
    DryRunOption,
    LimitOption,
    ListOption,
    RecordsAsJsonOption,
    RunFolderOption,
    SizeOption,
    SkipUnreadableOption,
    SplitOption,
    StoresOption,
    SyntheticOption,
    accelerator_option,
    given_options,
    loop_values,
    refuse_places,
    require_devices,
    require_writable,
    timeout_option,
    with_loop_options,
)
from storebench.cli.output import (
    dataset_named,
    exit_codes,
    progress,
    put_json,
    runs_dir,
    say,
    stores_dir,
    writes_into,
)
from storebench.cli.results import print_summary
from storebench.cli.watcher import StderrWatcher, loop_line, print_plan, total_line
from storebench.settings.loop_fields import NO_MODEL
from storebench.settings.words import ComputeKind
from storebench.units import number_of

if TYPE_CHECKING:
    from storebench.analysis.checks.records import Results
    from storebench.ranks.nodes import NodeAddress
    from storebench.record.schema import Cell
    from storebench.run.first_run import FirstRun
    from storebench.run.folder import Run
    from storebench.run.scenario import Scenario


def chosen_run(
    asked: Mapping[str, Any], rounds: int | None, stores: Path, settings: Mapping[str, Any]
) -> tuple["FirstRun", "Scenario"]:
    """Inspect the samples and the machine, and return the choice and its scenario."""
    from storebench.run.first_run import NAME, asked_matrix, choose, look_at, machine_for
    from storebench.run.scenario import make_scenario, without_missing_libraries

    matrix = asked_matrix(asked)
    # Before the images are looked at, so that wrong settings are refused at once; the backends are not chosen yet.
    valid = make_scenario({"name": NAME, **settings, "matrix": [matrix | {"backends": ["files"]}]})
    say(f"looking at the images of {asked['dataset']}")
    first = choose(look_at(valid.matrix[0].data, stores, progress), machine_for(stores), matrix, rounds)
    # A matrix of which no library is installed is left out, unlike one that was asked for.
    chosen = [each | {"optional": True} for each in first.scenario["matrix"]]
    present = without_missing_libraries({**first.scenario, "matrix": chosen} | dict(settings), say)
    scenario = make_scenario(present)
    return first, scenario


# Options that a continued run takes; everything else is in its folder.
_WITH_RESUME = {"resume", "out", "stores", "drop_caches", "accelerators", "as_json"}


@with_loop_options
def run(
    context: typer.Context,
    backends: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BACKEND...",
            help="FORMAT[+CODEC][:READER], such as png or lmdb+jpeg. [default: the files as they are and the stores "
            "that they could become]",
            show_default=False,
        ),
    ] = None,
    dataset: DatasetOption = None,
    listed: ListOption = None,
    split: SplitOption = "train",
    size: SizeOption = None,
    limit: LimitOption = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Side of the square images, for folders and ImageNet. [default: 256; for original, the network's; "
            "without a BACKEND, 224 or that of smaller images]",
        ),
    ] = None,
    skip_unreadable: SkipUnreadableOption = False,
    synthetic: SyntheticOption = None,
    replicates: Annotated[
        int,
        typer.Option(
            min=1,
            help="Fresh processes per cell. Without a BACKEND: a fixed number instead of as many as needed.",
        ),
    ] = 1,
    drop_caches: DropCachesOption = False,
    timeout: Annotated[float | None, timeout_option("6 hours")] = None,
    out: RunFolderOption = None,
    stores: StoresOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the interrupted run in --out, as it was begun.")
    ] = False,
    accelerators: Annotated[
        list[str] | None,
        accelerator_option("Say which backends feed this accelerator; with BACKENDs, needs --compute none"),
    ] = None,
    dry_run: DryRunOption = False,
    as_json: RecordsAsJsonOption = False,
    **loop: Any,
) -> None:
    """Train from each BACKEND, or see whether converting pays.

    \b
      storebench run --dataset ~/photos --accelerator a100
      storebench run png lmdb hdf5 --dataset mnist --replicates 5
      storebench run png lmdb -d ~/photos --compute none --workers 0,2,4

    Without a BACKEND, it measures how fast the image files can be loaded as they are and from the stores that they
    could become, in about four minutes. It ends with what to do, and a table of the choices.

    Options such as --workers 0,2,4 take several values: every combination with every BACKEND is a cell. The run ends
    with an answer, and a matrix of stores by settings.
    """  # noqa: D301 - the character that keeps lines of help as they are
    with exit_codes():
        from storebench.run.about import stores_of
        from storebench.run.scenario import make_scenario

        given = given_options(context)
        named = [find_accelerator(name) for name in accelerators or ()]
        folder = out or new_run_folder("run")
        place = stores or (stores_of(folder) if resume else None) or stores_dir()
        writes_into(folder)
        if resume:
            _refuse_beside_resume(given, out)
            with continued(folder, place) as run:
                require_devices(run.cells)
                kept = None if place == stores_dir() else place
                with reported_after_interrupt(folder, as_json=as_json, stores=kept, named=named):
                    results = executed(run, place, drop_caches=drop_caches)
            finish(folder, results, as_json=as_json, stores=kept, named=named)
            return
        refuse_places(backends or ())
        samples = {
            "dataset": dataset_named(dataset, listed),
            "split": split,
            "size": size,
            "limit": limit,
            "synthetic": synthetic,
            "image_size": image_size,
            "skip_unreadable": skip_unreadable or None,
        }
        matrix = {key: value for key, value in samples.items() if value is not None}
        values = loop_values(loop)
        settings = {} if timeout is None else {"timeout_s": timeout}
        first = None
        if backends:
            work = {key: value for key, value in values.items() if value is not None}
            if "model" not in work and str(ComputeKind.REAL) not in work["compute"]:
                work["model"] = NO_MODEL
            if work.get("model") == NO_MODEL and "compute" not in given:
                work["compute"] = [str(ComputeKind.NONE)]
            rule = {"name": "run", "replicates": replicates, "repeat_disturbed": True, **settings}
            # Before libraries are imported, so that wrong settings are refused at once.
            scenario = make_scenario({**rule, "matrix": [matrix | work | {"backends": backends}]})
        else:
            given_values = {key: value for key, value in values.items() if key in given}
            rounds = replicates if "replicates" in given else None
            if not dry_run:
                require_writable(place, "--stores")
                require_writable(folder, "--out")
            first, scenario = chosen_run(matrix | given_values, rounds, place, settings)
        computes = [compute.kind for matrix in scenario.matrix for compute in matrix.compute]
        if named and ComputeKind.NONE not in computes:
            raise errors.UsageError(
                "--accelerator needs the rate of the loader alone", hint="Add --compute none."
            )
        if dry_run:
            for line in first.notes if first else ():
                say(line)
            print_plan(scenario, scenario.cells(), place, as_json=as_json)
            return
        cells = scenario.cells()
        require_devices(cells)
        words = ["run", *["--drop-caches"] * drop_caches]
        with (
            begun(scenario, cells, folder, place, words, first) as run,
            reported_after_interrupt(folder, as_json=as_json, stores=stores, named=named),
        ):
            results = executed(run, place, drop_caches=drop_caches)
        finish(folder, results, as_json=as_json, stores=stores, named=named)


def _refuse_beside_resume(given: set[str], out: Path | None) -> None:
    """Refuse what a continued run would not follow: it has its own cells and settings."""
    if out is None:
        raise errors.UsageError("--resume needs the folder of the run", hint="Name it with --out.")
    if other := sorted(given - _WITH_RESUME):
        raise errors.UsageError(
            f"--resume continues the run as it was begun, without {' and '.join(other)}",
            hint="Leave it out, or start a new run.",
        )


@contextlib.contextmanager
def begun(
    scenario: "Scenario",
    cells: Sequence["Cell"],
    folder: Path,
    stores: Path,
    command: Sequence[str],
    first: "FirstRun | None" = None,
) -> Iterator["Run"]:
    """Yield a new run, which no other command can execute at the same time, after saying what it will do."""
    from storebench.run.dry_run import plan_run, require_space
    from storebench.run.folder import Run
    from storebench.system.lock import claimed

    plan = plan_run(scenario, cells, stores, progress=progress)
    require_space(plan, stores)
    with claimed(folder), continued_by(folder):
        whole, notes = (first.whole, first.notes) if first else (None, ())
        run = Run.create(scenario, folder, plan.cells, plan.refused, stores, command, whole, sys.argv[1:])
        for line in (*plan.notes, *notes, loop_line(plan.cells), total_line(scenario, plan)):
            say(line)
        yield run


@contextlib.contextmanager
def continued(folder: Path, stores: Path) -> Iterator["Run"]:
    """Yield an interrupted run, which no other command can execute at the same time."""
    from storebench.run.folder import Run
    from storebench.run.resources import refusals
    from storebench.system.lock import claimed

    Run.read(folder)  # raises if there is no run, before a folder is created
    with claimed(folder), continued_by(folder):
        run = Run.resume(folder)
        for refusal in refusals({work.cell for work in run.left()}, stores).values():
            raise refusal
        yield run


def executed(
    run: "Run",
    stores: Path,
    address: "NodeAddress | None" = None,
    *,
    drop_caches: bool,
    retry_failed: bool = False,
) -> "Results":
    """Execute a run, perhaps as the first of several nodes, and return all of its records with their findings."""
    from storebench.analysis.checks.records import read_results
    from storebench.record.lines import RECORDS_NAME
    from storebench.run.execute import execute
    from storebench.run.leader import leading
    from storebench.run.resources import sweep

    sweep(stores)
    with (
        contextlib.nullcontext() if address is None else leading(address) as leader,
        StderrWatcher(run.scenario.budget_s) as watcher,
    ):
        execute(
            run, stores, drop_caches=drop_caches, retry_failed=retry_failed, watcher=watcher, leader=leader
        )
    return read_results(run.folder / RECORDS_NAME, allow_invalid=True)  # the folder may hold other runs


@contextlib.contextmanager
def continued_by(folder: Path) -> Iterator[None]:
    """After an interrupt, say which command continues a run."""
    from storebench.record.lines import RUN_NAME
    from storebench.run.about import resume_command

    try:
        yield
    except KeyboardInterrupt:
        if (folder / RUN_NAME).is_file():
            with contextlib.suppress(OSError):  # the terminal has gone
                say(f"{folder}: '{resume_command(folder)}' continues this run")
        raise


@contextlib.contextmanager
def reported_after_interrupt(
    folder: Path,
    *,
    as_json: bool,
    stores: Path | None = None,
    named: Sequence[Accelerator] = (),
    report: Path | None = None,
) -> Iterator[None]:
    """Print the summary of an interrupted run and write its report, if it has records."""
    from storebench.analysis.checks.records import read_results
    from storebench.record.lines import RECORDS_NAME

    try:
        yield
    except KeyboardInterrupt:
        if (folder / RECORDS_NAME).is_file():
            results = read_results(folder / RECORDS_NAME, allow_invalid=True)
            with contextlib.suppress(OSError):  # the terminal has gone
                if not as_json:
                    print_summary(results, named, stores)
            if report is not None:
                write_page(results, report)
        raise


def write_page(results: "Results", report: Path) -> None:
    from storebench.report.build import write_content
    from storebench.report.content import content_of

    say(f"page: {write_content(content_of(results), report)[0]}")


def finish(
    folder: Path,
    results: "Results",
    *,
    as_json: bool,
    stores: Path | None = None,
    named: Sequence[Accelerator] = (),
    report: Path | None = None,
    hint: str | None = None,
) -> None:
    """Print what a finished run says, and end with the exit code of its records."""
    from storebench.run.replicates import failures, unsound

    records = [record for record, _ in results.records]
    if as_json:
        from storebench.record.lines import record_to_dict

        put_json([record_to_dict(record) for record in records])
    else:
        print_summary(results, named, stores)
    draws = f"; 'storebench report {shlex.quote(str(folder))} --out report' draws them"
    say(f"{folder}: {number_of(len(records), 'record')}{draws * (report is None)}")
    if report is not None:
        write_page(results, report)
    failed = failures(records)
    if failed:
        raise errors.CellFailedError(
            f"{len(failed)} of {number_of(len(records), 'record')} failed; "
            f"the first: {failed[0].failure or unsound(failed[:1])}",
            where=failed[0].cell.backend.name,
            hint=hint,
        )
    if results.wrong:
        raise errors.IntegrityError(
            f"{number_of(len(results.wrong), 'finding')}, the first: {results.wrong[0]}",
            where=folder,
            hint="Do not use these figures: 'storebench validate' lists all findings.",
        )


def new_run_folder(name: str) -> Path:
    """Return the folder for a run that starts now: runs/YYYYMMDD-HHMMSS-NAME."""
    stamped = f"{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}-{name}"
    names = itertools.chain([stamped], (f"{stamped}-{number}" for number in itertools.count(2)))
    return next(folder for folder in map(runs_dir().joinpath, names) if not folder.exists())
