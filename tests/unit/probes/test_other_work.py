"""Other work of the machine while a child runs: a child's own time is not another's, and a neighbour's is."""

import json
import os
import subprocess
import sys

import pytest

from storebench.record.schema import OTHERS_MOST_FRAC, Conditions, disturbance

PROBE = """
import dataclasses, json, os, resource, subprocess, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
from storebench.probes.counters import OtherWork
burn = "import sys, time\\nwhile time.process_time() < 0.3: pass\\n"
neighbour = subprocess.Popen([sys.executable, "-c", burn]) if sys.argv[2] == "neighbour" else None
others = OtherWork()
subprocess.run(["sleep", "0.3"] if neighbour else [sys.executable, "-c", burn], check=True)
found = others.conditions(2)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([dataclasses.asdict(found), used.ru_utime + used.ru_stime]))
if neighbour is not None:
    neighbour.wait()
"""


def measured(what: str) -> tuple[Conditions, float]:
    """Return the conditions while a child ran on one CPU, and the child's own CPU seconds."""
    cpu = str(min(os.sched_getaffinity(0)))
    done = subprocess.run(
        [sys.executable, "-c", PROBE, cpu, what], capture_output=True, text=True, check=True
    )
    found, child_s = json.loads(done.stdout)
    return Conditions(**found), child_s


def test_the_time_of_a_child_is_not_that_of_others() -> None:
    found, child_s = measured("child")
    assert found.cores == 1
    assert found.others_cpu_s is not None
    assert found.wall_s >= child_s >= 0.3
    assert found.others_cpu_s <= found.wall_s - child_s + 0.06
    assert found.attempt == 2


def test_the_time_of_a_neighbour_is_that_of_others_and_disturbs() -> None:
    found, _ = measured("neighbour")
    assert found.others_cpu_s is not None
    assert found.others_cpu_s > 0.1
    assert found.disturbed == disturbance(found) != ""


@pytest.mark.parametrize(
    ("others_s", "steal_s", "disturbed"),
    [
        (0.0, 0.0, ""),
        (4.0, 0.0, ""),
        (4.1, 0.0, "other work took 20% of the cores (20% is tolerated)"),
        (1.0, 5.0, "other work took 30% of the cores (20% is tolerated)"),
        (6.0, None, "other work took 30% of the cores (20% is tolerated)"),
        (None, None, ""),
    ],
)
def test_a_replicate_is_disturbed_by_the_share_of_the_cores(
    others_s: float | None, steal_s: float | None, disturbed: str
) -> None:
    assert OTHERS_MOST_FRAC == 0.2
    found = Conditions(wall_s=10.0, cores=2, others_cpu_s=others_s, steal_s=steal_s)
    assert disturbance(found) == disturbed
