"""Everything that a report says of some records: the answer, sections of tables and plots, and the evidence."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from storebench.accelerators import Accelerator
from storebench.errors import CorruptDataError
from storebench.report.analysis import load_steps
from storebench.report.answer import Answer, answer, disturbed, feeding_sentences
from storebench.report.bottleneck import Bottleneck, bottlenecks
from storebench.report.cells import CellSummary, summarise, varying_fields
from storebench.report.checks.findings import Finding
from storebench.report.checks.records import Sourced
from storebench.report.frame import to_frame
from storebench.report.labels import backend_label, caveats, dataset_label, dataset_slug
from storebench.report.ladder import Ladder, ladders
from storebench.report.panels import Panel, ordered, panels
from storebench.report.plots import curves, roofline, scaling, step_time, throughput, waits
from storebench.report.plots.style import MOST_LINES, Plot
from storebench.report.roofline import Roofline, point_keys, rooflines
from storebench.report.tables import (
    Table,
    cold_table,
    every_cell,
    feeding_table,
    ladder_table,
    matrix,
    panel_table,
    point_table,
    rank_tables,
)
from storebench.results import Environment
from storebench.runs.manifest import fewer_replicates, read_about, resume_command, rounds_within_budget
from storebench.runs.records import PAIRING_NAME, RECORDS_NAME, RUN_NAME
from storebench.runs.schedule import replicate_key
from storebench.settings.words import CacheState, ComputeKind
from storebench.units import number_of

MOST_PLOTS = 3
"""Plots of one kind per dataset; the tables hold every setting."""

_MOST_COLUMNS = 5
"""Settings in the matrix of a page without JavaScript."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """The part of the report on one dataset on one machine."""

    title: str
    slug: str
    tables: tuple[Table, ...]
    more: tuple[Table, ...]
    """Roofline, ladder, and ranks."""
    plots: tuple[Plot, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Content:
    """The content of the page, of its Markdown twin and of a run's last words on the terminal."""

    answer: Answer
    sections: tuple[Section, ...]
    matrix: Table | None
    panels: tuple[Panel, ...]
    """Panels of several stores, in the order of importance."""
    cells: tuple[CellSummary, ...]
    roofs: tuple[Roofline, ...]
    limits: Mapping[tuple[str, str], Bottleneck]
    findings: tuple[Finding, ...] = ()
    incomplete: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    environments: tuple[Environment, ...] = ()
    accelerators: tuple[Accelerator, ...] = ()

    @property
    def overview(self) -> Table | None:
        """Stores by settings, all of them; None if there is no rate."""
        measured = self.panels or ordered(panels(self.cells))
        return matrix(measured) if measured else None

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables of panels, of every dataset in order."""
        return tuple(table for section in self.sections for table in section.tables)

    @property
    def feeding(self) -> list[str]:
        """For each named accelerator and dataset, which stores feed it."""
        return feeding_sentences(self.roofs, self.accelerators)

    @property
    def failed(self) -> list[CellSummary]:
        """Cells of which a replicate failed."""
        return [cell for cell in self.cells if cell.failure]

    @property
    def every_cell(self) -> Table:
        """The raw figures of every cell."""
        return every_cell(self.cells)


def content_of(
    records: Sequence[Sourced], findings: Sequence[Finding] = (), accelerators: Sequence[Accelerator] = ()
) -> Content:
    """Return the content of a report of some records; the first finding about a cell marks it as invalid."""
    cells = cells_of(records, findings)
    machines = {r.environment.key: r.environment for r, _ in records if r.environment is not None}
    sound = [cell for cell in cells if not cell.invalid] or cells
    roofs, limits = rooflines(sound), bottlenecks(sound)
    every = panels(cells)
    points = point_keys(roofs, every)
    listed = ordered(
        [
            Panel(cells=kept, null=panel.null)
            for panel in every
            if (kept := tuple(cell for cell in panel.cells if cell.key not in points))
        ]
    )
    told = answer(ordered(panels([c for c in sound if c.key not in points])), roofs, limits)
    lead = told.panel.first.dataset_key if told.panel else None
    groups: dict[tuple[Any, ...], list[CellSummary]] = {}
    for cell in sorted(cells, key=lambda cell: cell.dataset_key != lead):
        groups.setdefault(cell.dataset_key, []).append(cell)
    shown = [panel for panel in listed if len(panel.stored) > 1]
    anchors = {panel.cells: f"panel-{number}" for number, panel in enumerate(shown)}
    return Content(
        answer=told,
        sections=tuple(
            _section(
                group,
                [panel for panel in listed if panel.first.dataset_key == key],
                [roof for roof in roofs if roof.first.dataset_key == key],
                limits,
                accelerators,
                anchors,
            )
            for key, group in groups.items()
        ),
        matrix=matrix(shown[:_MOST_COLUMNS]) if len(shown) > 1 else None,
        panels=tuple(shown),
        cells=tuple(cells),
        roofs=tuple(roofs),
        limits=limits,
        findings=tuple(findings),
        incomplete=tuple(incomplete(records)),
        caveats=(*filter(None, (disturbed(cells),)), *_caveats(groups.values()), *left_out(records)),
        environments=tuple(machines.values()),
        accelerators=tuple(accelerators),
    )


def cells_of(records: Sequence[Sourced], findings: Sequence[Finding] = ()) -> list[CellSummary]:
    """Return the summaries of some records; the first finding about a cell marks it as invalid."""
    invalid = {one.cell_id: f"{one.figure}: {one.message}" for one in reversed(findings) if one.cell_id}
    return summarise(to_frame(records), invalid)


def _caveats(groups: Iterable[Sequence[CellSummary]]) -> list[str]:
    where: dict[str, list[str]] = {}
    for group in groups:
        for text in caveats(group):
            where.setdefault(text, []).append(dataset_label(group[0]))
    return [f"{'; '.join(titles)}: {text}" for text, titles in where.items()]


def _section(
    cells: Sequence[CellSummary],
    listed: Sequence[Panel],
    roofs: Sequence[Roofline],
    limits: Mapping[tuple[str, str], Bottleneck],
    accelerators: Sequence[Accelerator],
    anchors: Mapping[tuple[CellSummary, ...], str],
) -> Section:
    varying = varying_fields(cells)
    climbed = ladders(listed)
    tables = [
        table
        for panel in listed
        for table in (panel_table(panel, limits, varying, anchors.get(panel.cells, "")), cold_table(panel))
        if table
    ]
    if not tables:
        tables = [panel_table(panel, limits, varying) for panel in panels(cells)]
    more = [feeding_table(roofs, accelerators)] if roofs else []
    more += [table for table in [point_table(roofs)] if table]
    more += [*map(ladder_table, climbed), *rank_tables(cells)]
    slug = dataset_slug(cells[0])
    return Section(
        title=dataset_label(cells[0]),
        slug=slug,
        tables=tuple(tables),
        more=tuple(more),
        plots=tuple(
            Plot(name=f"{plot.name}-{slug}", question=plot.question, draw=plot.draw)
            for plot in _plots(cells, listed, roofs, climbed, accelerators)
        ),
    )


def _plots(
    cells: Sequence[CellSummary],
    listed: Sequence[Panel],
    roofs: Sequence[Roofline],
    climbed: Sequence[Ladder],
    accelerators: Sequence[Accelerator],
) -> Iterator[Plot]:
    """Yield the plots that the cells of one dataset can make, the most telling one first."""
    if listed:
        main = listed[0]
        null = [main.null] if main.null is not None else []
        yield _plot(
            "throughput",
            throughput.QUESTION,
            throughput.plot_throughput,
            [*main.measured, *null],
            accelerators=tuple(accelerators),
        )
        yield _plot("step-time", step_time.QUESTION, step_time.plot_step_time, [*main.measured, *null])
        if len({cell.fact("bytes_on_disk") for cell in main.stored}) > 1:
            yield _plot("size", throughput.SIZE_QUESTION, throughput.plot_size, main.stored)
    for number, roof in enumerate(_distinct(roofs)[:MOST_PLOTS]):
        draw = functools.partial(roofline.draw_roofline, roof, accelerators)
        yield Plot(name=_numbered("roofline", number), question=roofline.QUESTION, draw=draw)
    for number, ladder in enumerate(climbed[:MOST_PLOTS]):
        draw = functools.partial(scaling.plot_ladder, ladder)
        yield Plot(name=_numbered("ladder", number), question=scaling.LADDER, draw=draw)
    for field, question, plot in (
        ("workers", scaling.WORKERS, scaling.plot_workers),
        ("ranks", scaling.RANKS, scaling.plot_ranks),
    ):
        several = [
            c for c in cells if c.median("samples_per_s") and not c.is_null and _alike(c, cells, field)
        ]
        if several:
            yield _plot(field, question, plot, several)
    jobs = [c for c in cells if c.usable and c.cell.compute.kind is not ComputeKind.NONE]
    if any(job.cell.ranks > 1 for job in jobs):
        yield _plot("rank-steps", step_time.QUESTION, step_time.plot_rank_steps, jobs)
    for state, name, question, plot in (
        (CacheState.COLD, "cold-curve", curves.COLD, curves.plot_cold_curve),
        (CacheState.LIMITED, "steady-state", curves.STEADY, curves.plot_steady_state),
    ):
        stepped = [panel for panel in listed if any(map(_has_steps, curves.reading(panel.cells, state)))]
        for number, panel in enumerate(stepped[:MOST_PLOTS]):
            yield _plot(_numbered(name, number), question, plot, panel.cells)
    yield from _step_plots(listed)


def _step_plots(listed: Sequence[Panel]) -> Iterator[Plot]:
    chosen = [cell for cell in (listed[0].measured if listed else ()) if _has_steps(cell)][:MOST_LINES]
    if not chosen:
        return

    @functools.cache
    def steps() -> pd.DataFrame:
        return load_steps(pd.DataFrame([dict(cell.usable[0]) for cell in chosen]))

    yield Plot(
        name="wait-over-epoch", question=waits.OVER_EPOCH, draw=lambda: waits.plot_wait_over_epoch(steps())
    )
    yield Plot(
        name="wait-distribution",
        question=waits.DISTRIBUTION,
        draw=lambda: waits.plot_wait_distribution(steps()),
    )
    if any(cell.fact("loss_digest") for cell in chosen):
        yield Plot(name="loss", question=waits.LOSS, draw=lambda: waits.plot_loss(steps()))


def _plot(name: str, question: str, plot: Any, cells: Sequence[CellSummary], **options: Any) -> Plot:
    return Plot(name=name, question=question, draw=functools.partial(plot, list(cells), **options))


def _numbered(name: str, number: int) -> str:
    return name if number == 0 else f"{name}-{number + 1}"


def _distinct(roofs: Sequence[Roofline]) -> list[Roofline]:
    """Return the rooflines of several stores first, one for each state and number of workers."""
    found: dict[object, Roofline] = {}
    for roof in sorted(roofs, key=lambda roof: len(roof.stored) < 2):
        own = roof.first.cell
        found.setdefault((own.cache, own.workers > 0, own.readahead_kib), roof)
    return list(found.values())


def _has_steps(cell: CellSummary) -> bool:
    return bool(cell.usable) and isinstance(cell.usable[0]["steps_path"], str)


def _alike(cell: CellSummary, cells: Sequence[CellSummary], field: str) -> bool:
    """Whether a cell was measured with another value of a field, too."""
    own = {
        name: value
        for name, value in cell.fields.items()
        if name not in (field, "epochs", "global_batch_size")
    }
    return any(
        other.fields[field] != cell.fields[field]
        and all(other.fields[name] == value for name, value in own.items())
        for other in cells
    )


def incomplete(records: Sequence[Sourced]) -> Iterator[str]:
    """Yield a sentence on each run that lacks replicates which its ``run.json`` promises."""
    by_folder: dict[Path, set[tuple[str, int]]] = {}
    for record, file in records:
        if file.name == RECORDS_NAME:
            by_folder.setdefault(file.parent, set()).add(replicate_key(record))
    for folder, done in by_folder.items():
        try:
            about = read_about(folder / RUN_NAME)
            asked = about.get("scenario", {}).get("replicates")
            fewer = fewer_replicates(about)
        except (OSError, CorruptDataError, TypeError, AttributeError, KeyError):
            continue  # validation reports a file that cannot be read
        if fewer is None or not isinstance(asked, int) or (folder / PAIRING_NAME).is_file():
            continue
        cells = [str(cell["cell_id"]) for cell in about["cells"]]
        rounds = range(rounds_within_budget(about, asked))
        wanted = {(cell, number) for cell in cells for number in rounds if number < fewer.get(cell, asked)}
        if missing := wanted - done:
            name = str(about.get("scenario", {}).get("name", ""))
            yield (
                f"INCOMPLETE: {len(wanted) - len(missing)} of {number_of(len(wanted), 'replicate')} of run"
                f" {about['run_id']} are recorded. Finish it with '{resume_command(folder, name)}'."
            )


def left_out(records: Sequence[Sourced]) -> Iterator[str]:
    """Yield a sentence on the cells of optional matrices that the machine did not permit, by reason."""
    reasons: dict[str, list[str]] = {}
    for folder in dict.fromkeys(file.parent for _, file in records if file.name == RECORDS_NAME):
        try:
            for entry in read_about(folder / RUN_NAME).get("left_out", ()):
                reasons.setdefault(str(entry["reason"]), []).append(backend_label(str(entry["backend"])))
        except (OSError, CorruptDataError, TypeError, AttributeError, KeyError):
            continue
    for reason, names in reasons.items():
        yield f"Left out ({', '.join(dict.fromkeys(names))}): {reason}."
