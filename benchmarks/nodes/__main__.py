"""Emulated nodes on one machine: ``python -m benchmarks.nodes COMMAND`` (root; docs/nodes.md).

Each of 2 to 4 nodes has a network namespace, a link of limited bandwidth to a bridge, a disk of limited throughput with a
copy of the stores, and limited memory. Every node runs the ordinary ``storebench bench SCENARIO --nodes N``.

    python -m benchmarks.nodes run SCENARIO [--nodes 2] [--link-mb-per-s 40] [--device-mb-per-s 40 20] [--out FOLDER]
    python -m benchmarks.nodes up        set nodes up until an interrupt, for manual use
    python -m benchmarks.nodes caches    a cold cell fails if one node is not cold
    python -m benchmarks.nodes skew      the skew caused by a slower disk, measured and predicted from its limit
    python -m benchmarks.nodes store     the bytes that a data store moves over the links
    python -m benchmarks.nodes model     rates of jobs, measured and predicted by the model
    python -m benchmarks.nodes tables    the tables of docs/nodes.md, from results/reference/nodes

`skew`, `store`, `model` and `all` write their results to a folder with --keep FOLDER.

An interrupt removes everything. The next start removes the leftovers of a kill.
"""

import argparse
import datetime as dt
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.nodes import caches, estimates, exchange, kept, skew
from benchmarks.nodes.cluster import FEWEST_NODES, MOST_NODES, Cluster, emulated, say
from benchmarks.nodes.limits import MB, Limits
from benchmarks.nodes.report import exit_code, print_epochs, probed
from benchmarks.nodes.tables import tables
from storebench.errors import EXIT_OK, StorebenchError, UsageError, from_os_error
from storebench.scenario import find_scenario, load_scenario
from storebench.system import interrupts
from storebench.units import parse_bytes

DEFAULT_MB_PER_S = 40.0
LEAST_MB_PER_S = 0.5
LEAST_MEMORY_BYTES = 256 << 20
"""The memory of a process that imports torch."""

_CHECKS: dict[str, Callable[[Path | None], int]] = {
    "caches": lambda _folder: caches.main(),
    "skew": skew.main,
    "store": exchange.main,
    "model": estimates.main,
}


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.nodes", description=str(__doc__).splitlines()[0]
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run a scenario on emulated nodes")
    run.add_argument("scenario", help="a scenario file, or a name from 'storebench scenarios'")
    run.add_argument("--out", type=Path, help="folder of the run [default: a new one in ./runs]")
    for verb in (run, verbs.add_parser("up", help="set nodes up, and wait for an interrupt")):
        verb.add_argument("--nodes", type=int, default=FEWEST_NODES, help="number of nodes, 2 to 4")
        verb.add_argument(
            "--link-mb-per-s", type=float, default=DEFAULT_MB_PER_S, help="limit of each link and direction"
        )
        verb.add_argument(
            "--device-mb-per-s",
            type=float,
            nargs="+",
            default=[DEFAULT_MB_PER_S],
            help="limit of the disks: one for all nodes, or one for each",
        )
        verb.add_argument("--memory", default="2 GiB", help="memory of each node, page cache included")
    verbs.add_parser("caches", help="does a cold cell fail if one node is not cold?")
    for name, words_of in (
        ("skew", "do the limits of disks predict the skew?"),
        ("store", "does a data store move the bytes of (N - 1) / N of the samples?"),
        ("model", "is the model of docs/nodes.md right?"),
        ("all", "all four checks"),
    ):
        check = verbs.add_parser(name, help=words_of)
        check.add_argument("--keep", type=Path, metavar="FOLDER", help="write the results to FOLDER")
    printed = verbs.add_parser("tables", help="print the tables of docs/nodes.md")
    printed.add_argument("folder", type=Path, nargs="?", default=kept.FOLDER, help="folder of kept results")
    return parser.parse_args(words)


def limits_of(options: argparse.Namespace) -> Limits:
    """Return the limits of a command line.

    Raises
    ------
    UsageError
        A limit is impossible, or their number does not match the nodes.
    """
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
    try:
        memory_bytes = parse_bytes(options.memory)
    except ValueError as error:
        raise UsageError(str(error), where="--memory") from None
    if memory_bytes < LEAST_MEMORY_BYTES:
        raise UsageError("a node needs at least 256 MiB", where="--memory")
    return Limits(
        link_bytes_per_s=options.link_mb_per_s * MB,
        device_bytes_per_s=tuple(rate * MB for rate in (disks * count)[:count]),
        memory_bytes=memory_bytes,
    )


def run(options: argparse.Namespace) -> int:
    """Run a scenario and print its records."""
    limits, scenario = limits_of(options), find_scenario(options.scenario)
    _check(scenario, options.nodes)
    now = dt.datetime.now(dt.UTC).strftime("%Y%m%d-%H%M%S")
    folder = options.out or Path("runs") / f"{now}-nodes"
    with emulated(limits, [scenario]) as cluster:
        epochs = cluster.run(scenario, folder, probed(cluster))
    print_epochs(epochs)
    say(f"the run is in {folder}")
    return exit_code(epochs)


def _check(scenario: Path, nodes: int) -> None:
    """Refuse a scenario whose ranks cannot be divided among the nodes."""
    for cell in load_scenario(scenario).cells():
        if cell.ranks > 1 and cell.ranks % nodes:
            raise UsageError(f"{cell.ranks} ranks cannot be divided among {nodes} nodes", where=scenario)


def up(options: argparse.Namespace) -> int:
    """Set nodes up, say how to enter them, and wait for an interrupt."""
    with emulated(limits_of(options)) as cluster:
        _announce(cluster)
        while True:
            time.sleep(60)


def _announce(cluster: Cluster) -> None:
    say(str(cluster.limits))
    for node in cluster.nodes:
        enter = f"nsenter --net=/proc/{node.pid}/ns/net --mount=/proc/{node.pid}/ns/mnt"
        say(f"{node.name} is {node.address}, its disk {node.disk}; enter it with {enter}")
    say("ready; an interrupt ends them")


def print_tables(options: argparse.Namespace) -> int:
    """Print the tables of kept results."""
    print("\n\n".join(tables(options.folder)))
    return EXIT_OK


def _checks(folder: Path | None, *names: str) -> int:
    """Run checks, and return the first exit code that is not 0."""
    codes = [_CHECKS[name](folder) for name in names]
    return next((code for code in codes if code), EXIT_OK)


def main(words: Sequence[str]) -> int:
    """Run a command; an error is one line and an exit code, as in storebench itself."""
    interrupts.install()
    options = parsed(words)
    verbs = {"run": run, "up": up, "tables": print_tables}
    names = tuple(_CHECKS) if options.verb == "all" else (options.verb,)
    try:
        with interrupts.Raised():
            if options.verb in verbs:
                return verbs[options.verb](options)
            return _checks(getattr(options, "keep", None), *names)
    except StorebenchError as error:
        print(f"emulated nodes: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        found = from_os_error(error, error.filename or ".")
        print(f"emulated nodes: {found}", file=sys.stderr)
        return found.exit_code
    except KeyboardInterrupt:
        print("emulated nodes: interrupted; everything was removed", file=sys.stderr)
        interrupts.leave()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
