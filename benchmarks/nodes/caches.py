"""Check that the page caches of all nodes are prepared and counted: a cold cell fails if one node is not cold.

A process on node 1 maps one of two stores there, so its pages cannot be evicted: the cell that reads it must name
node 1.
"""

from pathlib import Path

from benchmarks.nodes.cluster import Cluster
from storebench.record.schema import Record
from storebench.run.scenario import load_scenario
from storebench.stores.find import store_path

# The backend whose store is cold on both nodes, and the backend whose store stays in the memory of node 1.
EVICTED, HELD = "lmdb:direct", "hdf5:direct"

WARM_NODE = 1

SCENARIO = f"""
name = "caches"
question = "Does a cold cell fail if one of two nodes is not cold?"
replicates = 1
test_limit = 0
ceilings = false
timeout_s = 120
stall_s = 60

[[matrix]]
dataset = "imagenet"
synthetic = true
limit = 160
model = "tiny"
threads = 1
batch_size = 20
ranks = 2
cache = "cold"
backends = ["{EVICTED}", "{HELD}"]
"""


def held_on_one(cluster: Cluster, scenario: Path, folder: Path) -> dict[str, Record]:
    """Run the scenario while node 1 holds the pages of one store; return the record of each backend."""
    [cell] = [cell for cell in load_scenario(scenario).cells() if cell.backend.name == HELD]
    store = store_path(cluster.nodes[WARM_NODE].stores, cell.data, cell.backend)
    with cluster.holding(WARM_NODE, store):
        return {record.cell.backend.name: record for record in cluster.run(scenario, folder)}


def wrong(records: dict[str, Record]) -> list[str]:
    """Return the failed checks; empty if the caches of both nodes were prepared and counted."""
    evicted, held = records[EVICTED], records[HELD]
    found = []
    if evicted.failed or evicted.job is None:
        found.append(f"the cell with cold nodes failed: {evicted.failure}")
    elif not all(rank.device_read_bytes for rank in evicted.job.per_rank):
        found.append("a node that should be cold read nothing from its disk")
    if f"node {WARM_NODE}: " not in (held.failure or ""):
        found.append(f"node {WARM_NODE} was not cold, and the cell did not fail for it: {held.failure}")
    return found
