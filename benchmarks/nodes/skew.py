"""Check that the measured skew caused by a slower disk is within 15% of the prediction from the limits alone.

Two nodes read equal shards of a cold epoch and compute nothing, so no rank waits for another. A rank that is limited by its
disk takes as long as the disk needs for the delivered bytes. So the limits alone predict the skew.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.nodes.cluster import Epoch, emulated, say
from benchmarks.nodes.kept import Check, Replicate, keep
from benchmarks.nodes.limits import MB, Limits, Probed
from benchmarks.nodes.report import print_epochs, probed
from benchmarks.nodes.scenarios import scenario_text
from storebench.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION
from storebench.system.scratch import scratch_folder

MOST_ERROR_FRAC = 0.15
ROUNDS = 3
FAST = 40 * MB
SLOW = (30 * MB, 20 * MB, 10 * MB)
"""Limits of the disk of node 1; that of node 0 is `FAST`."""

SCENARIO = scenario_text(
    "skew",
    "Does a slower disk on one node make the skew that its limit predicts?",
    """
[[matrix]]
dataset = "imagenet"
synthetic = true
size = 640
model = "none"
compute = "none"
threads = 1
batch_size = 32
ranks = 2
cache = "cold"
backends = ["lmdb:direct"]
""",
    replicates=ROUNDS,
)


def predicted_skew(read_bytes: Sequence[float], bytes_per_s: Sequence[float]) -> float:
    """Return the skew of ranks that only wait for the disks of their nodes.

    Parameters
    ----------
    read_bytes
        Bytes that the disk delivered to each rank.
    bytes_per_s
        The limit of its disk.
    """
    seconds = [count / rate for count, rate in zip(read_bytes, bytes_per_s, strict=True)]
    return (max(seconds) - min(seconds)) / statistics.median(seconds)


def error_of(epoch: Epoch, limits: Limits) -> tuple[float, float] | None:
    """Return the predicted skew of an epoch, and measured over predicted less 1; None if they are unknown."""
    job = epoch.record.job
    if job is None or epoch.record.failed:
        return None
    counts = [float(rank.device_read_bytes) for rank in job.per_rank if rank.device_read_bytes is not None]
    if len(counts) < len(job.per_rank):
        return None
    rates = [limits.device_bytes_per_s[rank.node] for rank in job.per_rank]
    predicted = predicted_skew(counts, rates)
    return predicted, job.skew / predicted - 1


def main(folder: Path | None = None) -> int:
    """Measure the skew for each limit, print predicted and measured, and keep them in a folder, if one is given."""
    replicates: list[Replicate] = []
    with scratch_folder("nodes") as scratch:
        scenario = scratch / "skew.toml"
        scenario.write_text(SCENARIO, encoding="utf-8")
        with emulated(Limits(link_bytes_per_s=FAST, device_bytes_per_s=(FAST, FAST)), [scenario]) as cluster:
            for slow in SLOW:
                limits = Limits(link_bytes_per_s=FAST, device_bytes_per_s=(FAST, slow))
                cluster.limit(limits)
                found = probed(cluster)
                epochs = cluster.run(scenario, scratch / f"run-{slow / MB:g}", found)
                print_epochs(epochs)
                replicates += [_told(epoch, limits, found) for epoch in epochs]
    keep(folder, Check(name="skew", replicates=tuple(replicates)))
    return _concluded(replicates)


def _told(epoch: Epoch, limits: Limits, found: Probed) -> Replicate:
    """Return the replicate of an epoch, and print predicted and measured skew."""
    error, job = error_of(epoch, limits), epoch.record.job
    if error is None or job is None:
        return Replicate.of(epoch, limits, found)
    say(
        f"  skew {job.skew:.3f}, predicted by the limits {error[0]:.3f}: {error[1]:+.1%}"
        f"{' (marked: it does not count)' if epoch.marks else ''}"
    )
    return Replicate.of(epoch, limits, found, predicted=error[0], measured=job.skew, error=error[1])


def _concluded(replicates: Sequence[Replicate]) -> int:
    errors = [one.error for one in replicates if one.counts and one.error is not None]
    failed = sum(one.error is None for one in replicates)
    marked = sum(bool(one.marks) for one in replicates if one.error is not None)
    if failed or not errors:
        say(f"not decided: {failed} failed, {marked} marked, {len(errors)} measured")
        return EXIT_INCONCLUSIVE
    worst = max(map(abs, errors))
    within = worst <= MOST_ERROR_FRAC
    say(
        f"the limits predict the skew {'within' if within else 'NOT WITHIN'} {MOST_ERROR_FRAC:.0%}: "
        f"the largest error of {len(errors)} is {worst:.1%}; {marked} marked"
    )
    return EXIT_OK if within else EXIT_REGRESSION
