"""What our own processes do beside their work: forks beside foreign threads, imports without the collector."""

import subprocess
import sys

SETTLING = """
import hashlib, os, threading, time
from storebench.system.processes import SETTLING_S, fork_when_settled
fork_when_settled()
seconds = []
for rounds in (0, 300_000, 30_000_000):
    busy = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"", b"", rounds or 1), daemon=True)
    busy.start()
    begun = time.monotonic()
    if os.fork() == 0:
        os._exit(0)
    seconds.append(time.monotonic() - begun)
    os.wait()
    print(busy.is_alive(), seconds[-1] < SETTLING_S, flush=True)
os._exit(0)
"""


def test_a_fork_waits_for_a_thread_that_runs_but_not_for_ever() -> None:
    """The thread holds no GIL, like one of gloo's that takes a lock of the interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", SETTLING], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split("\n")[:3] == ["False True", "False True", "True False"]
