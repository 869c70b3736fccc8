"""Emulated nodes on one machine: ``python -m benchmarks.nodes COMMAND`` (root; docs/ranks.md).

Each of 2 to 4 nodes has a network namespace, a link of limited bandwidth to a bridge, a disk of limited throughput
with a copy of the stores, and limited memory, and runs ``storebench bench SCENARIO --nodes N``. An interrupt removes
everything, and the next start the leftovers of a kill.
"""

import argparse
import datetime as dt
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.nodes.cluster import FEWEST_NODES, MOST_NODES, emulated, print_records, probed, say
from benchmarks.nodes.limits import MB, Limits
from storebench.errors import EXIT_INTEGRITY, EXIT_OK, StorebenchError, UsageError
from storebench.run.scenario import find_scenario, load_scenario
from storebench.system import interrupts
from storebench.units import parse_bytes

DEFAULT_MB_PER_S = 40.0
LEAST_MB_PER_S = 0.5
# The memory of a process that imports torch.
LEAST_MEMORY_BYTES = 256 << 20


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.nodes", description=str(__doc__).splitlines()[0]
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run a scenario on emulated nodes")
    run.add_argument("scenario", help="a scenario file, or a name from 'storebench scenarios'")
    run.add_argument("--out", type=Path, help="folder of the run [default: a new one in ./runs]")
    run.add_argument("--nodes", type=int, default=FEWEST_NODES, help="number of nodes, 2 to 4")
    rate = DEFAULT_MB_PER_S
    run.add_argument("--link-mb-per-s", type=float, default=rate, help="limit of each link and direction")
    run.add_argument(
        "--device-mb-per-s",
        type=float,
        nargs="+",
        default=[rate],
        help="limit of the disks: one, or one per node",
    )
    run.add_argument(
        "--memory", type=parse_bytes, default="2 GiB", help="memory of each node, page cache included"
    )
    return parser.parse_args(words)


def limits_of(options: argparse.Namespace) -> Limits:
    """Return the limits of a command line."""
    count, disks = options.nodes, options.device_mb_per_s
    if not FEWEST_NODES <= count <= MOST_NODES:
        raise UsageError(
            f"{count} nodes cannot be emulated", where="--nodes", hint=f"{FEWEST_NODES} to {MOST_NODES} can."
        )
    if len(disks) not in (1, count):
        raise UsageError(
            f"{len(disks)} limits for {count} disks",
            where="--device-mb-per-s",
            hint="Name one, or one per node.",
        )
    if not all(LEAST_MB_PER_S <= rate < float("inf") for rate in (options.link_mb_per_s, *disks)):
        raise UsageError(f"limits of links and disks are at least {LEAST_MB_PER_S} MB/s")
    if options.memory < LEAST_MEMORY_BYTES:
        raise UsageError("a node needs at least 256 MiB", where="--memory")
    return Limits(
        link_bytes_per_s=options.link_mb_per_s * MB,
        device_bytes_per_s=tuple(rate * MB for rate in (disks * count)[:count]),
        memory_bytes=options.memory,
    )


def run(options: argparse.Namespace) -> int:
    """Run a scenario and print its records."""
    limits, scenario = limits_of(options), find_scenario(options.scenario)
    for cell in load_scenario(scenario).cells():
        if cell.ranks > 1 and cell.ranks % options.nodes:
            raise UsageError(
                f"{cell.ranks} ranks cannot be divided among {options.nodes} nodes", where=scenario
            )
    now = dt.datetime.now(dt.UTC).strftime("%Y%m%d-%H%M%S")
    folder = options.out or Path("runs") / f"{now}-nodes"
    with emulated(limits, [scenario]) as cluster:
        records = cluster.run(scenario, folder, probed(cluster))
    print_records(records)
    say(f"the run is in {folder}")
    return EXIT_INTEGRITY if any(record.failed for record in records) else EXIT_OK


def main(words: Sequence[str]) -> int:
    """Run a command; an error is one line and an exit code, as in storebench itself."""
    interrupts.install()
    options = parsed(words)
    try:
        with interrupts.Raised():
            return run(options)
    except StorebenchError as error:
        print(f"emulated nodes: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("emulated nodes: interrupted; everything was removed", file=sys.stderr)
        interrupts.leave()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
