"""The output of a run on emulated nodes: one line per record with the measurements of the limits, and the marks."""

from collections.abc import Iterable, Sequence

from benchmarks.nodes.cluster import Cluster, Epoch, say
from benchmarks.nodes.limits import Probed
from storebench.errors import EXIT_INTEGRITY, EXIT_OK
from storebench.results import Cell
from storebench.settings.words import ComputeKind


def probed(cluster: Cluster) -> Probed:
    """Measure and print the rates of a cluster's links and disks under their limits."""
    say(f"{len(cluster.nodes)} nodes, {cluster.limits}")
    found = cluster.probe()
    say(str(found))
    for mark in found.marks(cluster.limits):
        say(f"MARKED: {mark}")
    return found


def print_epochs(epochs: Iterable[Epoch]) -> None:
    """Print one line per record, and one per mark."""
    for epoch in epochs:
        record = epoch.record
        where = f"{cell_words(record.cell)}, round {record.replicate}, epoch {record.epoch}"
        if record.failed:
            say(f"{where}: FAILED: {record.failure}")
            continue
        observed = "" if epoch.observed is None else f"; {epoch.observed}"
        say(f"{where}: {record.samples_per_s:,.0f} samples/s{observed}")
        for mark in epoch.marks:
            say(f"  MARKED: {mark}")


def exit_code(epochs: Sequence[Epoch]) -> int:
    """Return the exit code of a run; it stands for wrong results if a record failed."""
    return EXIT_INTEGRITY if any(epoch.record.failed for epoch in epochs) else EXIT_OK


def cell_words(cell: Cell) -> str:
    """Return the settings of a cell that differ between the cells of these runs."""
    words = [cell.backend.name, str(cell.cache), f"{cell.ranks} ranks of {cell.batch_size}"]
    words += [f"{cell.workers} workers"] if cell.workers else []
    words += [cell.compute] if cell.compute.kind is not ComputeKind.REAL else []
    if cell.ranks > 1 and cell.compute.kind is not ComputeKind.NONE:
        words += [cell.model, f"gradients {cell.sync}"]
    return ", ".join(words)
