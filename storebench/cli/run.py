"""``storebench run``: train from one or more backends."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storebench import errors
from storebench.accelerators import Accelerator, find_accelerator
from storebench.cli.bench_watch import StderrWatcher
from storebench.cli.checks import require_devices
from storebench.cli.common import (
    dataset_named,
    exit_codes,
    progress,
    put,
    put_json,
    runs_dir,
    say,
    stores_dir,
    writes_into,
)
from storebench.cli.loop_options import loop_values, with_loop_options
from storebench.cli.plan_lines import print_plan, total_line
from storebench.settings.words import ComputeKind
from storebench.units import number_of

if TYPE_CHECKING:
    from storebench.results import Record
    from storebench.scenario import Scenario


@with_loop_options
def run(
    backends: Annotated[
        list[str],
        typer.Argument(metavar="BACKEND...", help="FORMAT[+CODEC][:READER], such as png or lmdb+jpeg."),
    ],
    dataset: Annotated[
        str | None, typer.Option("--dataset", "-d", help="mnist, cifar10, imagenet, or a folder of images.")
    ] = None,
    listed: Annotated[
        Path | None,
        typer.Option("--list", metavar="FILE", help="Image files with labels, one 'PATH LABEL' per line."),
    ] = None,
    split: Annotated[str, typer.Option(help="train or test.")] = "train",
    size: Annotated[
        int | None, typer.Option(min=1, help="Extend or cut the dataset to this many samples.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first samples.")] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Side of the square images, for folders and ImageNet. [default: 256; for original, the network's]",
        ),
    ] = None,
    skip_unreadable: Annotated[
        bool,
        typer.Option("--skip-unreadable", help="Leave out image files that cannot be read or do not decode."),
    ] = False,
    synthetic: Annotated[
        bool | None,
        typer.Option(
            "--synthetic/--real",
            help="Use the synthetic stand-in, or refuse it. [default: only without real files]",
        ),
    ] = None,
    replicates: Annotated[int, typer.Option(min=1, help="Fresh processes per cell.")] = 1,
    drop_caches: Annotated[
        bool,
        typer.Option(
            "--drop-caches",
            help="For cold: also drop the whole machine's caches, including inodes, as the last step (root).",
        ),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="Kill a replicate that takes longer, and record it as failed. [default: 6 hours]",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. [default: a new one in ./runs]")
    ] = None,
    stores: Annotated[Path | None, typer.Option(help="Folder of all stores. [default: ./stores]")] = None,
    accelerators: Annotated[
        list[str] | None,
        typer.Option(
            "--accelerator",
            metavar="NAME[:MODEL]",
            help="Say which backends feed this accelerator; needs --compute none; may be repeated.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print cells, bytes and estimated time; run nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the records (or the plan of a dry run) as JSON.")
    ] = False,
    **loop: Any,
) -> None:
    """Train from each BACKEND in fresh processes.

    Options such as --workers 0,2,4 take several values: every combination with every BACKEND is a cell. The run ends
    with the tables, limits, advice and answer of its report.
    """
    with exit_codes():
        values = loop_values(loop)
        named = [find_accelerator(name) for name in accelerators or ()]
        if named and ComputeKind.NONE not in values["compute"]:
            raise errors.UsageError(
                "--accelerator needs the rate of the loader alone", hint="Add --compute none --model none."
            )
        matrix = {
            "dataset": dataset_named(dataset, listed),
            "split": split,
            "size": size,
            "limit": limit,
            "synthetic": synthetic,
            "image_size": image_size,
            "skip_unreadable": skip_unreadable or None,
            "backends": backends,
            **values,
        }
        from storebench.scenario import make_scenario

        given = {key: value for key, value in matrix.items() if value is not None}
        settings = {"replicates": replicates} | ({} if timeout is None else {"timeout_s": timeout})
        # Before libraries are imported, so that wrong settings are refused at once.
        scenario = make_scenario({"name": "run", **settings, "matrix": [given]})
        if dry_run:
            print_plan(scenario, scenario.cells(), stores or stores_dir(), as_json=as_json)
            return
        folder = out or new_run_folder("run")
        records = _run(scenario, folder, stores or stores_dir(), drop_caches=drop_caches)
        if as_json:
            from storebench.runs.records import record_to_dict

            put_json([record_to_dict(record) for record in records])
        else:
            from storebench.cli.report import print_summary

            print_summary(folder)
        _tell_feeding(folder, named, put=say if as_json else put)
        say(
            f"{folder}: {number_of(len(records), 'record')}; 'storebench report {folder} --out report' draws them"
        )
        leave(records)


def _run(scenario: "Scenario", folder: Path, stores: Path, *, drop_caches: bool) -> list["Record"]:
    from storebench.leftovers import sweep
    from storebench.plan import plan_run
    from storebench.runner import execute
    from storebench.runs.folder import Run
    from storebench.runs.lock import claimed

    cells = scenario.cells()
    require_devices(cells)
    sweep(stores)
    writes_into(folder)
    plan = plan_run(scenario, cells, stores, progress=progress)
    with claimed(folder):
        made = Run.create(scenario, folder, cells)
        for line in (*plan.notes, total_line(scenario, plan)):
            say(line)
        return execute(made, stores, drop_caches=drop_caches, watcher=StderrWatcher())


def _tell_feeding(folder: Path, named: list[Accelerator], *, put: Callable[[str], None]) -> None:
    """Print which backends of a run feed the named accelerators."""
    if named:
        from storebench.report.build import feeding_sentences

        for sentence in feeding_sentences(folder, named):
            put(sentence)


def new_run_folder(name: str) -> Path:
    """Return the folder for a run that starts now: runs/YYYYMMDD-HHMMSS-NAME."""
    return runs_dir() / f"{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}-{name}"


def leave(records: list["Record"], *, hint: str | None = None) -> None:
    """End with exit code 5 and a hint if a cell failed or nothing was measured."""
    failed = [record for record in records if record.failed]
    if not records:
        raise errors.IntegrityError("nothing was measured", hint="Name at least one backend.")
    if failed:
        raise errors.CellFailedError(
            f"{len(failed)} of {number_of(len(records), 'record')} failed; the first: {failed[0].failure}",
            where=failed[0].cell.backend.name,
            hint=hint,
        )
