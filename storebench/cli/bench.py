"""``storebench bench``: run a scenario, or print its plan."""

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storebench.cli.arguments import (
    DropCachesOption,
    DryRunOption,
    JsonOption,
    RecordsAsJsonOption,
    RunFolderOption,
    StoresOption,
    require_devices,
    require_writable,
    timeout_option,
)
from storebench.cli.output import exit_codes, put, put_json, say, stores_dir, writes_into
from storebench.cli.run import begun, continued, executed, finish, new_run_folder, reported_after_interrupt
from storebench.cli.watcher import StderrWatcher, print_plan
from storebench.errors import UsageError
from storebench.units import number_of, parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storebench.ranks.nodes import NodeAddress
    from storebench.record.schema import Cell
    from storebench.run.folder import Run
    from storebench.run.scenario import Scenario


def bench(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO",
            help="Name of a scenario that 'storebench scenarios' lists, or path of a scenario file (.toml).",
        ),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Run only cells of this backend, format or dataset; may be repeated."),
    ] = None,
    replicates: Annotated[
        int | None,
        typer.Option(
            "--replicates",
            "--rounds",
            min=1,
            help="Fresh processes per cell, a fixed number. [default: the scenario's]",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="REF", help="Interleave with this git revision, replicate by replicate."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time for the run, such as '10 min': at least 5 rounds of the cells that the answer needs.",
        ),
    ] = None,
    drop_caches: DropCachesOption = False,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Run jobs of several ranks on so many nodes, each with this command."
        ),
    ] = None,
    rendezvous: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="For --nodes: where the nodes meet, on the first of them."),
    ] = None,
    node: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="K",
            help="For --nodes: number of this node. [default: as the launcher numbers them]",
        ),
    ] = None,
    timeout: Annotated[float | None, timeout_option("the scenario's; 6 hours")] = None,
    out: RunFolderOption = None,
    stores: StoresOption = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the interrupted run in --out; with --replicates, add rounds to it."
        ),
    ] = False,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            help="With --resume: also repeat failed replicates; new records replace the failed ones.",
        ),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the report there at the end, and after an interrupt."),
    ] = None,
    dry_run: DryRunOption = False,
    as_json: RecordsAsJsonOption = False,
) -> None:
    """Run all cells of a scenario in fresh processes, interleaved.

    \b
      storebench bench smoke
      storebench bench paper --only imagenet --out runs/paper
      storebench bench gate --against main

    The records of a run are one folder, which 'storebench report' reads.
    """  # noqa: D301 - the character that keeps lines of help as they are
    with exit_codes():
        from storebench.record.schema import ran_out_of_time
        from storebench.run.about import resume_command, stores_of
        from storebench.run.scenario import find_scenario, load_scenario

        path = find_scenario(scenario)
        loaded = load_scenario(path, tell=say)
        try:
            budget_s = None if budget is None else parse_duration(budget)
        except ValueError as error:
            raise UsageError(str(error), where="--budget") from None
        if replicates is not None:
            loaded = loaded.repeated(replicates)
        if budget is not None and against is None:
            loaded = loaded.model_copy(update={"budget": budget})
        cells = _chosen(loaded, only or [])
        folder = out or new_run_folder(loaded.name)
        place = stores or (stores_of(folder) if resume else None) or stores_dir()
        writes_into(folder)
        if report is not None:
            require_writable(report, "--report")
        node_options = {"nodes": nodes, "rendezvous": rendezvous, "node": node}
        named_options = [
            (f"--{name}", str(value)) for name, value in node_options.items() if value is not None
        ]
        node_words = [word for option in named_options for word in option]
        is_side = against is not None
        refusals = {
            "--retry-failed needs --resume": retry_failed and not resume,
            "--nodes is not for --against": is_side and node_words,
            "--timeout is not for --against": is_side and timeout,
            "--report is not for --against": is_side and report,
            "a comparison with a revision cannot be resumed": is_side and resume,
            "--rendezvous and --node need --nodes": node_words and nodes is None,
        }
        for refusal, is_wrong in refusals.items():
            if is_wrong:
                raise UsageError(refusal)
        for cell in cells:
            if cell.ranks > 1 and cell.ranks % (nodes or 1):
                raise UsageError(
                    f"{cell.ranks} ranks cannot be divided among {nodes} nodes",
                    where="--nodes",
                    hint="Let ranks be a multiple of the number of nodes.",
                )
        from storebench.check.against import in_rounds, run_against
        from storebench.check.side_code import Revision

        revision = None if against is None else Revision.of(against, cells)
        if dry_run:
            if revision is not None:
                say(f"{revision}; each side:")
                loaded = in_rounds(loaded, replicates, budget_s).model_copy(update={"budget": budget})
            print_plan(loaded, cells, place, as_json=as_json)
            return
        require_devices(cells, nodes=nodes or 1)
        if revision is not None:
            sides = run_against(
                revision,
                loaded,
                folder,
                place,
                source=path,
                only=only or [],
                replicates=replicates,
                budget_s=budget_s,
                drop_caches=drop_caches,
                say=say,
            )
            put(str(sides.baseline), str(sides.contender))
            say(
                f"'storebench check {sides.baseline} {sides.contender}' judges {revision.commit[:12]} of "
                f"{revision.root} against the working tree"
            )
            return
        from storebench.ranks.membership import membership
        from storebench.ranks.nodes import place_of

        address = None if nodes in (None, 1) else place_of(nodes or 1, rendezvous, node, membership())
        if address is not None and not address.leads:
            _follow(loaded, cells, folder, place, address)
            return
        words = ["bench", scenario, *["--drop-caches"] * drop_caches, *node_words]
        with (
            _continued(loaded, folder, place, replicates)
            if resume
            else begun(loaded, cells, folder, place, words) as run
        ):
            # The option applies to this command only, and the given file decides, not run.json.
            timeout_s = loaded.timeout_s if timeout is None else timeout
            limits: dict[str, Any] = {"timeout_s": timeout_s, "stall_s": loaded.stall_s}
            limits |= {} if budget is None else {"budget": budget}
            limited = dataclasses.replace(run, scenario=run.scenario.model_copy(update=limits))
            with reported_after_interrupt(folder, as_json=as_json, report=report):
                results = executed(
                    limited, place, address, drop_caches=drop_caches, retry_failed=retry_failed
                )
        again = resume_command(folder, retry_failed=True)
        late = any(ran_out_of_time(record.failure or "") for record, _ in results.records)
        more = "; --timeout SECONDS gives them more time" if late else ""
        hint = f"Once fixed, '{again}' runs the failed ones again{more}."
        finish(folder, results, as_json=as_json, report=report, hint=hint)


