"""Count the bytes that a data store moves over the links in its second epoch: (N - 1) / N of the samples' bytes.

Each of N nodes has one rank, which keeps the samples that it served in the first epoch. The second epoch shuffles the samples
again. So a rank holds one in N of the samples that it needs, and gets the others over its link. Disks deliver nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.nodes.cluster import Cluster, Epoch, emulated, say
from benchmarks.nodes.kept import Check, Replicate, keep
from benchmarks.nodes.limits import MB, Limits, Probed
from benchmarks.nodes.report import print_epochs, probed
from benchmarks.nodes.scenarios import scenario_text
from storebench.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION
from storebench.system.scratch import scratch_folder

MOST_ERROR_FRAC = 0.05
MOST_READ_FRAC = 0.01
"""Share of the samples' bytes that disks may deliver in the second epoch, such as a file of a library."""

NODES = (2, 3)
LINK = 3 * MB
"""Slow enough for an epoch of several seconds, because counters are read 20 times per second."""

QUESTION = "Which bytes does the data store move over the links?"
_MATRIX = """
[[matrix]]
dataset = "cifar10"
synthetic = true
size = 9000
model = "none"
compute = "none"
threads = 1
batch_size = 250
ranks = {nodes}
epochs = 2
share = "store"
store_fill = "first-epoch"
cache = "cold"
backends = ["lmdb:direct"]
"""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The second epoch of a data store.

    Attributes
    ----------
    nodes
        Number of nodes.
    payload_bytes
        Bytes of all samples.
    received_bytes
        Bytes that the links delivered to all nodes.
    read_bytes
        Bytes that the disks delivered to the ranks during the epoch; None if they were not counted.
    """

    nodes: int
    payload_bytes: int
    received_bytes: float
    read_bytes: int | None

    @property
    def predicted_bytes(self) -> float:
        """Bytes of the samples that other nodes hold."""
        return (self.nodes - 1) / self.nodes * self.payload_bytes

    @property
    def error(self) -> float:
        """Received over predicted bytes, less 1."""
        return self.received_bytes / self.predicted_bytes - 1

    @property
    def right(self) -> bool:
        """Whether the links moved the predicted bytes, and the disks delivered none."""
        quiet = self.read_bytes is not None and self.read_bytes <= MOST_READ_FRAC * self.payload_bytes
        return quiet and abs(self.error) <= MOST_ERROR_FRAC

    def __str__(self) -> str:
        """Return a line with the bytes."""
        read = "uncounted bytes" if self.read_bytes is None else f"{self.read_bytes / MB:.2f} MB"
        return (
            f"second epoch on {self.nodes} nodes: links moved {self.received_bytes / MB:.2f} MB, predicted "
            f"{self.predicted_bytes / MB:.2f} MB: {self.error:+.1%}; ranks read {read} from disks"
        )


def measured(cluster: Cluster, scenario: Path, folder: Path) -> tuple[Exchange | None, list[Replicate]]:
    """Run the scenario and return the bytes of its second epoch, None if it failed, and both epochs."""
    found = probed(cluster)
    epochs = cluster.run(scenario, folder, found)
    print_epochs(epochs)
    exchange = exchanged(cluster, epochs)
    return exchange, [_replicate(epoch, cluster.limits, found, exchange) for epoch in epochs]


def _replicate(epoch: Epoch, limits: Limits, found: Probed, exchange: Exchange | None) -> Replicate:
    """Return the replicate of an epoch; the bytes of the second one are compared."""
    if exchange is None or not epoch.record.epoch:
        return Replicate.of(epoch, limits, found)
    return Replicate.of(
        epoch,
        limits,
        found,
        predicted=exchange.predicted_bytes,
        measured=exchange.received_bytes,
        error=exchange.error,
    )


def exchanged(cluster: Cluster, epochs: Sequence[Epoch]) -> Exchange | None:
    """Return the bytes of the second of two epochs; None if it failed."""
    first, second = epochs
    job = second.record.job
    if first.window is None or second.window is None or cluster.watched is None or job is None:
        return None
    # Messages for the first batch are sent before it is requested; nothing else crosses the links between epochs.
    seen = cluster.watched.between(first.window[1], second.window[1])
    return Exchange(
        nodes=len(cluster.nodes),
        payload_bytes=second.record.payload_bytes,
        received_bytes=sum(seen.received_bytes),
        read_bytes=read_by_ranks([rank.device_read_bytes for rank in job.per_rank]),
    )


def read_by_ranks(counts: Sequence[int | None]) -> int | None:
    """Return the sum of the bytes that disks delivered to each rank; None if one rank did not count them."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def main(folder: Path | None = None) -> int:
    """Measure two and three nodes, print predicted and measured bytes, and keep them in a folder, if one is given."""
    found: list[Exchange | None] = []
    replicates: list[Replicate] = []
    with scratch_folder("nodes") as scratch:
        for nodes in NODES:
            scenario = scratch / f"exchange-{nodes}.toml"
            scenario.write_text(
                scenario_text("exchange", QUESTION, _MATRIX.format(nodes=nodes)), encoding="utf-8"
            )
            limits = Limits(link_bytes_per_s=LINK, device_bytes_per_s=(40 * MB,) * nodes)
            with emulated(limits, [scenario]) as cluster:
                exchange, epochs = measured(cluster, scenario, scratch / f"run-{nodes}")
                found.append(exchange)
                replicates += epochs
    keep(folder, Check(name="store", replicates=tuple(replicates)))
    return _concluded(found)


def _concluded(found: Sequence[Exchange | None]) -> int:
    for one in found:
        say("a cell failed" if one is None else str(one))
    if any(one is None or one.read_bytes is None for one in found):
        return EXIT_INCONCLUSIVE
    right = all(one is not None and one.right for one in found)
    say(
        f"{'right' if right else 'WRONG'}: the second epoch moves the bytes of (N - 1) / N of the samples within "
        f"{MOST_ERROR_FRAC:.0%}, and reads nothing from disks"
    )
    return EXIT_OK if right else EXIT_REGRESSION
