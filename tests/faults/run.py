"""Let operations of convert, bench, report and check fail, one at a time: ``python -m tests.faults.run``.

Prints a line per fault after which something did not hold, and a table of all; the exit code is 1 where there was one.
``--only``, ``--kind`` and ``--at`` repeat one, and ``--keep`` keeps
its folder.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.engine import KINDS, Fault, Library, hear_signals
from tests.faults.points import Point, Trials, plant_all, table
from tests.faults.templates import Templates
from tests.faults.verbs import Verb, all_verbs


def main() -> int:
    """Plant the faults that were asked for, print what did not hold, and return 1 where something did not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, help="faults per command, in place of its own number")
    parser.add_argument(
        "--only", action="append", metavar="COMMAND", help="commands, by name; may be repeated"
    )
    parser.add_argument("--kind", choices=KINDS, help="plant one fault: its kind")
    parser.add_argument("--at", type=int, help="plant one fault: its operation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--keep", metavar="FOLDER", type=Path, help="keep the folders of faults that broke something"
    )
    options = parser.parse_args()
    hear_signals()
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as scratch:
        folder = (options.keep or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        verbs = all_verbs(Templates(folder / "templates"))
        names = [verb.name for verb in verbs]
        if unknown := set(options.only or []) - set(names):
            parser.error(f"no command is called {', '.join(sorted(unknown))}; known: {', '.join(names)}")
        verbs = [verb for verb in verbs if not options.only or verb.name in options.only]
        trials = Trials(Library.build(folder), folder, keep=options.keep is not None)
        if options.kind and options.at:
            return _one(trials, verbs[0], Fault(kind=options.kind, at=options.at))
        return _many(trials, verbs, options)


def _many(trials: Trials, verbs: list[Verb], options: argparse.Namespace) -> int:
    def points_of(verb: Verb) -> int:
        return int(options.points or verb.points)

    started = time.monotonic()
    done: list[Point] = []

    def tell(point: Point) -> None:
        done.append(point)
        if point.problems:
            _print(point)
        if len(done) % 50 == 0:
            print(f"{len(done)} faults, {time.monotonic() - started:.0f} s", flush=True)

    counts, points = plant_all(trials, verbs, points_of, seed=options.seed, jobs=options.jobs, tell=tell)
    broken = sum(bool(point.problems) for point in points)
    reached = sum(point.ending.fired for point in points)
    print(table(counts, points))
    print(f"\n{reached} faults in {time.monotonic() - started:.0f} s, {broken} of them broke something")
    return int(broken > 0)


def _one(trials: Trials, verb: Verb, fault: Fault) -> int:
    calls = trials.count(verb).of(fault.kind)
    point = trials.plant(verb, fault, calls[min(fault.at, len(calls)) - 1])
    _print(point)
    print(f"exit code {point.ending.code}\n{point.ending.stderr}")
    return int(bool(point.problems))


def _print(point: Point) -> None:
    print(f"{point}, exit code {point.ending.code}, {point.seconds:.1f} s", flush=True)
    for problem in point.problems:
        print(f"    {problem}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
