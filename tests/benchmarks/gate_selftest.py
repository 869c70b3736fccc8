"""Measure the gate itself: how often it cries wolf, and what it catches.

``python -m tests.benchmarks.gate_selftest``, or ``make gate-selftest``.

What is measured: whole sessions of the benchmark suite, each a fresh pytest
process, in turn idle, with a busy process on another core, and with slow-downs
of 1.3x and 1.1x planted into one reader, one codec, the loader, the converter
and the training step (the planted cell spins after its work, so a planted
session is a real run of the slower thing).

What is simulated: a suite comparison draws its sessions without replacement
from those pools (five for the baseline, five for the contender, and five more
where a second run has to confirm), and a contender with one planted cell is
plain sessions whose one cell comes from planted sessions. Sessions are drawn at
random, so a drift of the machine over the minutes of the collection is spread
over both sides; "in a row" draws consecutive sessions instead, as a committed
baseline and a later run would be.
"""

import argparse
import copy
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storebench.check.confirm import confirmed
from storebench.check.judge import CellResult, State, judge
from storebench.check.outcome import outcome
from storebench.check.policy import Policy
from storebench.check.side_benchmarks import side_of_sessions
from storebench.check.sides import Side
from storebench.errors import EXIT_NOT_COMPARABLE, EXIT_REGRESSION

Session = dict[str, Any]

PLANTED = (
    "read/lmdb+raw:get/warm",
    "decode/png",
    "loader/processes/workers-0",
    "convert/hdf5+raw",
    "train/cifar10_quick",
)
SESSIONS_A_SIDE = 5
COMPARISONS = 40
TRIALS = 20
BUSY = """
import os, numpy as np
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # never above what it disturbs
a = np.ones(1 << 24)
while True: a *= 1.0000001
"""
KINDS = ("idle", "loaded", "slower-1.3", "slower-1.1")


