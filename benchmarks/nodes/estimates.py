"""Compare the model of `benchmarks.nodes.model` with jobs of every kind that it covers, and print its errors.

The model gets the rate, the processor time and the read amplification of one process on one node whose disk has no limit, the
probed rates of links and disks under the limits, and the bytes of the gradients. It gets no rate of a job.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.nodes.cluster import Cluster, Epoch, emulated, say
from benchmarks.nodes.kept import Check, Replicate, keep
from benchmarks.nodes.limits import MB, Limits, Probed
from benchmarks.nodes.model import Hardware, Work, rate_of
from benchmarks.nodes.report import cell_words, print_epochs, probed
from benchmarks.nodes.scenarios import scenario_text
from benchmarks.scaling_io import Way, way_of
from storebench.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION, CellFailedError
from storebench.results import Cell, Record
from storebench.settings.words import ComputeKind, Sync
from storebench.system.scratch import scratch_folder

MOST_ERROR_FRAC = 0.20
FEWEST_CELLS = 8

SAMPLES = 640
_COMMON = f"""
dataset = "imagenet"
synthetic = true
size = {SAMPLES}
threads = 1
cache = "cold"
"""
QUESTION = "Is the model of emulated nodes right?"

ALONE = f"""
[[matrix]]
{_COMMON}
model = "none"
compute = "none"
batch_size = 32
workers = [0, 1]
backends = ["lmdb:direct", "hdf5:direct"]
"""
"""The cells of one process, which give the model its parameters for each way of reading."""

READING = f"""
[[matrix]]
{_COMMON}
model = "none"
compute = "none"
batch_size = 32
ranks = 2
backends = ["lmdb:direct", "hdf5:direct"]

[[matrix]]
{_COMMON}
model = "none"
compute = "none"
batch_size = 16
ranks = 4
backends = ["lmdb:direct"]
"""
"""Jobs that only read."""


def _training(compute_ms: int, model: str, *syncs: str) -> str:
    listed = ", ".join(f'"{sync}"' for sync in syncs)
    return f"""
[[matrix]]
{_COMMON}
model = "{model}"
compute = "emulated:{compute_ms}"
batch_size = 32
workers = 1
ranks = 2
sync = [{listed}]
backends = ["lmdb:direct"]
"""


LARGE, SMALL = "cifar10_quick", "tiny"
"""Networks with 17 MB and 0.4 MB of gradients for these images."""

SETTINGS: dict[str, tuple[Limits, str]] = {
    "equal": (
        Limits(link_bytes_per_s=40 * MB, device_bytes_per_s=(40 * MB, 40 * MB)),
        READING + _training(100, SMALL, "after") + _training(300, LARGE, "after", "overlapped", "none"),
    ),
    "slow-disk": (
        Limits(link_bytes_per_s=40 * MB, device_bytes_per_s=(40 * MB, 15 * MB)),
        READING + _training(100, SMALL, "after") + _training(600, SMALL, "after"),
    ),
    "slow-links": (
        Limits(link_bytes_per_s=20 * MB, device_bytes_per_s=(40 * MB, 40 * MB)),
        _training(300, LARGE, "after", "overlapped"),
    ),
}
"""Name -> limits of the nodes, and the cells measured under them."""

FREE = Limits(link_bytes_per_s=40 * MB, device_bytes_per_s=(float("inf"), float("inf")))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A cell with its predicted and measured rate.

    Attributes
    ----------
    setting
        Name of the limits.
    predicted, measured
        Samples per second of the job.
    marked
        Whether a limit did not hold, or the cores were too busy.
    """

    setting: str
    cell: Cell
    predicted: float
    measured: float
    marked: bool

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1


def scenarios_in(folder: Path) -> dict[str, Path]:
    """Write the scenarios and return their paths by name; "alone" has the cells of one process."""
    texts = {"alone": ALONE} | {name: matrices for name, (_, matrices) in SETTINGS.items()}
    paths = {name: folder / f"{name}.toml" for name in texts}
    for name, path in paths.items():
        text = scenario_text(name, QUESTION, texts[name], timeout_s=300, stall_s=120)
        path.write_text(text, encoding="utf-8")
    return paths


def work_of(record: Record) -> Work:
    """Return the work of each rank of a job."""
    cell, job = record.cell, record.job
    assert job is not None, "the record is not that of a job"
    meets = cell.compute.kind is not ComputeKind.NONE
    return Work(
        ranks_per_node=job.ranks // job.nodes,
        batch_size=cell.batch_size,
        steps=record.steps,
        compute_s=cell.compute.milliseconds / 1e3,
        gradient_bytes=job.gradient_bytes or 0,
        sync=cell.sync if meets else Sync.NONE,
        ahead=cell.workers > 0,
    )


