"""Everything that a report says of some records: the answer, sections of tables and plots, and the evidence."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from storebench.accelerators import Accelerator
from storebench.analysis.answer import Answer, answer_by_machine, disturbed
from storebench.analysis.beside import alike, machine_tables, place_tables
from storebench.analysis.bottleneck import Bottleneck, bottlenecks
from storebench.analysis.checks.findings import Finding
from storebench.analysis.checks.records import Pair, Results
from storebench.analysis.codec_frontier import FEWEST, coded
from storebench.analysis.comparison import MIN_ROUNDS
from storebench.analysis.labels import (
    backend_label,
    caveats,
    condition_label,
    dataset_label,
    dataset_slug,
    not_held,
)
from storebench.analysis.ladder import ladders
from storebench.analysis.panels import Panel, ordered, panels
from storebench.analysis.roofline import Roofline, point_keys, rooflines
from storebench.analysis.runs import steps_of
from storebench.analysis.summary import CellSummary, key_without, varying_fields
from storebench.analysis.table import Table
from storebench.record.schema import Environment
from storebench.report.explorer import matrix
from storebench.report.plots import codecs, roofline_plot, scaling, step_time, throughput, waits
from storebench.report.plots.style import MOST_LINES, Plot
from storebench.report.tables import (
    codec_table,
    cold_table,
    every_cell,
    feeding_table,
    io_table,
    ladder_table,
    order_table,
    panel_table,
    point_table,
    rank_tables,
    request_table,
)
from storebench.run.about import commands, cut_short, incomplete, left_out, places
from storebench.settings.words import ComputeKind
from storebench.units import number_of

# Plots of the first dataset that the page shows; all others are collapsed.
_FIRST_PLOTS = ("step-time", "roofline", "workers", "ranks", "rank-steps", "codecs")


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """The part of the report on one dataset on one machine."""

    title: str
    slug: str
    tables: tuple[Table, ...]
    more: tuple[Table, ...]
    """Roofline, ladder, ranks, and orders of readers."""
    plots: tuple[Plot, ...]
    first: tuple[Plot, ...] = ()
    """Those of its plots that the page shows at once."""
    io: tuple[Table, ...] = ()
    """What the storage delivers, in the order of `tables`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Content:
    """The content of the page, of its Markdown twin and of a run's last words on the terminal."""

    answer: Answer
    sections: tuple[Section, ...]
    panels: tuple[Panel, ...]
    """In the order of importance; the page's table of one has its anchor."""
    anchors: tuple[str, ...]
    cells: tuple[CellSummary, ...]
    limits: Mapping[tuple[str, str], Bottleneck]
    findings: tuple[Finding, ...] = ()
    beside: tuple[Table, ...] = ()  # Several machines, and several places, side by side.
    commands: tuple[str, ...] = ()  # Those that began the runs.
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
    def io(self) -> list[Table]:
        """What the storage delivers, for each dataset of a run that only loads."""
        loading: dict[tuple[Any, ...], list[Panel]] = {}
        for panel in self.panels:
            if panel.first.cell.compute.kind is not ComputeKind.NONE:
                return []
            loading.setdefault(panel.first.dataset_key, []).append(panel)
        return [io_table(panels, self.limits) for panels in loading.values()]

    def more(self, kind: str) -> tuple[Table, ...]:
        """Return the tables of a kind beside those of panels, of every dataset in order."""
        return tuple(table for section in self.sections for table in section.more if table.kind == kind)

    @property
    def feeding(self) -> tuple[Table, ...]:
        """Which stores feed the named accelerators, for each dataset of which cells only load."""
        return self.more("roofline") if self.accelerators else ()

    @property
    def failed(self) -> list[CellSummary]:
        """Cells of which a replicate failed."""
        return [cell for cell in self.cells if cell.failure]

    @property
    def every_cell(self) -> Table:
        """The raw figures of every cell."""
        return every_cell(self.cells)