def _chosen(scenario: "Scenario", only: list[str]) -> list["Cell"]:
    """Return the cells that ``--only`` names; refuse a name without a cell, because its cells would not be missed."""
    from storebench.run.scenario import names_of

    for name in only:
        if not scenario.chosen([name]):
            names = sorted({name for cell in scenario.cells() for name in names_of(cell) - {cell.cell_id}})
            raise UsageError(
                f"no cell is called {name!r}",
                where="--only",
                hint=f"Use one of: {', '.join(names)}. For anything else, write a scenario (docs/scenarios.md).",
            )
    return scenario.chosen(only)


@contextlib.contextmanager
def _continued(scenario: "Scenario", folder: Path, stores: Path, replicates: int | None) -> "Iterator[Run]":
    """Yield the interrupted run of a scenario, with more rounds if they are asked for."""
    with continued(folder, stores) as run:
        if run.scenario.name != scenario.name:
            raise UsageError(
                f"the run here belongs to the scenario {run.scenario.name!r}",
                where=folder,
                hint="Name another --out.",
            )
        if run.scenario.cells() != scenario.cells():
            say(f"{folder}: the scenario was edited since; the run goes on as it was begun")
        yield run if replicates is None else run.extended(replicates)


def _follow(
    scenario: "Scenario", cells: "list[Cell]", folder: Path, stores: Path, place: "NodeAddress"
) -> None:
    from storebench.errors import CellFailedError
    from storebench.ranks.nodes import Board
    from storebench.run.follower import follow
    from storebench.run.resources import sweep

    sweep(stores)
    with Board(place) as board, StderrWatcher() as watcher:
        say(f"node {place.node} of {place.nodes}: waiting for what node 0 starts")
        failures = follow(scenario, cells, folder, stores, place, board, watcher)
    if failures:
        raise CellFailedError(
            f"{number_of(len(failures), 'job')} failed; the first: {failures[0]}", where=f"node {place.node}"
        )


def scenarios(as_json: JsonOption = False) -> None:
    """List the scenarios with their questions."""
    with exit_codes():
        from storebench.run.scenario import shipped_scenarios

        files = shipped_scenarios()
        listed = _listed(files)
        if as_json:
            put_json([{"path": str(files[word]), **about} for word, about in listed.items()])
            return
        for word, about in listed.items():
            least, most = about["least_replicates"], about["replicates"]
            rounds = number_of(least, "replicate") if least == most else f"{least} to {most} replicates"
            put(f"{word}: {about['question']} ({number_of(about['cells'], 'cell')} x {rounds})")
        say(f"'storebench bench NAME' runs one; the files are in {next(iter(files.values())).parent}")


def _listed(files: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Return the facts of scenario files, by the word that names each of them to ``bench``."""
    from storebench.run.scenario import load_scenario

    missing: dict[str, None] = {}
    listed: dict[str, dict[str, Any]] = {}
    for word, path in files.items():
        loaded = load_scenario(path, tell=missing.setdefault)
        listed[word] = {
            "name": loaded.name,
            "question": loaded.question,
            "cells": len(loaded.cells()),
            "replicates": loaded.replicates,
            "least_replicates": min(loaded.fewer_replicates.values(), default=loaded.replicates),
        }
    if missing:
        say(f"left out: {len(missing)} formats whose library is missing; 'storebench formats' names them")
    return listed