def collect(pool: Path, sessions: int) -> None:
    """Run what the pool lacks: all kinds in turn, so that each sees the same hours."""
    for number in range(sessions):
        for kind in KINDS:
            planted = kind.startswith("slower")
            out = pool / kind / f"session-{number:02}.json"
            if out.is_file() or (planted and number >= max(SESSIONS_A_SIDE, sessions // 2)):
                continue
            out.parent.mkdir(parents=True, exist_ok=True)
            factor = kind.partition("-")[2]
            plant = ",".join(f"{cell}={factor}" for cell in PLANTED) if planted else ""
            with busy(kind == "loaded"):
                run_session(out, plant)
            print(f"collected {out}", file=sys.stderr, flush=True)


def run_session(out: Path, plant: str = "") -> None:
    """Run the suite once for time in a fresh process."""
    unfinished = out.with_suffix(".tmp")
    command = [sys.executable, "-m", "pytest", "-q", "tests/benchmarks", "--benchmark-enable"]
    subprocess.run(
        [*command, "--benchmark-disable-gc", f"--benchmark-json={unfinished}"],
        env={**os.environ, "STOREBENCH_PLANT": plant},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    unfinished.rename(out)


@contextmanager
def busy(wanted: bool) -> Iterator[None]:
    """Keep another core busy with memory traffic."""
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def side(sessions: Sequence[Session]) -> Side:
    return side_of_sessions("pool", [(str(number), one) for number, one in enumerate(sessions)])


def compare(
    baseline: Sequence[Session], contender: Sequence[Session], again: Sequence[Session], policy: Policy
) -> tuple[list[CellResult], list[CellResult]]:
    """Return the results before and after the second run of the suspected cells."""
    first = side(baseline)
    results = judge(first, side(contender), policy)
    suspects = [one.cell_id for one in results if one.suspected]
    if not suspects:
        return results, results
    second = {one.cell_id: one for one in judge(first, side(again), policy, only=suspects)}
    return results, [confirmed(one, second[one.cell_id]) if one.suspected else one for one in results]


def draw(pool: Sequence[Session], rng: random.Random) -> list[list[Session]]:
    """Draw three sets of sessions without replacement."""
    chosen = rng.sample(list(pool), min(len(pool), 3 * SESSIONS_A_SIDE))
    size = len(chosen) // 3
    return [chosen[part * size : (part + 1) * size] for part in range(3)]


def in_a_row(pool: Sequence[Session], rng: random.Random) -> list[list[Session]]:
    """Cut three consecutive sets out of the pool at a random place."""
    size = min(len(pool) // 3, SESSIONS_A_SIDE)
    start = rng.randrange(len(pool) - 3 * size + 1)
    return [list(pool[start + part * size : start + (part + 1) * size]) for part in range(3)]


def red(results: Sequence[CellResult], policy: Policy) -> bool:
    return outcome(results, policy).exit_code == EXIT_REGRESSION


def with_cell_of(sessions: Sequence[Session], others: Sequence[Session], cell: str) -> list[Session]:
    """Return sessions whose one cell comes from others."""
    mixed = []
    for one, other in zip(sessions, others, strict=True):
        (planted,) = [entry for entry in other["benchmarks"] if entry["extra_info"]["cell_id"] == cell]
        rest = [entry for entry in one["benchmarks"] if entry["extra_info"]["cell_id"] != cell]
        mixed.append({**one, "benchmarks": [*rest, planted]})
    return mixed


def try_same_code(pools: dict[str, list[Session]], policy: Policy, rng: random.Random) -> bool:
    """Compare the same code with itself and print how many suites were red."""
    fine = True
    for how, choose in (("drawn at random", draw), ("in a row", in_a_row)):
        reds, confirmed_reds, states = 0, 0, Counter[str]()
        for number in range(COMPARISONS):
            sets = choose(pools[("idle", "loaded")[number % 2]], rng)
            before, after = compare(*sets, policy)
            reds += red(before, policy)
            confirmed_reds += red(after, policy)
            states.update(str(one.state) for one in after)
        total = sum(states.values())
        shares = ", ".join(f"{name} {count / total:.1%}" for name, count in states.most_common())
        print(
            f"A/A {how}: {reds} of {COMPARISONS} suites red, {confirmed_reds} after --confirm; cells: {shares}"
        )
        fine &= reds <= 1 and confirmed_reds == 0
    return fine


def try_planted(pools: dict[str, list[Session]], factor: str, policy: Policy, rng: random.Random) -> bool:
    """Plant a slow-down into one cell at a time and print how often it was caught, and nothing else."""
    fine = True
    for cell in PLANTED:
        counts: Counter[str] = Counter()
        for _ in range(TRIALS):
            baseline, plain, again = draw(pools["idle"], rng)
            slow = pools[f"slower-{factor}"]
            contender = with_cell_of(plain, rng.sample(slow, len(plain)), cell)
            second = with_cell_of(again, rng.sample(slow, len(again)), cell)
            _, results = compare(baseline, contender, second, policy)
            by_id = {one.cell_id: one for one in results}
            one = by_id[cell]
            counts[str(one.state)] += 1
            below = (one.floor_frac or 0) < float(factor) - 1
            counts["hidden"] += one.state is State.WITHIN_NOISE and below
            counts["others named"] += any(o.state is State.WORSE for o in results if o.cell_id != cell)
        seen = ", ".join(f"{name} {count}" for name, count in counts.most_common() if count)
        print(f"planted {factor}x in {cell}, {TRIALS} trials: {seen}")
        enough = counts["worse"] >= 0.95 * TRIALS if factor == "1.3" else not counts["hidden"]
        fine &= enough and not counts["others named"]
    return fine


def try_counters(pools: dict[str, list[Session]], policy: Policy, rng: random.Random) -> bool:
    """Plant one more read call a sample and 5% more bytes into every cell in turn; each must be caught."""
    caught = trials = 0
    baseline, contender, _ = draw(pools["idle"], rng)
    for cell in side(baseline).cells:
        for counter, grow in (("read_calls", _one_more_a_sample), ("bytes_on_disk", _five_percent)):
            planted = [_grown(one, cell, counter, grow) for one in contender]
            if not any(_counters(one, cell).get(counter) is not None for one in planted):
                continue
            results = judge(side(baseline), side(planted), policy)
            trials += 1
            caught += any(
                one.cell_id == cell and any(counter == found.name for found in one.worse_counters)
                for one in results
            )
    print(f"counter regressions: {caught} of {trials} caught")
    return caught == trials > 0


def _one_more_a_sample(value: float, samples: int) -> float:
    return value + samples


def _five_percent(value: float, _samples: int) -> float:
    return value * 1.05


def _counters(session: Session, cell: str) -> dict[str, float]:
    (found,) = [one["extra_info"] for one in session["benchmarks"] if one["extra_info"]["cell_id"] == cell]
    counters: dict[str, float] = found["counters"]
    return counters


def _grown(session: Session, cell: str, counter: str, grow: Any) -> Session:
    copied = copy.deepcopy(session)
    counters = _counters(copied, cell)
    if counter in counters:
        counters[counter] = grow(counters[counter], counters["samples_served"])
    return copied


def try_half_bandwidth(pools: dict[str, list[Session]], policy: Policy, rng: random.Random) -> bool:
    """Scale raw times and calibrations together: a machine of half the speed must pass, but not in seconds."""
    seconds = policy.model_copy(update={"basis": "seconds"})
    codes, refused = Counter[int](), Counter[int]()
    for _ in range(TRIALS):
        baseline, contender, again = draw(pools["idle"], rng)
        slower, once_more = _half_as_fast(contender), _half_as_fast(again)
        codes[outcome(compare(baseline, slower, once_more, policy)[1], policy).exit_code] += 1
        refused[outcome(judge(side(baseline), side(slower), seconds), seconds).exit_code] += 1
    print(
        f"half the bandwidth, {TRIALS} trials: exit codes {dict(codes)} as ratios, {dict(refused)} in seconds"
    )
    return not codes[EXIT_REGRESSION] and refused[EXIT_NOT_COMPARABLE] == TRIALS


def _half_as_fast(sessions: Sequence[Session]) -> list[Session]:
    slower = copy.deepcopy(list(sessions))
    for one in slower:
        one["machine_info"] = {"storebench_environment": {"key": "half", "match": {"cpu": "half as fast"}}}
        for entry in one["benchmarks"]:
            extra, stats = entry["extra_info"], entry["stats"]
            stats["data"] = [2 * value for value in stats["data"]]
            extra["calibration_s"] = [2 * value for value in extra["calibration_s"]]
    return slower


def try_for_real(pool: Path, trials: int) -> bool:
    """Compare new sessions with the pool's by the real command with --confirm: same code, then slower code."""
    fine = True
    for plant, wanted in [("", (0, 4))] * trials + [(f"{PLANTED[0]}=1.3", (0, 1, 4))] * trials:
        baseline, contender = pool / "real-a", pool / "real-b"
        for folder in (baseline, contender):
            folder.mkdir(exist_ok=True)
        for number in range(SESSIONS_A_SIDE):
            run_session(baseline / f"{number}.json")
            run_session(contender / f"{number}.json", plant)
        command = [sys.executable, "-m", "storebench", "check", str(baseline), str(contender), "--confirm"]
        done = subprocess.run(
            command,
            env={**os.environ, "STOREBENCH_PLANT": plant},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        line = done.stderr.strip().splitlines()[-1]
        print(f"for real, planted {plant or 'nothing'}: exit code {done.returncode}: {line}")
        fine &= done.returncode in wanted
    return fine


def main() -> int:
    """Collect, then test the gate; exit 1 where it does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pool", type=Path, default=Path("runs/gate-selftest"), help="where sessions are kept"
    )
    parser.add_argument("--sessions", type=int, default=15, help="sessions of each plain kind")
    parser.add_argument("--real", type=int, default=1, help="comparisons of each kind that really run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    collect(options.pool, options.sessions)
    pools = {
        kind: [json.loads(path.read_text()) for path in sorted((options.pool / kind).glob("*.json"))]
        for kind in KINDS
    }
    policy, rng = Policy(), random.Random(options.seed)
    print(f"{', '.join(f'{len(found)} {kind}' for kind, found in pools.items())} sessions")
    checks = [
        try_same_code(pools, policy, rng),
        try_planted(pools, "1.3", policy, rng),
        try_planted(pools, "1.1", policy, rng),
        try_counters(pools, policy, rng),
        try_half_bandwidth(pools, policy, rng),
        try_for_real(options.pool, options.real),
    ]
    print("the gate holds" if all(checks) else "the gate does NOT hold")
    return 0 if all(checks) else 1


if __name__ == "__main__":
    sys.exit(main())