def content_of(results: Results, accelerators: Sequence[Accelerator] = ()) -> Content:
    cells, records = results.cells, results.records
    environments = {r.environment_key: r.environment for r in results.rows if r.environment is not None}
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
    ranks, machines = machine_tables(sound)
    told = answer_by_machine(listed, cells, roofs, limits, accelerators, ranks)
    lead = told.base.dataset_key if told.base else None
    groups: dict[tuple[Any, ...], list[CellSummary]] = {}
    for cell in sorted(cells, key=lambda cell: cell.dataset_key != lead):
        groups.setdefault(cell.dataset_key, []).append(cell)
    anchors = {panel.cells: f"panel-{number}" for number, panel in enumerate(listed)}
    return Content(
        answer=told,
        sections=tuple(
            _section(
                group,
                [panel for panel in listed if panel.first.dataset_key == key],
                roofs,
                limits,
                accelerators,
                anchors,
                leads=key == lead,
            )
            for key, group in groups.items()
        ),
        panels=tuple(listed),
        anchors=tuple(anchors.values()),
        cells=tuple(cells),
        limits=limits,
        findings=results.findings,
        beside=(*machines, *place_tables(sound, places(records))),
        commands=tuple(commands(records)),
        incomplete=tuple(incomplete(records)),
        caveats=(
            *filter(None, (disturbed(cells)[1],)),
            *_equal_machines(cells),
            *not_held(cell for cell in cells if cell not in [choice.cell for choice in told.choices]),
            *_caveats(groups.values(), told.conditions),
            *_cut_short(records, listed),
            *(
                f"Left out ({', '.join(map(backend_label, names))}): {reason}."
                for reason, names in left_out(records).items()
            ),
        ),
        environments=tuple(environments.values()),
        accelerators=tuple(accelerators),
    )


def _equal_machines(cells: Iterable[CellSummary]) -> Iterator[str]:
    """Yield a sentence on hosts that count as one machine."""
    hosts: dict[str, dict[str, None]] = {}
    for environment in (row.environment for cell in cells for row in cell.rows):
        if environment and (host := environment.notes.get("host")):
            hosts.setdefault(environment.key, {})[host] = None
    yield from (f"Equal machines, joined: {', '.join(of)}." for of in hosts.values() if len(of) > 1)


def _cut_short(records: Sequence[Pair], listed: Sequence[Panel]) -> list[str]:
    """Return a sentence on the panels of which a budget ended cells before they could be decided."""
    budgets = cut_short(records)
    titles: dict[str, list[str]] = {}
    for panel in listed:
        rounds = len(panel.first.values("samples_per_s"))
        if panel.first.cell.cell_id in budgets and rounds < MIN_ROUNDS:
            title = f"{dataset_label(panel.first)}, {condition_label(panel.speaker)} ({number_of(rounds, 'round')})"
            titles.setdefault(budgets[panel.first.cell.cell_id], []).append(title)
    return [f"Undecided for want of time, {budget}: {'; '.join(names)}." for budget, names in titles.items()]


def _caveats(groups: Iterable[Sequence[CellSummary]], conditions: str) -> list[str]:
    """Return the caveats about the images of each dataset, without those in the conditions."""
    where: dict[str, list[str]] = {}
    for group in groups:
        for text in caveats(group):
            label = dataset_label(group[0])
            if f"{label} ({text})" not in conditions:
                where.setdefault(text, []).append(label)
    return [f"{'; '.join(titles)}: {text}" for text, titles in where.items()]


def _section(
    cells: Sequence[CellSummary],
    listed: Sequence[Panel],
    roofs: Sequence[Roofline],
    limits: Mapping[tuple[str, str], Bottleneck],
    accelerators: Sequence[Accelerator],
    anchors: Mapping[tuple[CellSummary, ...], str],
    *,
    leads: bool,
) -> Section:
    varying = varying_fields(cells)
    every, roofs = roofs, [roof for roof in roofs if roof.first.dataset_key == cells[0].dataset_key]
    tables = [
        table
        for panel in listed
        for table in (panel_table(panel, limits, varying, anchors.get(panel.cells, "")), cold_table(panel))
        if table
    ]
    if not tables:
        tables = [panel_table(panel, limits, varying) for panel in panels(cells)]
    more = [feeding_table(part, accelerators) for part in (roofs[:1], roofs[1:]) if part]
    more += [table for table in [point_table(roofs), request_table(cells, limits)] if table]
    more += [*map(ladder_table, ladders(listed)), *rank_tables(cells)]
    more += [table for table in [order_table(cells)] if table]
    # The codecs of the first panel in which one container has several.
    by_panel = (coded(panel.measured) for panel in listed)
    compared = next((c for c in by_panel if len({x.cell.cell.backend.codec for x in c}) >= FEWEST), [])
    more += [codec_table(compared)] if compared else []
    slug = dataset_slug(cells[0])
    plots = list(_plots(cells, listed, every, accelerators, leads=leads))
    if compared:
        plots.append(_plot("codecs", codecs.QUESTION, codecs.plot_codecs, [c.cell for c in compared]))
    named = [dataclasses.replace(plot, name=f"{plot.name}-{slug}") for plot in plots]
    first = [new for plot, new in zip(plots, named, strict=True) if leads and plot.name in _FIRST_PLOTS]
    return Section(
        title=dataset_label(cells[0]),
        slug=slug,
        tables=tuple(tables),
        more=tuple(more),
        plots=tuple(named),
        first=tuple(first),
        io=tuple(io_table([panel], limits, varying, f"{anchors[panel.cells]}-io") for panel in listed),
    )


