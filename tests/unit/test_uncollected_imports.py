"""Imports without the garbage collector: none of its runs falls into them, and it works again afterwards."""

import subprocess
import sys

PROGRAM = """
import gc
from storebench.system.imports import uncollected

runs = []
gc.callbacks.append(lambda phase, info: runs.append(phase))
frozen = gc.get_freeze_count()
try:
    with uncollected():
        import storebench.cli.main
        inside = len(runs)
        raise ImportError
except ImportError:
    pass
print(inside, gc.isenabled(), gc.get_freeze_count() > frozen + 10_000)
gc.collect()
print(len(runs) > inside)
"""


def test_the_collector_rests_while_modules_are_imported() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["0", "True", "True", "True"]
