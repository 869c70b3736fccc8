"""Tables of jobs of ranks: the cost of communication beside an ideal ring, and the interaction of loading and exchanging."""

from collections.abc import Sequence
from typing import Any

from storebench.report.cells import CellSummary
from storebench.report.claims import ClaimKind
from storebench.report.decisions import EXPOSED
from storebench.report.facts import Facts
from storebench.report.interference import Interference, interferences
from storebench.report.intervals import Estimate
from storebench.report.tables import Table, ends, mark
from storebench.report.texts.caveats import caveats
from storebench.report.texts.labels import (
    SIMULTANEOUS,
    backend_label,
    dataset_label,
    duration,
    number,
    setting_label,
    size,
)
from storebench.report.texts.ranks import milliseconds

_COMMUNICATION_HEAD = (
    "setting", "backend", "ranks", "nodes", "sync", "step_without_sync_s", "exposed_communication_s",
    "exposed_communication_s_lo", "exposed_communication_s_hi", "gradient_bytes", "link", "link_bytes_per_s",
    "link_latency_s", "ring_bound_s", "exposed_over_bound", "barrier_s", "wait_for_slowest_s_per_step", "replicates",
    "environment_key", "cell_id",
)  # fmt: skip
_INTERFERENCE_HEAD = (
    "setting", "backend", "part", "loading_s_per_step", "loading_s_per_step_lo", "loading_s_per_step_hi",
    "exchange_s_per_step", "exchange_s_per_step_lo", "exchange_s_per_step_hi", "interaction_s_per_step",
    "interaction_s_per_step_lo", "interaction_s_per_step_hi", "rounds", "environment_key", "cell_id",
)  # fmt: skip

_EXPOSED = (
    "Exposed communication is the increase in the time of a step caused by exchanging gradients. It comes from pairs of steps"
    " on the same batch, after the last epoch. It can be negative if it is smaller than the noise."
)
_RING = (
    "The ideal ring is the time of an ideal ring all-reduce of R ranks, 2 (R - 1) (bytes / R / bandwidth + latency), not a"
    " lower bound. Bandwidth and latency were measured before the epochs, while every rank sent to the next one. Below 1, the"
    " exchange is hidden behind computing, or is faster than an ideal ring at this bandwidth."
)
_LOOPBACK = 'The link "loopback" is the memory and the cores of one machine, not a network. Loading, computing and the exchange share them.'
_EMULATED = "The records do not say whether a network is real or emulated."
_CORNERS = (
    "Loading alone: the job with sync = none less the null backend with sync = none. Exchange alone: the null backend with the"
    " exchange less the null backend with sync = none. Interaction: the time that both together add beyond the sum of the two."
    " Computing includes the exchange. The intervals are simultaneous: all of one job hold at once."
)


def rank_tables(facts: Facts) -> list[Table]:
    """Return the tables of one dataset: communication, and interactions if all four corners were measured.

    Neither has trainers of one rank, because these exchange no gradients.
    """
    jobs = [
        cell
        for cell in facts.cells
        if cell.cell.ranks > cell.cell.trainers and cell.median("job_barrier_s") is not None
    ]
    if not jobs:
        return []
    measured = interferences(facts.cells)
    tables = [communication_table(jobs, facts)]
    return [*tables, interference_table(measured, facts)] if measured else tables


def communication_table(jobs: Sequence[CellSummary], facts: Facts) -> Table:
    """Return the cost of communication of each job, beside the time of an ideal ring all-reduce over its link."""
    kinds = {cell.fact("job_link") for cell in jobs}
    notes = [_EXPOSED, _RING]
    notes += [_LOOPBACK] if "loopback" in kinds else []
    notes += [_EMULATED] if "network" in kinds else []
    return Table(
        caption=". ".join(
            [f"{dataset_label(jobs[0])}: the cost of communication in jobs of ranks", *caveats(jobs)]
        ),
        head=(
            "setting",
            "backend",
            "step without exchange",
            f"exposed communication [{SIMULTANEOUS}]",
            "bytes per rank",
            "link",
            "bandwidth",
            "latency",
            "ideal ring",
            "exposed over ideal ring",
            "empty barrier",
            "wait for the slowest",
        ),
        rows=tuple(_row(cell, facts) for cell in jobs),
        raw_head=_COMMUNICATION_HEAD,
        raw=tuple(_raw(cell, facts) for cell in jobs),
        marks=tuple(mark(cell) for cell in jobs),
        notes=tuple(notes),
    )


