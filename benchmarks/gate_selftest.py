"""Measure the gate itself: how often it alarms without cause, what it catches, and on which machines.

``python -m benchmarks.gate_selftest [--parts PART ...]``, or ``make gate-selftest``.

What is measured: whole sessions of the benchmark suite, each a fresh pytest
process: idle, beside a process that takes memory bandwidth on another core, on
other emulated machines (`benchmarks.machines`, which need root), and with
slow-downs of 1.3x and 1.1x planted into one reader, one codec, the loader, the
converter and the training step (the planted cell spins after its work, so a
planted session is a real run of the slower thing).

What is simulated: a suite comparison draws its sessions without replacement
from those pools (five for the baseline, five for the contender, and five more
where a second run has to confirm), and a contender with one planted cell is
plain sessions whose one cell comes from planted sessions. Stalls and counters
are planted into the figures of real sessions. Sessions are drawn at random, so
a drift of the machine over the minutes of the collection is spread over both
sides; "in a row" draws consecutive sessions instead, as a committed baseline and
a later run would be.

Parts: ``same`` (A/A, also idle against busy and back), ``planted``, ``stalls``,
``counters``, ``machines`` (which kinds of calibration carry over) and ``real``
(the command itself, with --confirm; slow, and not run unless it is named).
"""

import argparse
import copy
import itertools
import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machines import MACHINES, Place, this_machine, unavailable
from storebench.check.calibration import VALIDATED, LimitingWork
from storebench.check.confirm import confirmed
from storebench.check.judge import CellResult, CellState, judge
from storebench.check.outcome import outcome
from storebench.check.policy import Policy
from storebench.check.sides.benchmarks import side_of_sessions
from storebench.check.sides.model import Side
from storebench.errors import EXIT_REGRESSION

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
PARTS = ("same", "planted", "stalls", "counters", "machines", "real")
NEEDS = {
    "same": ("idle", "loaded"),
    "planted": ("idle", "slower-1.3", "slower-1.1"),
    "stalls": ("idle",),
    "counters": ("idle",),
    "machines": ("idle", *MACHINES),
    "real": (),
}
"""Part -> the pools of sessions that it draws from."""


def collect(pool: Path, sessions: int, kinds: Sequence[str]) -> None:
    """Run what the pool lacks: all kinds in turn, so that each sees the same hours."""
    for number, kind in itertools.product(range(sessions), kinds):
        out = pool / kind / f"session-{number:02}.json"
        if out.is_file() or number >= _wanted(kind, sessions):
            continue
        out.parent.mkdir(parents=True, exist_ok=True)
        factor = kind.partition("-")[2] if kind.startswith("slower") else ""
        plant = ",".join(f"{cell}={factor}" for cell in PLANTED) if factor else ""
        with MACHINES.get(kind, this_machine)() as place:
            run_session(out, plant, place)
        print(f"collected {out}", file=sys.stderr, flush=True)


