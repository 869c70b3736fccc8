"""``storebench bench``: run a scenario, or print its plan."""

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storebench.cli.common import exit_codes, progress, put, put_json, say, stores_dir, writes_into
from storebench.cli.options import (
    DropCachesOption,
    DryRunOption,
    JsonOption,
    RecordsAsJsonOption,
    RunFolderOption,
    StoresOption,
    require_devices,
    timeout_option,
)
from storebench.cli.run import continued_by, dropping, executed, finish, new_run_folder
from storebench.cli.watcher import StderrWatcher, print_plan
from storebench.errors import UsageError
from storebench.units import number_of, parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storebench.check.against import Revision, SideOptions
    from storebench.ranks.nodes import NodeAddress
    from storebench.record.schema import Cell, Record
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
    repository: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="For --against: a checkout of storebench or of a plugin. [default: the current folder's]",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="For --against: time for the rounds, such as '8 min': as many as fit, at least 5.",
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
            "--resume",
            help="Continue the interrupted run in --out; with --replicates, add rounds to it.",
        ),
    ] = False,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            help="With --resume: also repeat failed replicates; new records replace the failed ones.",
        ),
    ] = False,
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
        from storebench.run.about import stores_of
        from storebench.run.scenario import find_scenario, load_scenario

        path = find_scenario(scenario)
        loaded = load_scenario(path, tell=say)
        if replicates is not None:
            loaded = loaded.repeated(replicates)
        cells = _chosen(loaded, only or [])
        folder = out or new_run_folder(loaded.name)
        place = stores or (stores_of(folder) if resume else None) or stores_dir()
        writes_into(folder)
        if retry_failed and not resume:
            raise UsageError("--retry-failed needs --resume", hint="Name the run with --resume --out FOLDER.")
        if repository is not None and against is None:
            raise UsageError("--repository needs --against", hint="Name a revision with --against REF.")
        if budget is not None and against is None:
            raise UsageError("--budget needs --against", hint='A scenario states its own: budget = "12 min".')
        for cell in cells:
            if cell.ranks > 1 and cell.ranks % (nodes or 1):
                raise UsageError(
                    f"{cell.ranks} ranks cannot be divided among {nodes} nodes",
                    where="--nodes",
                    hint="Let ranks be a multiple of the number of nodes.",
                )
        by_name = {"nodes": nodes, "rendezvous": rendezvous, "node": node}
        node_words = [
            word for name, value in by_name.items() if value is not None for word in (f"--{name}", str(value))
        ]
        if against is not None:
            from storebench.check.against import Revision, SideOptions, compared

            if node_words:
                raise UsageError("--nodes is not for --against", hint="Leave out one of them.")
            if resume:
                raise UsageError("a comparison with a revision cannot be resumed", hint="Leave out --resume.")
            if timeout is not None:
                raise UsageError(
                    "--timeout is not for --against", hint="Set timeout_s in the scenario of each side."
                )
            try:
                budget_s = None if budget is None else parse_duration(budget)
            except ValueError as error:
                raise UsageError(str(error), where="--budget") from None
            options = SideOptions(
                only=only or [], replicates=replicates, budget_s=budget_s, drop_caches=drop_caches
            )
            revision = Revision(ref=against, source=path, repository=repository)
            if dry_run:
                planned = compared(revision, loaded, options, say).model_copy(update={"budget": budget})
                print_plan(planned, cells, place, sides=2, as_json=as_json)
                return
            require_devices(cells)
            _against(revision, loaded, folder, place, options)
            return
        if dry_run:
            print_plan(loaded, cells, place, as_json=as_json)
            return
        from storebench.ranks.membership import membership
        from storebench.ranks.nodes import place_of

        if nodes is None and (rendezvous is not None or node is not None):
            raise UsageError(
                "--rendezvous and --node need --nodes", hint="Say how many nodes there are with --nodes."
            )
        address = None if nodes in (None, 1) else place_of(nodes or 1, rendezvous, node, membership())
        require_devices(cells, nodes=nodes or 1)
        if address is not None and not address.leads:
            _follow(loaded, cells, folder, place, address)
            return
        words = ["bench", scenario, *dropping(drop_caches), *node_words]
        with _claimed(loaded, cells, folder, place, words, resume=resume, replicates=replicates) as run:
            # The option applies to this command only, and the given file decides, not run.json.
            timeout_s = loaded.timeout_s if timeout is None else timeout
            limits = {"timeout_s": timeout_s, "stall_s": loaded.stall_s}
            limited = dataclasses.replace(run, scenario=run.scenario.model_copy(update=limits))
            records = executed(limited, place, address, drop_caches=drop_caches, retry_failed=retry_failed)
        _finish(records, folder, as_json=as_json)


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
def _claimed(
    scenario: "Scenario",
    cells: list["Cell"],
    folder: Path,
    stores: Path,
    words: list[str],
    *,
    resume: bool,
    replicates: int | None,
) -> "Iterator[Run]":
    """Yield the run to execute, a new or a continued one, which no other command can execute at the same time."""
    from storebench.run.dry_run import plan_run, require_space
    from storebench.run.folder import Run
    from storebench.run.resources import permitted
    from storebench.system.lock import claimed

    allowed = None if resume else permitted(scenario, cells, stores)
    if allowed is None:
        Run.read(folder)  # raises if there is no run, before a folder is created
    else:
        require_space(plan_run(scenario, allowed.cells, stores, progress=progress), stores)
    with claimed(folder), continued_by(folder):
        if allowed is not None:
            for line in (*scenario.impossible(), *allowed.lines()):
                say(line)
            yield Run.create(scenario, folder, allowed.cells, allowed.left_out, stores, words)
            return
        run = Run.resume(folder)
        if run.scenario.name != scenario.name:
            raise UsageError(
                f"the run here belongs to the scenario {run.scenario.name!r}",
                where=folder,
                hint="Name another --out.",
            )
        if run.scenario.cells() != scenario.cells():
            say(f"{folder}: the scenario was edited since; the run goes on as it was begun")
        yield run if replicates is None else run.extended(replicates)


def _finish(records: list["Record"], folder: Path, *, as_json: bool) -> None:
    """Print what a finished run says, and end with the exit code of its records."""
    from storebench.record.schema import ran_out_of_time
    from storebench.run.about import resume_command

    again = resume_command(folder, retry_failed=True)
    late = any(ran_out_of_time(record.failure or "") for record in records)
    more = "; --timeout SECONDS gives them more time" if late else ""
    finish(folder, records, as_json=as_json, hint=f"Once fixed, '{again}' runs the failed ones again{more}.")


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


def _against(
    revision: "Revision",
    scenario: "Scenario",
    folder: Path,
    stores: Path,
    options: "SideOptions",
) -> None:
    from storebench.check.against import one_format_words, run_against

    sides = run_against(revision, scenario, folder, stores, options=options, say=say)
    put(str(sides.baseline), str(sides.contender))
    say(
        f"'storebench check {sides.baseline} {sides.contender}' judges {sides.commit[:12]} of "
        f"{sides.repository} against the working tree"
    )
    if words := one_format_words(scenario.chosen(options.only)):
        say(words)


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
    if len(missing) > 1:
        say(
            f"left out: {len(missing)} formats whose library is not installed; 'storebench formats' names them"
        )
    else:
        for line in missing:
            say(line)
    return listed