def _plots(
    cells: Sequence[CellSummary],
    listed: Sequence[Panel],
    roofs: Sequence[Roofline],
    accelerators: Sequence[Accelerator],
    *,
    leads: bool,
) -> Iterator[Plot]:
    """Yield the plots that the cells of one dataset can make, the most telling one first."""
    if listed:
        main = listed[0]
        everything = [*main.measured, *([main.null] if main.null is not None else [])]
        rates = functools.partial(throughput.plot_throughput, accelerators=tuple(accelerators))
        yield _plot("throughput", throughput.QUESTION, rates, everything)
        yield _plot("step-time", step_time.QUESTION, step_time.plot_step_time, everything)
    if own := [roof for roof in roofs if roof.first.dataset_key == cells[0].dataset_key]:
        same = [other for other in reversed(roofs) if alike(other.first) == alike(own[0].first)]
        merged = Roofline(curves=sum({roof.first.machine: roof.curves for roof in same}.values(), ()))
        draw = functools.partial(roofline_plot.draw_roofline, merged, accelerators)
        yield Plot(name="roofline", question=roofline_plot.QUESTION, draw=draw)
    rated = [c for c in cells if c.median("samples_per_s") and not c.is_null]
    real = [c for c in rated if c.cell.compute.kind is not ComputeKind.EMULATED]
    for field, question, plot, varied in (
        ("workers", scaling.WORKERS, scaling.plot_workers, real),
        ("ranks", scaling.RANKS, scaling.plot_ranks, rated),
    ):
        if several := _varied(varied, field):
            yield _plot(field, question, plot, several)
    jobs = [c for c in cells if c.usable and c.cell.compute.kind is not ComputeKind.NONE]
    if any(job.cell.ranks > 1 for job in jobs):
        yield _plot("rank-steps", step_time.RANKS, step_time.plot_rank_steps, jobs)
    chosen = [
        cell for cell in (listed[0].measured if listed else ()) if cell.usable and cell.usable[0].steps_path
    ][:MOST_LINES]
    if chosen and leads:
        yield from _step_plots(chosen)


def _step_plots(chosen: Sequence[CellSummary]) -> Iterator[Plot]:
    @functools.cache
    def steps() -> pd.DataFrame:
        return steps_of(cell.usable[0] for cell in chosen)

    for name, question, plot in (
        ("wait-over-epoch", waits.OVER_EPOCH, waits.plot_wait_over_epoch),
        ("wait-distribution", waits.DISTRIBUTION, waits.plot_wait_distribution),
        ("loss", waits.LOSS, waits.plot_loss),
    ):
        if name != "loss" or any(cell.fact("loss_digest") for cell in chosen):
            draw = functools.partial(lambda plot: plot(steps()), plot)
            yield Plot(name=name, question=question, draw=draw)


def _plot(name: str, question: str, plot: Any, cells: Sequence[CellSummary]) -> Plot:
    return Plot(name=name, question=question, draw=functools.partial(plot, list(cells)))


def _varied(cells: Sequence[CellSummary], field: str) -> list[CellSummary]:
    """Return the cells that were measured with another value of a field, too."""
    lengths = ("epochs", "passes", "max_steps", "warmup_steps", "global_batch_size")
    keys = [key_without(cell, field, *lengths) for cell in cells]
    values: dict[tuple[Any, ...], set[Any]] = {}
    for cell, key in zip(cells, keys, strict=True):
        values.setdefault(key, set()).add(cell.fields[field])
    return [cell for cell, key in zip(cells, keys, strict=True) if len(values[key]) > 1]