def _wanted(kind: str, sessions: int) -> int:
    """Return the number of sessions to collect of a kind: three sets only where the same code is compared with itself."""
    if kind in ("idle", "loaded"):
        return sessions
    return max(SESSIONS_A_SIDE, sessions // 2) if kind.startswith("slower") else SESSIONS_A_SIDE


def run_session(out: Path, plant: str = "", place: Place | None = None) -> None:
    """Run the suite once for time in a fresh process."""
    place = place or Place()
    unfinished = out.resolve().with_suffix(".tmp")
    command = [*place.prefix, sys.executable, "-m", "pytest", "-q", "benchmarks/suite", "--benchmark-enable"]
    command += ["--benchmark-only", "--benchmark-disable-gc", f"--benchmark-json={unfinished}"]
    temporary = {} if place.temporary is None else {"TMPDIR": str(place.temporary)}
    subprocess.run(
        command,
        env={**os.environ, "STOREBENCH_PLANT": plant, **temporary},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    unfinished.rename(out)


def side(sessions: Sequence[Session]) -> Side:
    """Return the side that `storebench check` would make of these sessions."""
    return side_of_sessions("pool", [(str(number), one) for number, one in enumerate(sessions)])


def compare(
    baseline: Sequence[Session], contender: Sequence[Session], again: Sequence[Session], policy: Policy
) -> tuple[list[CellResult], list[CellResult]]:
    """Return the results before and after the second run of the suspected cells."""
    first, second = side(baseline), side(contender)
    results = judge(first, second, policy)
    return results, confirmed(results, (first, second), (first, side(again)), policy)


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
    """Return whether the gate would report a regression."""
    return outcome(results, policy).exit_code == EXIT_REGRESSION


def with_cell_of(sessions: Sequence[Session], others: Sequence[Session], cell: str) -> list[Session]:
    """Return sessions whose one cell comes from others."""
    mixed = []
    for one, other in zip(sessions, others, strict=True):
        (planted,) = [entry for entry in other["benchmarks"] if entry["extra_info"]["cell_id"] == cell]
        rest = [entry for entry in one["benchmarks"] if entry["extra_info"]["cell_id"] != cell]
        mixed.append({**one, "benchmarks": [*rest, planted]})
    return mixed


def across(
    first: Sequence[Session], second: Sequence[Session], rng: random.Random
) -> tuple[list[Session], list[Session], list[Session]]:
    """Draw a baseline from one pool, and a contender and its second run from another."""
    size = min(len(first), len(second) // 2, SESSIONS_A_SIDE)
    later = rng.sample(list(second), 2 * size)
    return rng.sample(list(first), size), later[:size], later[size:]


def try_same_code(pools: dict[str, list[Session]], policy: Policy, rng: random.Random) -> bool:
    """Compare the same code with itself and print how many suites were red."""
    idle, loaded = pools["idle"], pools["loaded"]
    ways: dict[str, Callable[[], Sequence[list[Session]]]] = {
        "idle, drawn at random": lambda: draw(idle, rng),
        "idle, in a row": lambda: in_a_row(idle, rng),
        "busy, drawn at random": lambda: draw(loaded, rng),
        "busy, in a row": lambda: in_a_row(loaded, rng),
        "idle baseline, busy contender": lambda: across(idle, loaded, rng),
        "busy baseline, idle contender": lambda: across(loaded, idle, rng),
    }
    fine = True
    for how, choose in ways.items():
        reds, confirmed_reds, states = 0, 0, Counter[str]()
        for _ in range(COMPARISONS):
            baseline, contender, again = choose()
            before, after = compare(baseline, contender, again, policy)
            reds += red(before, policy)
            confirmed_reds += red(after, policy)
            states.update(str(one.state) for one in after)
        total = sum(states.values())
        shares = ", ".join(f"{name} {count / total:.1%}" for name, count in states.most_common())
        print(
            f"A/A {how}: {reds} of {COMPARISONS} suites red, {confirmed_reds} with --confirm; cells: {shares}"
        )
        # 5% of 40 is 2; what --confirm leaves must be less than a tenth of that.
        fine &= reds <= policy.alpha * COMPARISONS and confirmed_reds == 0
    return fine


def try_stalls(pools: dict[str, list[Session]], policy: Policy, rng: random.Random) -> bool:
    """Make one round in ten, or nine of twelve, five times as long, in every cell in turn; count what is seen."""
    fine = True
    for words, share in (("one round in ten", 0.1), ("nine rounds of twelve", 0.75)):
        counts: Counter[str] = Counter()
        baseline, contender, _ = draw(pools["idle"], rng)
        for cell in side(baseline).cells:
            planted = [_stalled(one, cell, share) for one in contender]
            results = {result.cell_id: result for result in judge(side(baseline), side(planted), policy)}
            counts[str(results[cell].state)] += 1
        seen = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        print(f"{words} five times as long, in every cell in turn: {seen}")
        fine &= not counts[CellState.WITHIN_NOISE] and not counts[CellState.BETTER]
        fine &= share < 0.5 or counts[CellState.WORSE] == sum(counts.values())
    return fine


def _stalled(session: Session, cell: str, share: float) -> Session:
    copied = copy.deepcopy(session)
    (one,) = [entry for entry in copied["benchmarks"] if entry["extra_info"]["cell_id"] == cell]
    data = one["stats"]["data"]
    for position in range(max(1, int(share * len(data)))):
        data[position] *= 5
    return copied


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
            by_id = {result.cell_id: result for result in results}
            one = by_id[cell]
            counts[str(one.state)] += 1
            below = (one.floor_frac or 0) < float(factor) - 1
            counts["hidden"] += one.state is CellState.WITHIN_NOISE and below
            counts["others named"] += any(o.state is CellState.WORSE for o in results if o.cell_id != cell)
        seen = ", ".join(f"{name} {count}" for name, count in counts.most_common() if count)
        print(f"planted {factor}x in {cell}, {TRIALS} trials: {seen}")
        enough = counts["worse"] >= 0.95 * TRIALS if factor == "1.3" else not counts["hidden"]
        fine &= enough and not counts["others named"]
    return fine


def try_counters(pools: dict[str, list[Session]], policy: Policy, rng: random.Random) -> bool:
    """Plant one more read call per sample and 5% more bytes into every cell in turn; each must be caught."""
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
                result.cell_id == cell and any(counter == found.name for found in result.worse_counters)
                for result in results
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


def try_machines(pools: dict[str, list[Session]], policy: Policy, _rng: random.Random) -> bool:
    """Compare this machine with each emulated one, and print which kinds of calibration carry over.

    A kind carries over where on every machine every cell's calibrated ratio stays within the threshold, and
    at least one machine changed the calibration itself by a tenth: otherwise nothing was tried.
    """
    trusting = policy.model_copy(update={"basis": "ratio", "trust_calibration": list(LimitingWork)})
    baseline = side(pools["idle"][:SESSIONS_A_SIDE])
    silent, worst, tried = True, dict.fromkeys(LimitingWork, 0.0), dict.fromkeys(LimitingWork, False)
    for name in MACHINES:
        contender = side(pools[name][:SESSIONS_A_SIDE])
        verdict = outcome(judge(baseline, contender, policy), policy)
        silent &= verdict.exit_code != EXIT_REGRESSION
        print(f"{name}: exit code {verdict.exit_code}, {verdict.counts}")
        ratios = {result.cell_id: result for result in judge(baseline, contender, trusting)}
        for kind in LimitingWork:
            cells = [ratios[cell.cell_id] for cell in contender.cells.values() if cell.calibration == kind]
            known = [cell for cell in cells if cell.ratio and cell.seconds and cell.machine_ratio]
            if not known:
                continue
            worst[kind] = max(worst[kind], *(abs(math.log(cell.ratio or 1)) for cell in known))
            tried[kind] |= any(abs(math.log(cell.machine_ratio or 1)) > math.log1p(0.1) for cell in known)
            print(f"  {kind:15} {_range(known)}")
    carry = {
        kind: tried[kind] and worst[kind] <= math.log1p(policy.other_environment_frac)
        for kind in LimitingWork
    }
    for kind in LimitingWork:
        words = "not tried" if not tried[kind] else f"off by up to {math.expm1(worst[kind]):.0%}"
        print(f"{kind}: {words}; {'carries over' if carry[kind] else 'does not carry over'}")
    promised = [kind for kind in LimitingWork if VALIDATED[kind] and not carry[kind]]
    if promised:
        print(f"VALIDATED promises more than was found: {', '.join(promised)}")
    return silent and not promised


def _range(results: Sequence[CellResult]) -> str:
    """Return the ranges of the cells' ratios in seconds, of their calibration's, and of their calibrated ratios."""
    seconds = [result.seconds[1] / result.seconds[0] for result in results if result.seconds]
    machine = [result.machine_ratio or 1 for result in results]
    calibrated = [result.ratio or 1 for result in results]
    return ", ".join(
        f"{words} {min(values):.2f} to {max(values):.2f}"
        for words, values in (("seconds", seconds), ("calibration", machine), ("calibrated", calibrated))
    )


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
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        line = (done.stdout.strip().splitlines() or ["no output"])[-1]
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
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS[:-1], help="all but real by default"
    )
    parser.add_argument("--real", type=int, default=1, help="comparisons of each kind in the part real")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    parts, why_not = list(options.parts), unavailable()
    if "machines" in parts and why_not:
        print(f"machines: left out, {why_not}")
        parts.remove("machines")
    kinds = list(dict.fromkeys(kind for part in parts for kind in NEEDS[part]))
    collect(options.pool, options.sessions, kinds)
    pools = {
        kind: [json.loads(path.read_text()) for path in sorted((options.pool / kind).glob("*.json"))]
        for kind in kinds
    }
    policy, rng = Policy(), random.Random(options.seed)
    print(f"sessions: {', '.join(f'{len(found)} {kind}' for kind, found in pools.items())}")
    tests: dict[str, Callable[[], bool]] = {
        "same": lambda: try_same_code(pools, policy, rng),
        "planted": lambda: min(*(try_planted(pools, factor, policy, rng) for factor in ("1.3", "1.1"))),
        "stalls": lambda: try_stalls(pools, policy, rng),
        "counters": lambda: try_counters(pools, policy, rng),
        "machines": lambda: try_machines(pools, policy, rng),
        "real": lambda: try_for_real(options.pool, options.real),
    }
    failed = [part for part in parts if not tests[part]()]
    print(f"the gate does NOT hold: {', '.join(failed)}" if failed else "the gate holds")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
