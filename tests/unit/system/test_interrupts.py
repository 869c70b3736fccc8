"""An interrupt at any moment of any verb: exit code 130, one line, no traceback."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LINE = "storebench: interrupted; nothing half-written was kept"
EARLY_S = 0.5

MNIST = ("-d", "mnist", "--synthetic", "--limit", "64")
WORDS = {
    "convert": ("png", *MNIST, "--out", "stores"),
    "run": ("lmdb", *MNIST, "--model", "tiny", "--out", "run", "--stores", "stores"),
    "bench": (str(Path(__file__).parents[3] / "scenarios" / "smoke.toml"), "--out", "run"),
    "report": ("run",),
    "profile": ("script.py",),
}


@contextlib.contextmanager
def started(folder: Path, *arguments: str, before: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Start the command line in a session of its own, and wait until its first line has run."""
    process = subprocess.Popen(
        [*before, sys.executable, "-m", "storebench", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until_heard(process)
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until_heard(process: subprocess.Popen[str]) -> None:
    """Wait until a process has handlers of its own, or has ended: Python itself has one for SIGINT only."""
    for _ in range(20_000):
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        masks = [
            int(mask, 16) for mask in re.findall(r"^Sig(?:Cgt|Ign):\s+([0-9a-f]+)$", status, re.MULTILINE)
        ]
        if process.poll() is not None or not masks:
            return
        if all((masks[0] | masks[1]) >> (number - 1) & 1 for number in SIGNALS):
            return
        time.sleep(0.001)
    raise AssertionError("it has no handler")


@pytest.mark.parametrize("verb", WORDS)
def test_an_early_interrupt_is_one_line_and_exit_code_130(verb: str, tmp_path: Path) -> None:
    turn = list(WORDS).index(verb)
    moments = (0.0, random.uniform(0, 0.1), random.uniform(0, EARLY_S))
    for place, after_s in enumerate(moments):
        interrupt(tmp_path, verb, SIGNALS[(turn + place) % len(SIGNALS)], after_s)


def interrupt(folder: Path, verb: str, number: signal.Signals, after_s: float) -> None:
    """Interrupt a verb so long after its first line."""
    with started(folder, verb, *WORDS[verb]) as process:
        time.sleep(after_s)
        process.send_signal(number)
        _, error = process.communicate(timeout=30)
    what = f"{number.name} after {after_s:.4f} s: {process.returncode}\n{error}"
    assert "Traceback" not in error, what
    assert "Aborted" not in error, what
    if process.returncode == 130:
        assert error.splitlines().count(LINE) == 1, what
    else:
        # It came when everything was done: the verb's own end counts.
        assert after_s > 0, what
        assert process.returncode in (0, 1, 2, 3, 5), what


@pytest.mark.parametrize("numbers", [*((number,) for number in SIGNALS), (*SIGNALS, *SIGNALS)])
def test_an_interrupted_conversion_leaves_nothing(
    numbers: tuple[signal.Signals, ...], tmp_path: Path
) -> None:
    words = ("convert", "png", "-d", "mnist", "--synthetic", "--size", "60000", "--processes", "2")
    with started(tmp_path, *words) as process:
        while not list(tmp_path.glob("stores/*/.storebench-unfinished-*/*/*")):
            assert process.poll() is None
            time.sleep(0.01)
        for number in numbers:
            os.killpg(process.pid, number)  # as a terminal does that is closed: to the encoders as well
        _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error.strip() == LINE
    assert list(tmp_path.iterdir()) == []


def test_what_nohup_started_does_not_end_with_its_terminal(tmp_path: Path) -> None:
    with started(tmp_path, "convert", "png", *MNIST, before=("nohup",)) as process:
        process.send_signal(signal.SIGHUP)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 0, error


PLANTED = """
import os, signal, sys, threading, time
from storebench.cli import main
from storebench.cli.output import exit_codes
from storebench.system.interrupts import Held

threading.Thread(target=time.sleep, args=(20,), daemon=True).start()  # it blocks no signal, as a library's thread

@main.app.command("planted")
def planted():
    with exit_codes():
        {body}

sys.argv = ["storebench", "planted"]
main.main()
"""

BODIES = {
    # CPython would end by SIGINT there; `dataclasses` compiles text whenever it makes a class.
    "in code compiled from text": ("""
        exec("os.kill(os.getpid(), signal.SIGINT); time.sleep(20)")
        """, ""),
    "held back": ("""
        with Held():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)
            print("whole", flush=True)
        time.sleep(20)
        print("went on", flush=True)
        """, "whole\n"),
    "swallowed by other code": ("""
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except:
            pass
        print("went on", flush=True)
        """, "went on\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_an_interrupt_ends_a_verb_with_130_and_one_line(name: str, tmp_path: Path) -> None:
    body, said = BODIES[name]
    command = [sys.executable, "-c", PLANTED.replace("{body}", body.strip())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, said, LINE)
