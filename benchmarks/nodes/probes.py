"""Measure the rates of links and disks of emulated nodes under their limits; each command runs on one node.

::

    python -P -m benchmarks.nodes.probes receive ADDRESS PORT
    python -P -m benchmarks.nodes.probes send ADDRESS PORT
    python -P -m benchmarks.nodes.probes read PATH
    python -P -m benchmarks.nodes.probes hold FOLDER

``receive`` and ``read`` print bytes per second; ``receive`` first prints a line when it listens. ``hold``
maps all pages of all files below a folder, so they cannot be evicted. It prints a line and waits for the end of its input.
"""

import contextlib
import itertools
import mmap
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SETTLE_S = 0.4
"""Time at the start that does not count, because a limit lets through a burst after a pause."""

PROBE_S = 1.2
PIECE_BYTES = 1 << 20
READ_BYTES = 256 << 10

_PATIENCE_S = 10.0
_MORE_S = 0.2
_SENT_BYTES = 64 << 10


def receive(address: str, port: str) -> None:
    """Receive from one sender until it ends, and print the rate."""
    with socket.create_server((address, int(port))) as server:
        server.settimeout(_PATIENCE_S)
        print("listening", flush=True)
        sender, _ = server.accept()
    buffer = bytearray(PIECE_BYTES)
    counted = 0
    with sender:
        sender.settimeout(_PATIENCE_S)
        begin = time.perf_counter()
        while got := sender.recv_into(buffer):
            counted += got if 0 <= time.perf_counter() - begin - SETTLE_S < PROBE_S else 0
    print(counted / PROBE_S, flush=True)


def send(address: str, port: str) -> None:
    """Send for slightly longer than the receiver counts."""
    piece = bytes(_SENT_BYTES)
    with socket.create_connection((address, int(port)), timeout=_PATIENCE_S) as connection:
        begin = time.perf_counter()
        while time.perf_counter() - begin < SETTLE_S + PROBE_S + _MORE_S:
            connection.sendall(piece)


def read(path: str) -> None:
    """Read a file, bypassing the page cache, and print the rate."""
    ends: list[float] = []
    handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, READ_BYTES) as buffer:
        places = itertools.cycle(range(0, os.fstat(handle).st_size - READ_BYTES + 1, READ_BYTES))
        begin = time.perf_counter()
        while (now := time.perf_counter()) - begin < SETTLE_S + PROBE_S or len(ends) < 2:
            os.preadv(handle, [buffer], next(places))
            ends += [time.perf_counter()] if now - begin >= SETTLE_S else []
    print((len(ends) - 1) * READ_BYTES / (ends[-1] - ends[0]), flush=True)


def hold(folder: str) -> None:
    """Keep all pages of the files below a folder in memory until the input ends."""
    files = [path for path in Path(folder).rglob("*") if path.is_file() and path.stat().st_size]
    with contextlib.ExitStack() as stack:
        for path in files:
            with path.open("rb") as file:
                whole = mmap.mmap(
                    file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ
                )
                stack.enter_context(whole)
        print("held", flush=True)
        sys.stdin.read()


def main(arguments: Sequence[str]) -> int:
    """Run one of the commands."""
    command, *words = arguments
    {"receive": receive, "send": send, "read": read, "hold": hold}[command](*words)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