def _row(cell: CellSummary, facts: Facts) -> tuple[str, ...]:
    bandwidth = cell.median("job_link_bytes_per_s")
    return (
        setting_label(cell, facts.varying),
        backend_label(cell.backend),
        duration(cell.median("job_step_without_sync_s")),
        milliseconds(exposed(cell, facts)),
        size(cell.median("job_gradient_bytes")),
        str(cell.fact("job_link") or ""),
        "" if bandwidth is None else f"{size(bandwidth)}/s",
        duration(cell.median("job_link_latency_s")),
        duration(cell.median("job_ring_bound_s")),
        number(cell.median("job_exposed_over_bound")),
        duration(cell.median("job_barrier_s")),
        duration(_slowest_s(cell)),
    )


def _raw(cell: CellSummary, facts: Facts) -> tuple[Any, ...]:
    return (
        setting_label(cell, facts.varying),
        cell.backend,
        cell.cell.ranks,
        cell.fact("job_nodes"),
        str(cell.cell.sync),
        cell.median("job_step_without_sync_s"),
        *ends(exposed(cell, facts)),
        cell.median("job_gradient_bytes"),
        cell.fact("job_link"),
        cell.median("job_link_bytes_per_s"),
        cell.median("job_link_latency_s"),
        cell.median("job_ring_bound_s"),
        cell.median("job_exposed_over_bound"),
        cell.median("job_barrier_s"),
        _slowest_s(cell),
        len(cell.values("whole_samples_per_s")),
        cell.environment_key,
        cell.cell.cell_id,
    )


def exposed(cell: CellSummary, facts: Facts) -> Estimate | None:
    """Return the exposed communication of a job, with the page's interval if it has one; None if not measured."""
    claim = facts.claims.on(ClaimKind.EXPOSED, cell)
    return cell.interval(EXPOSED) if claim is None else claim.figure


def _slowest_s(cell: CellSummary) -> float | None:
    known = cell.median("job_wait_for_slowest_s") is not None
    return cell.per_step("whole_job_wait_for_slowest_s") if known else None


def interference_table(interferences: Sequence[Interference], facts: Facts) -> Table:
    """Return the time that loading and exchanging add to each part of a step, alone and together."""
    listed = [(interference, effects) for interference in interferences for effects in interference.effects]
    cells = [interference.both for interference in interferences]
    caption_sentences = [
        f"{dataset_label(cells[0])}: the interaction of loading and exchanging gradients",
        *caveats(cells),
    ]
    return Table(
        caption=". ".join(caption_sentences),
        head=(
            "setting",
            "backend",
            "part of a step",
            *(f"{effect} [{SIMULTANEOUS}]" for effect in ("loading alone", "exchange alone", "interaction")),
        ),
        rows=tuple(
            (
                setting_label(interference.both, facts.varying),
                backend_label(interference.both.backend),
                effects.part,
                milliseconds(effects.loading),
                milliseconds(effects.exchange),
                milliseconds(effects.interaction),
            )
            for interference, effects in listed
        ),
        raw_head=_INTERFERENCE_HEAD,
        raw=tuple(
            (
                setting_label(interference.both, facts.varying),
                interference.both.backend,
                effects.part,
                *ends(effects.loading),
                *ends(effects.exchange),
                *ends(effects.interaction),
                effects.interaction.n,
                interference.both.environment_key,
                interference.both.cell.cell_id,
            )
            for interference, effects in listed
        ),
        marks=("",) * len(listed),
        notes=(_CORNERS,),
    )