def estimate(setting: str, epoch: Epoch, way: Way, found: Probed) -> Estimate:
    """Return the predicted and the measured rate of a job."""
    record = epoch.record
    assert record.store is not None, "the record names no store"
    assert record.environment is not None, "the record names no machine"
    hardware = Hardware(
        device_bytes_per_s=found.device_bytes_per_s,
        link_bytes_per_s=found.link_bytes_per_s,
        cores=int(record.environment.match["cores"]) / len(found.device_bytes_per_s),
        sample_bytes=record.store.payload_bytes / record.store.count,
    )
    return Estimate(
        setting=setting,
        cell=record.cell,
        predicted=rate_of(way, hardware, work_of(record)),
        measured=record.samples_per_s,
        marked=bool(epoch.marks),
    )


def main(folder: Path | None = None) -> int:
    """Measure the cells, print predicted and measured rates, and keep them in a folder, if one is given."""
    replicates: list[Replicate] = []
    with scratch_folder("nodes") as scratch:
        paths = scenarios_in(scratch)
        with emulated(FREE, list(paths.values())) as cluster:
            ways = _ways(cluster, paths["alone"], scratch / "alone")
            estimates: list[Estimate] = []
            for name in SETTINGS:
                for one, replicate in _measured(cluster, name, paths[name], scratch, ways):
                    estimates += [] if one is None else [one]
                    replicates.append(replicate)
    named = {f"{backend}, {workers} workers": way for (backend, workers), way in ways.items()}
    keep(folder, Check(name="model", replicates=tuple(replicates), ways=named))
    print_table(estimates)
    return concluded(estimates)


def _ways(cluster: Cluster, scenario: Path, folder: Path) -> dict[tuple[str, int], Way]:
    """Return each way of reading, by backend and number of workers."""
    say("one process on node 0, its disk without a limit")
    epochs = cluster.run(scenario, folder)
    print_epochs(epochs)
    if any(epoch.record.failed for epoch in epochs):
        raise CellFailedError("a cell of one process failed, so the model knows too little")
    return {
        (epoch.record.cell.backend.name, epoch.record.cell.workers): way_of([epoch.record])
        for epoch in epochs
    }


def _measured(
    cluster: Cluster, name: str, scenario: Path, scratch: Path, ways: Mapping[tuple[str, int], Way]
) -> Iterator[tuple[Estimate | None, Replicate]]:
    """Yield each job under some limits: its estimate, None if it failed, and its replicate."""
    limits, _ = SETTINGS[name]
    cluster.limit(limits)
    found = probed(cluster)
    epochs = cluster.run(scenario, scratch / f"run-{name}", found)
    print_epochs(epochs)
    for epoch in epochs:
        cell = epoch.record.cell
        if epoch.record.failed:
            yield None, Replicate.of(epoch, limits, found)
            continue
        one = estimate(name, epoch, ways[cell.backend.name, cell.workers], found)
        yield (
            one,
            Replicate.of(
                epoch, limits, found, predicted=one.predicted, measured=one.measured, error=one.error
            ),
        )


def print_table(estimates: Sequence[Estimate]) -> None:
    """Print predicted and measured rates of all cells, with the model's error."""
    words = [f"{one.setting}: {cell_words(one.cell)}" for one in estimates]
    width = max(map(len, words), default=0)
    say(f"{'cell':{width}}  predicted  measured   error")
    for label, one in zip(words, estimates, strict=True):
        mark = "  MARKED: it does not count" if one.marked else ""
        say(f"{label:{width}}  {one.predicted:9.0f}  {one.measured:8.0f}  {one.error:+6.1%}{mark}")


def concluded(estimates: Sequence[Estimate]) -> int:
    """Print whether the model's error is within the limit for enough cells, and return the exit code."""
    counted = [one for one in estimates if not one.marked]
    within = [one for one in counted if abs(one.error) <= MOST_ERROR_FRAC]
    if len(counted) < FEWEST_CELLS:
        say(f"not decided: {len(counted)} cells without a mark, and {FEWEST_CELLS} are needed")
        return EXIT_INCONCLUSIVE
    worst = max(abs(one.error) for one in counted)
    say(
        f"the model is within {MOST_ERROR_FRAC:.0%} in {len(within)} of {len(counted)} cells; "
        f"its largest error is {worst:.1%}"
    )
    return EXIT_OK if len(within) == len(counted) else EXIT_REGRESSION
