"""The model of docs/scaling-io.md, extended by the link between nodes and by nodes of different speed.

One process on one node without limits gives, for each way to read: samples per second r, CPU seconds per sample c, and read
amplification a (`benchmarks.scaling_io.way_of`). With P ranks per node, b samples per step and rank, S bytes per sample, a
disk of D bytes per second on a node and k cores for it, a node serves all of its ranks in

    load = P b / min(P r, D / (a S), k / c)

With R ranks on N nodes, gradients of G bytes and links of B bytes per second in each direction, an ideal ring all-reduce takes

    exchange = 2 (R - 1) / R * G / B

A step that computes for t seconds is busy for t + exchange if the exchange follows the backward pass, for max(t, exchange) if
they overlap, and for t without an exchange. Ranks that meet in every step wait for the slowest node; a job of other ranks ends
with it. In both cases the slowest node decides, and n steps take

    n (load + busy)                          if the loop loads by itself
    load + (n - 1) max(load, busy) + busy    if workers load ahead
"""

import statistics
from dataclasses import dataclass

from benchmarks.scaling_io import Way
from storebench.settings.words import Sync


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The nodes.

    Attributes
    ----------
    device_bytes_per_s
        Rate of the disk of each node.
    link_bytes_per_s
        Rate of each link, in each direction.
    cores
        Cores per node; a share of the machine's where nodes are emulated.
    sample_bytes
        Bytes per sample.
    """

    device_bytes_per_s: tuple[float, ...]
    link_bytes_per_s: float
    cores: float
    sample_bytes: float


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of each rank.

    Attributes
    ----------
    ranks_per_node, batch_size, steps
        Ranks on each node, samples per step and rank, and steps of an epoch.
    compute_s
        Compute seconds per step.
    gradient_bytes
        Bytes that ranks exchange per step.
    sync
        Moment of the exchange.
    ahead
        Whether workers load batches ahead.
    """

    ranks_per_node: int
    batch_size: int
    steps: int
    compute_s: float = 0.0
    gradient_bytes: int = 0
    sync: Sync = Sync.NONE
    ahead: bool = False


def loads_s(way: Way, hardware: Hardware, work: Work) -> list[float]:
    """Return the seconds in which each node loads one batch for each of its ranks."""
    ranks = work.ranks_per_node
    cores = hardware.cores / way.cpu_s if way.cpu_s else float("inf")
    disks = [
        rate / (max(way.amplification, 1.0) * hardware.sample_bytes) for rate in hardware.device_bytes_per_s
    ]
    return [ranks * work.batch_size / min(ranks * way.rate, disk, cores) for disk in disks]


def exchange_s(hardware: Hardware, work: Work) -> float:
    """Return the seconds of an ideal ring all-reduce over the links; 0 on one node or without exchange."""
    nodes = len(hardware.device_bytes_per_s)
    if nodes == 1 or work.sync is Sync.NONE:
        return 0.0
    ranks = nodes * work.ranks_per_node
    return 2 * (ranks - 1) / ranks * work.gradient_bytes / hardware.link_bytes_per_s


def busy_s(hardware: Hardware, work: Work) -> float:
    """Return the seconds of a step after its batch has arrived: compute, and the exchange that it does not hide."""
    exchange = exchange_s(hardware, work)
    if work.sync is Sync.OVERLAPPED:
        return max(work.compute_s, exchange)
    return work.compute_s + exchange


def epoch_s(load_s: float, hardware: Hardware, work: Work) -> float:
    """Return the seconds of an epoch whose slowest node loads a batch in `load_s`."""
    busy = busy_s(hardware, work)
    if work.ahead:
        return load_s + (work.steps - 1) * max(load_s, busy) + busy
    return work.steps * (load_s + busy)


def rate_of(way: Way, hardware: Hardware, work: Work) -> float:
    """Return the samples per second of a job."""
    ranks = len(hardware.device_bytes_per_s) * work.ranks_per_node
    samples = ranks * work.batch_size * work.steps
    return samples / epoch_s(max(loads_s(way, hardware, work)), hardware, work)


def skew_of(way: Way, hardware: Hardware, work: Work) -> float:
    """Return the skew of a job whose ranks do not meet: the spread of their durations over the median."""
    took = [epoch_s(load, hardware, work) for load in loads_s(way, hardware, work)]
    return (max(took) - min(took)) / statistics.median(took)
