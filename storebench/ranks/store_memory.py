"""The memory of a data store on one node: the most that it needs, and whether that much is available."""

import psutil

from storebench.errors import UsageError
from storebench.probes.cgroup import memory_room_bytes
from storebench.record.manifest import Manifest
from storebench.record.schema import Cell
from storebench.settings.words import Share
from storebench.units import rounded_bytes

# Steps per rank whose messages may be in flight at once.
STEPS_UNDER_WAY = 2

# Bytes of each rank's tables per sample of the store: its owner, its size and its label.
TABLE_BYTES = 4 + 8 + 8


def needed_bytes(count: int, size: int, *, ranks: int, local_ranks: int, batch_size: int) -> int:
    """Return the most bytes that a data store needs on one node: samples, tables and messages of its ranks."""
    sample = -(-size // max(1, count))
    shares = -(-count // ranks) * local_ranks * sample
    # Each rank receives its own batches, and in a step one node may hold all samples that the others need.
    messages = STEPS_UNDER_WAY * (local_ranks + ranks) * batch_size * sample
    return shares + local_ranks * count * TABLE_BYTES + messages


def available_bytes(most: int | None) -> tuple[int, str]:
    """Return the memory in bytes that a data store may use on this machine, and the name of the limit."""
    limits = [
        (most, "store_memory"),
        (psutil.virtual_memory().available, "the memory that is available"),
        (memory_room_bytes(), "the control group of this process"),
    ]
    sizes = [(size, name) for size, name in limits if size is not None]
    return min(sizes, default=(2**63 - 1, "nothing"))


def check_room(cell: Cell, manifest: Manifest, nodes: int, node: int = 0) -> None:
    """Refuse a data store that does not fit into the memory of this node. Nothing has been read yet."""
    if cell.share is not Share.STORE:
        return
    needed = needed_bytes(
        manifest.count,
        manifest.payload_bytes,
        ranks=cell.ranks,
        local_ranks=-(-cell.ranks // nodes),
        batch_size=cell.batch_size,
    )
    available, limit = available_bytes(cell.store_memory_bytes)
    if needed > available:
        raise UsageError(
            f"the data store needs {rounded_bytes(needed)} of memory on node {node}, and {limit} "
            f"leaves it {rounded_bytes(available)}",
            where=cell.backend.name,
            hint="Use more nodes or fewer samples.",
        )
