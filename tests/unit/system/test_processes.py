"""What our own processes do beside their work: forks beside foreign threads, imports without the collector."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from storebench.system.processes import MARK, end_processes

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


LARGE = "import time; held = b'x' * (400 << 20); print('there', flush=True); time.sleep(600)"
"""To give so much memory back takes the kernel longer than to kill a process."""


def test_processes_are_ended_by_the_folder_that_they_were_started_for(tmp_path: Path) -> None:
    mine, others = tmp_path / "storebench-replicate-11111111", tmp_path / "storebench-replicate-22222222"
    with contextlib.ExitStack() as stack:
        processes = []
        for folder in (mine, others):
            env = {**os.environ, MARK: folder.name}
            process = subprocess.Popen([sys.executable, "-c", LARGE], env=env, stdout=subprocess.PIPE)
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
        processes[0].send_signal(signal.SIGSTOP)
        assert end_processes([mine]) == [processes[0].pid]
        # Its files, locks and sockets are free for whoever ended it.
        assert psutil.Process(processes[0].pid).status() == psutil.STATUS_ZOMBIE
        assert processes[0].wait(60) == -signal.SIGKILL
        assert processes[1].poll() is None
